"""Stories of the warning, drawn by seed, for a mock and a real Slurm: what is trained, how it is warned, and in which moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psutil

from ftsup import events as ev
from ftsup.events import Ask, VerdictKind
from ftsup.worker.beatfile import Phase
from tests.e2e.harness import Run, Site, living, merged, until

SCRIPT, LOADING, OWN = (Path(__file__).parent / name for name in ("saver.py", "loading.py", "own.sbatch.j2"))
WAYS = {"asks": "asked", "handler": "handler", "text": "handler", "hard": "handler", "flag": "flag", "late": "late", "later": "later"}
"""How a script saves -> what its line in `saves` says."""
SHAPES = ((1, 2), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4), (4, 1), (4, 2))
STEPS_S = (0.005, 0.05, 0.3, 2.0)
FORMS = ("SIGUSR1", "B:SIGUSR1", "SIGUSR2", "none")
MOMENTS = ("steady", "early", "twice", "start", "save", "hang", "restart", "slow")
BY_HAND = frozenset({"early", "twice", "start"})
"""Moments in which we send the signal."""
UNTOLD = frozenset({"hang", "slow"})
"""Moments in which nothing can be saved to the end."""
MARGIN_S = 12.0
SOON_S = 22.0
"""From the last rank's save to the requeue: one question to Slurm, one decision on disk, on a machine that does more than that."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One story."""

    way: str = "asks"
    form: str = "SIGUSR1"
    nodes: int = 1
    ranks: int = 2
    """Of each node."""
    step_s: float = 0.05
    moment: str = "steady"
    template: str = ""
    """Of the batch script."""

    @property
    def name(self) -> str:
        """For its folder."""
        return f"{self.way}-{self.moment}-{self.form.replace(':', '')}-{self.nodes}x{self.ranks}"

    def config(self, *, lead_s: int) -> dict[str, Any]:
        """What is submitted."""
        way = f"2{self.way}" if self.form == "SIGUSR2" and self.way not in {"asks", "deaf"} else self.way
        save_s = {"save": 2.0, "own": 2.0, "slow": 600.0}.get(self.moment, 0.0)
        start_s = 6.0 if self.moment == "start" else 0.0
        own = ["own=40"] if self.moment == "own" else []
        return {
            "command": [str(SCRIPT), way, f"step={self.step_s}", f"save={save_s}", f"start={start_s}", *own],
            "slurm": {"nodes": self.nodes, "signal": f"{self.form}@{lead_s}", "template": self.template},
            "workers_per_node": self.ranks,
            "waits": {"end_margin": f"{MARGIN_S}s", "ask": "2s"},
            "checkpoint": {"pattern": "step*", "complete": "complete"} | ({"every": "4s"} if self.moment == "save" else {}),
            "hang": {"step": "10s", "shutdown": "60s"},
        }


def draw(seed: int, *, only: str = "") -> Case:
    """A story; `only` of scripts that save in this way."""
    dice = Random(seed)
    moment, (nodes, ranks) = MOMENTS[seed % len(MOMENTS)], dice.choice(SHAPES)
    way = "asks" if moment in {"save", "slow"} else dice.choice([*WAYS, "deaf"])
    way = only or way
    steps = STEPS_S[:-1] if way in {"late", "later"} else STEPS_S
    form = dice.choice(FORMS[:-1] if moment in BY_HAND else FORMS)
    return Case(way=way, form=form, nodes=nodes, ranks=ranks, step_s=dice.choice(steps), moment=moment)


def submit(site: Site, case: Case, *, lead_s: int, **more: object) -> Run:
    """It is on its way."""
    return site.submit(case.name, **merged(case.config(lead_s=lead_s), more))


def saves(run: Run, *, until_t: float = inf) -> list[tuple[int, int, str]]:
    """Rank, step and place of each save, until some time on the leader's clock."""
    found = lines(run, "saves")
    return [(int(rank), int(step), where) for rank, step, where, t in found if float(t) <= until_t]


def limit(run: Run, left_s: int) -> None:
    """So much time is left from now; on a mock whose unit of time is a second."""
    limit_s = int(run.show().run_s) + left_s
    run.site.run("scontrol", "update", f"JobId={run.job}", f"TimeLimit=0:{limit_s // 60}:{limit_s % 60}")


