"""Nothing lost, nothing doubled: what must hold of any run, whatever befell it. Read from its event log, its steps, and Slurm.

Each finding is a sentence; a test asks for none. `train.py` writes down every step that it trains; other scripts have no such file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import psutil

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import Epoch, Line
from tests.e2e.harness import Run, living, words


def sound(run: Run, *, told: Sequence[str] = (), over: bool = True) -> None:
    """Whatever befell it: one job, one leader, no launch and no step twice, the record whole; explain says each of `told` in one line."""
    if over:
        run.until(lambda: (ours := eventlog.read(run.own_log())[0]) == eventlog.read(run.place.events)[0][-len(ours) :])
    found = [*_log(run, over=over), *_job(run), *_leaders(run, over=over), *_launches(run.lines()), *_steps(run), *_said(run, told)]
    assert not found, "\n".join([*found, run.story()])


def _log(run: Run, *, over: bool) -> Iterator[str]:
    for path in [run.own_log(), *([run.place.events] if over else [])]:
        lines, notes = eventlog.read(path)
        yield from (f"{path.name}: {note}" for note in notes)
        first = lines[0].n if path == run.own_log() and lines else 1  # of a job that follows another, it begins with that
        if [line.n for line in lines] != list(range(first, first + len(lines))):
            yield f"{path}: lines are missing, or there twice"
    if "Traceback" in run.output() + _step_output(run):
        yield "a program of ours has died with a traceback"


def _step_output(run: Run) -> str:
    return "".join(path.read_text(errors="replace") for path in run.local.glob("*/*/*/leader/step.out"))


def _job(run: Run) -> Iterator[str]:
    ours = [
        line
        for line in run.site.run("squeue", "--states=all", "--noheader", "--format=%A %o").splitlines()
        if str(run.place.script) in line
    ]
    if len(ours) != len(set(run.place.jobs.read_text().split())):
        yield f"Slurm has {len(ours)} jobs of it"
    grants = [(event.job, event.restarts) for event in run.events(ev.LeaderStarted)]
    if grants != sorted(grants):
        yield f"a grant came back after a later one: {grants}"
    restarts, known = run.show().restarts, max((restarts for job, restarts in grants if job == run.job), default=0)
    if restarts < known:  # it may be more: launches that Slurm itself did not bring to a leader
        yield f"Slurm began it {restarts + 1} times, and a leader was there in {known + 1} grants"


def leaders(run: Run) -> list[psutil.Process]:
    """Those that live."""
    return [process for process in run.own() if words(process)[-2:] == ["lead", str(run.place.root)] and living(process)]


def _leaders(run: Run, *, over: bool) -> Iterator[str]:
    now = leaders(run)
    if len(now) > (0 if over else 1):
        yield f"{len(now)} leaders live: {now}"
    pids = [event.pid for event in run.events(ev.LeaderStarted)]
    if len(set(pids)) != len(pids):
        yield f"a leader has begun twice: {pids}"


def _launches(lines: Sequence[Line]) -> Iterator[str]:
    """Each attempt on each node once, and only where nothing of the one before is left."""
    lives: dict[str, tuple[Epoch, int]] = {}
    instances: dict[str, str] = {}
    for line in lines:
        event = line.event
        if isinstance(event, ev.LeaderStarted) and event.restarts != _restarts(lines, line):
            lives, instances = {}, {}
        elif isinstance(event, ev.NodeUp):
            if instances.get(event.node, event.instance) != event.instance and not event.held:
                lives.pop(event.node, None)  # its successor has swept
            instances[event.node] = event.instance
        elif isinstance(event, ev.AttemptOver):
            lives.pop(event.node, None)
        elif isinstance(event, ev.Launched):
            before = lives.setdefault(event.node, (event.epoch, event.pid))
            if before[0] != event.epoch or len({before[1], event.pid} - {0}) > 1:  # 0: a new leader was told that it lives
                yield f"attempt {event.epoch} was launched on {event.node} (line {line.n}) beside {before}"
    epochs = [line.event.epoch for line in lines if isinstance(line.event, ev.CheckpointPicked)]
    if epochs != sorted(set(epochs)):
        yield f"attempts are there twice, or went back: {epochs}"


def _restarts(lines: Sequence[Line], line: Line) -> int:
    """Of the grant before this line."""
    return next((one.event.restarts for one in reversed(lines[: line.n - 1]) if isinstance(one.event, ev.LeaderStarted)), -1)


def _steps(run: Run) -> Iterator[str]:
    """Each attempt goes on right after the newest checkpoint that counted, and makes each step once."""
    resumed: dict[str, int] = {}
    sealed = 0
    for line in run.lines():
        if isinstance(line.event, ev.Sealed):
            sealed = max(sealed, line.event.step or 0)
        elif isinstance(line.event, ev.CheckpointPicked):
            resumed[str(line.event.epoch)] = line.event.step or 0
            if (line.event.step or 0) < sealed:
                yield f"attempt {line.event.epoch} resumed from step {line.event.step}, and {sealed} was sealed"
    for path in sorted((run.work / "control").glob("steps.*")):
        made = [(epoch, int(step)) for epoch, step in map(str.split, path.read_text().splitlines())]
        for (epoch, step), (after, further) in pairwise([("", 0), *made]):
            wanted = step + 1 if after == epoch else resumed.get(after, -1) + 1
            if further != wanted:  # so it is as well where two attempts run beside each other
                yield f"{path.name}: attempt {after} made step {further}, where {wanted} was its turn"


def explained(run: Run) -> list[str]:
    """What `ftsup explain` prints, each sentence on one line."""
    text = run.site.ftsup("explain", str(run.place.root), cwd=run.work)
    return re.sub(r"\n {4,}", " ", re.sub(r"\n  (?=\S)", " ", text)).splitlines()


def _said(run: Run, told: Sequence[str]) -> Iterator[str]:
    lines = explained(run) if told else []
    for sentence in told:
        often = [line for line in lines if re.search(sentence, line)]
        if len(often) != 1:
            yield f"explain says {sentence!r} in {len(often)} lines of\n" + "\n".join(lines)
