"""One story for both Slurms: a run, and another user of the machine who does what he can. He is told of once, and training goes on."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import psutil

from ftsup import events as ev
from ftsup.supervisor.keys import read_keys
from tests.e2e import mallory, sound
from tests.e2e.harness import Run, Site, living, seen_below

FILES = 200
"""What the leader may have open: fewer than the connections that are held against it, so that it has to do without any for a while."""
KNOCKING_S = 12.0
"""Longer than silent connections are kept (10 s): they come a second time."""
SECRET = "hunter2-in-env"
CONFIG = {
    "workers_per_node": 1,
    "setup": f"ulimit -n {FILES}; umask 000",
    "env": {"TOKEN": SECRET},
    "hang": {"step": "40s"},
    "node_grace": "30s",
    "lead_grace": "60s",
    "waits": {"late": "5s"},  # the default: a leader that was away blames nobody for a while
}
MEMORY = Path("/dev/shm")  # noqa: S108 - where it is on every Linux
ROOT = os.geteuid() == 0


@contextlib.contextmanager
def planted(site: Site, *, memory: bool):
    """He was there first, where everybody may write: our names are his."""
    local = site.folder / "local"
    local.mkdir()
    local.chmod(0o1777)
    usual = f"ftsup-{site.uid}"
    in_memory = MEMORY / usual
    try:
        mallory.done(mallory.start("plant", folders=[str(local / usual)], files=[str(in_memory)] if memory else []), within_s=60)
        yield
    finally:
        if memory:
            in_memory.unlink(missing_ok=True)


def knocked_at(run: Run) -> None:
    """All that can be done at the port, while the ranks train; the same attempt trains afterwards, and nothing was lost."""
    port = int((run.on("leader").root / "port.0").read_text())
    leader, began = run.leader(), run.launches()
    knocking = mallory.start("knock", port=port, seconds=KNOCKING_S, until_told=True)
    try:
        run.until(lambda: told(run)["crowd"] and told(run)["strangers"])
        run.until_trains(more=10)
        assert knocking.poll() is None, "he knocks until he is told"
        found = mallory.done(knocking, within_s=120)
    finally:
        knocking.kill()
        knocking.communicate()
    assert found["tried"] > mallory.HELD
    run.until_trains(more=10)
    assert run.launches() == began, run.story()
    assert run.incidents() == run.events(ev.NodeSilent) == run.events(ev.StepEnded) == []
    assert living(leader)


def looked_at(run: Run) -> None:
    """What he can see of it: names."""
    keys = read_keys(run.place.keys)
    secrets = [SECRET, keys.leader_public, keys.leader_secret, keys.node_public, keys.node_secret]
    places = [run.place.root, run.place.keys, run.place.requests, run.place.root / "bash-requeues"]
    places += [place for node in ("leader", *nodes(run)) for place in (run.on(node).disk, run.on(node).root)]
    places += [run.on(node).memory for node in nodes(run)]
    mine = psutil.Process(run.leader().pid).environ()
    assert mine["FTSUP_LOCAL"], "a leader's environment can be read by its own user: the look below is one"
    found = mallory.done(mallory.start("look", places=[str(place) for place in places], secrets=secrets), within_s=120)
    assert found == {"opened": [], "seen": []}, found


def nodes(run: Run) -> list[str]:
    return sorted({event.node for event in run.events(ev.NodeUp)})


def told(run: Run) -> Counter[str]:
    """By kind, how often people were told of him."""
    notes = [event for event in run.events(ev.Noted) if event.trouble and not event.over]
    return Counter("place" if "is user" in note.text else note.trouble for note in notes)


def explained(run: Run) -> Counter[str]:
    """The same, as `ftsup explain` says it."""
    lines = sound.explained(run)
    words = {"strangers": "does not have this run's key", "crowd": "so many strangers", "place": "is user"}
    return Counter({kind: sum(word in line for line in lines) for kind, word in words.items()})


def others_can_write(run: Run) -> list[str]:
    """Files of the run that this umask would have opened to everybody; Slurm itself makes the batch script's output."""
    modes = seen_below(run.place.root, lambda path: path.stat().st_mode)
    ours = {path: mode for path, mode in modes.items() if not path.name.startswith("slurm-") and "__pycache__" not in path.parts}
    return [str(path) for path, mode in ours.items() if mode & 0o022]


def story(site: Site, *, memory: bool) -> None:
    """`memory`: whether our name there can be taken. A leader needs none."""
    with planted(site, memory=memory) if ROOT else contextlib.nullcontext():
        run = site.submit(**CONFIG)
        run.until_trains()
        if ROOT:
            looked_at(run)
        knocked_at(run)
        tops = [run.on(node).memory for node in nodes(run)]
        assert not memory or MEMORY / f"ftsup-{site.uid}" not in tops
        wanted = {"strangers": 1, "crowd": 1} | ({"place": 1 + len(tops) * (1 + memory)} if ROOT else {})
        assert told(run) == wanted, told(run)
        run.once(0, "exit")
        run.until_judged(1)
        run.until_trains(epoch=ev.Epoch(1, 2))
        if ROOT:
            assert others_can_write(run) == []
        run.finish()
        run.until_over()
        assert told(run) == wanted
        assert explained(run) == wanted | ({} if ROOT else {"place": 0}), sound.explained(run)
        if memory:
            assert [top for top in tops if top is None or top.exists()] == []