def signal(run: Run, case: Case) -> None:
    """Slurm's warning now, to whom it would send it."""
    name = "USR2" if case.form == "SIGUSR2" else "USR1"
    run.site.run("scancel", *(["--batch"] if case.form.startswith("B:") else []), f"--signal={name}", run.job)


def begin(run: Run, case: Case) -> None:
    """It trains; or comes to its start, and is warned there."""
    if case.moment == "start":
        run.until(lambda: run.events(ev.Launched))
        signal(run, case)
    else:
        run.until_trains(more=2)


def reach(run: Run, case: Case) -> None:
    """Come to the moment."""
    if case.moment == "save":
        committed = lambda: [order.save for order in run.orders(ev.AskRanks) if order.ask is Ask.COMMIT]  # noqa: E731
        known = len(run.events(ev.SaveOver))
        run.until(lambda: committed() and len(run.events(ev.SaveOver)) >= known and max(committed()) > _through(run))
    elif case.moment == "own":
        run.until(lambda: Phase.CHECKPOINT in {sight.beat.phase for sight in run.sights().values()})
    elif case.moment == "hang":
        (run.work / "control" / "hang.1").touch()
    elif case.moment == "restart":
        run.rank(1).kill()


def _through(run: Run) -> int:
    return max((event.save for event in run.events(ev.SaveOver)), default=0)


def until_requeued(runs: Sequence[Run], extend: Callable[[Run], object], *, within_s: float) -> None:
    """All have asked for their requeue. The next grants are not to be warned before they were looked at."""
    waiting = list(runs)

    def requeued() -> bool:
        for run in list(waiting):
            if requeue_line(run):
                extend(run)
                waiting.remove(run)
        return not waiting

    until(requeued, within_s=within_s, what=lambda: waiting[0].story())  # noqa: PLW0108 - whoever is the first by then


def requeue_line(run: Run) -> Any:
    """The line with the first requeue, or nothing yet."""
    return next((line for line in run.lines() if any(isinstance(order, ev.Requeue) for order in line.orders)), None)


def end_s(run: Run) -> float:
    """The limit as Slurm said it last before the requeue, on the leader's clock."""
    line = requeue_line(run)
    said = [event for event in run.events(ev.SlurmSaid) if event.t <= line.event.t and event.left_s is not None]
    return float(said[-1].t + said[-1].left_s)


def check(run: Run, case: Case, *, kill_wait_s: float, margin_s: float = MARGIN_S) -> int | None:
    """It was asked to be requeued, at the right time, with what could be saved; the step of that save."""
    line = requeue_line(run)
    first = next(order.verdict for order in run.orders(ev.Decide))
    assert first.kind is VerdictKind.REQUEUE, run.story()
    latest_t = end_s(run) - kill_wait_s - margin_s
    assert line.event.t <= latest_t + margin_s, (line.event.t - latest_t, run.story())  # before KillWait, however slow the machine
    if case.moment not in {"hang", "restart"}:
        assert [one for one in run.incidents() if one.epoch.grant == 1] == [], run.story()
        assert [epoch for epoch in run.launches() if epoch.grant == 1] == [ev.Epoch(1, 1)], run.story()
    if case.way == "deaf":
        assert not [order for order in run.orders(ev.AskRanks) if order.ask is not Ask.COUNT], run.story()
    early = case.moment == "hang" and "training is saved" in first.reason  # Slurm warned before it hung
    if case.way == "deaf" or (case.moment in UNTOLD and not early):
        assert {where for _, _, where in saves(run, until_t=line.event.t)} <= {"own"}, run.story()
        if "requeue instead of a restart" not in first.reason:  # of what hangs or was killed: near the end that comes at once
            assert line.event.t >= latest_t - 8.0, (line.event.t - latest_t, run.story())
        return None
    if "training is saved" not in first.reason:  # it may also be warned in the middle of the incident
        assert case.moment == "restart", run.story()
        return max((step for _, step, _ in saves(run, until_t=line.event.t)), default=None)
    return _check_saved(run, case, line, first.reason)


def _check_saved(run: Run, case: Case, line: Any, reason: str) -> int:
    before = [one for one in saves(run, until_t=line.event.t) if one[2] != "own"]
    newest = max(step for _, step, _ in before)
    found = [one for one in before if one[1] == newest]
    every = range(case.nodes * case.ranks)
    assert sorted(rank for rank, _, _ in found) == list(every), (before, run.story())
    assert {where for _, _, where in found} == {WAYS[case.way]}
    assert len(before) == len(found) or case.moment == "save", (before, run.story())
    assert reason == f"the time limit is near, and training is saved at step {newest}: requeue"
    over_t = max(event.t for event in (*run.events(ev.SaveOver), *run.events(ev.AttemptOver)) if event.t <= line.event.t)
    assert line.event.t - over_t <= SOON_S, run.story()
    return newest


def check_resumed_from_own(run: Run) -> None:
    """The next grant goes on from a save that the script made by itself."""
    run.until(lambda: any(event.epoch.grant == 2 for event in run.events(ev.CheckpointPicked)))
    picked = next(event for event in run.events(ev.CheckpointPicked) if event.epoch.grant == 2)
    assert picked.step in {step for _, step, where in saves(run) if where == "own"}, run.story()


def each_form(*, own: bool) -> list[Case]:
    """Each form of the warning, for a script that saves in another way; `own`: with a batch script of one's own for `B:`."""
    ways = ("handler", "asks", "flag", "hard")
    template = {"B:SIGUSR1": str(OWN)} if own else {}
    return [Case(way=way, form=form, template=template.get(form, "")) for way, form in zip(ways, FORMS, strict=True)]


def check_resumed(run: Run, step: int | None) -> None:
    """The next grant goes on from that step; a script that went on may have saved by itself since."""
    run.until(lambda: any(event.epoch.grant == 2 for event in run.events(ev.CheckpointPicked)))
    picked = next(event for event in run.events(ev.CheckpointPicked) if event.epoch.grant == 2)
    since = {at for _, at, where in saves(run) if where == "own" and at > (step or 0)}
    assert picked.step in {step} | since, run.story()
    if step is not None:
        run.until(lambda: any(event.step == step for event in run.events(ev.Sealed)))


# Data loaders -------------------------------------------------------------------------------------------------------------


def loading(site: Site, *, workers: int = 1, **more: object) -> Run:
    """DDP with data loaders of both kinds, each with so many worker processes."""
    config = {"command": [str(LOADING), f"workers={workers}"], "checkpoint": {"pattern": "step*.pt"}, "hang": {"step": "30s"}}
    return site.submit("loading", **merged(config, more))


def lines(run: Run, name: str) -> list[list[str]]:
    """What its processes have noted."""
    path = run.work / name
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def check_loading(run: Run, warn: Callable[[], object], near: Callable[[], object], *, ranks: int, workers: int = 1) -> None:
    """A signal that everything of the step gets: nothing dies of it, the handler is called once a rank, at one step, and in no loader.

    First by hand, long before the end; then with the end `near`, and the script leaves.
    """
    loaders = 2 * workers * ranks
    run.until(lambda: len(lines(run, "loaders")) == loaders, within_s=240)  # each of them imports torch
    run.until_trains()
    pids = {run.rank(number).pid: number for number in range(ranks)}
    warn()
    run.until(lambda: "training goes on" in run.output())
    run.until_trains(more=10)
    assert all(living(psutil.Process(int(pid))) for pid, _, _ in lines(run, "loaders")), run.story()
    calls = lines(run, "called")
    assert {int(pid): int(rank) for pid, rank, _ in calls} == pids, (calls, run.story())
    assert (len(calls), len({step for _, _, step in calls})) == (ranks, 1), calls
    (run.work / "control" / "leave").touch()
    near()
    warn()
    run.until(lambda: requeue_line(run))
    again = lines(run, "called")[ranks:]
    (step,) = {int(step) for _, _, step in again}
    assert {int(pid): int(rank) for pid, rank, _ in again} == pids, (again, run.story())
    assert (len(again), len(lines(run, "loaders"))) == (ranks, loaders), (again, run.story())
    assert (run.incidents(), run.launches()) == ([], [ev.Epoch(1, 1)]), run.story()
    assert f"training is saved at step {step}" in run.orders(ev.Decide)[0].verdict.reason, run.story()
    check_resumed(run, step)
