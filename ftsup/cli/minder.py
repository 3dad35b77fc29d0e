"""One look of `ftsup watch` at all runs of a folder: reads them, asks each cluster once, decides by `report.minding`, and acts.

Before it acts it reads the run and asks about its job anew, and writes into the run's own `watch.jsonl` what it is about to do: a run
where that cannot be written is only looked at. Trouble with one run, or one cluster, is a line, and the others go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster
from ftsup.cli.minded import BrokenError, Minded, giving, minded, signed
from ftsup.cli.ports import Ports
from ftsup.cli.watchlock import Memory, Remembered
from ftsup.config import from_json
from ftsup.errors import FtsupError, RunError, SlurmError
from ftsup.plain import read_plain, told
from ftsup.ports import Job, JobState, Slurm
from ftsup.report import runs
from ftsup.report.deeds import append_deed, claim
from ftsup.report.minding import Deed, Do, Finding, Seen, decide, is_new, tries
from ftsup.rundir import RunDir, add_job
from ftsup.slurm import chain

PACE_S = 120.0
"""A look counts at most so much silence, however long the last one is ago: a clock may jump, and watch may have been away."""
AT_AN_END = frozenset({"gone", "ended", "cancelled in Slurm"})
"""Rows of the table after which nothing comes by itself."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A line for people, and one of `--json`."""

    wall: str
    run: str
    do: Do
    text: str
    about: str = ""
    job: str = ""
    hint: str = ""
    failed: str = ""
    """Why it came to nothing."""
    new: bool = True
    """It was not told by an earlier look."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a look came to."""

    said: tuple[Said, ...] = ()
    minded: int = 0
    """Runs that are not over."""
    away: bool = False
    """A cluster did not answer."""
    hurry: bool = False
    """A job is on its way back to the queue, and `--start-now` waits for it."""


@dataclass(slots=True, kw_only=True)
class Minder:
    """Looks after the runs of a folder. `acts`: it may do more than look."""

    ports: Ports
    runs_dir: Path
    memory: Memory
    start_now: bool
    acts: bool
    _said: list[Said] = field(default_factory=list)
    _training: list[RunDir] = field(default_factory=list)
    """Those that ran at the last look, and were not giving their jobs back."""

    def gives_back(self) -> bool:
        """Whether one of those that ran gives its job back by now. Nobody is asked: their directories tell."""
        return any(giving(place) for place in self._training)

    def look(self) -> Looked:
        """One look at all of them."""
        self._said, self._training = [], []
        now_s = self.ports.now().timestamp()
        passed_s = min(max(now_s - self.memory.looked_s, 0.0), PACE_S)
        self.memory.looked_s = now_s
        groups: dict[Cluster, list[Minded]] = defaultdict(list)
        for place in self._places():
            if (one := self._read(place, passed_s)) is not None:
                groups[one.cluster].append(one)
        away, hurry = False, False
        for chosen, ones in groups.items():
            rows = self._queue(chosen.state or chosen.name, chosen)
            if rows is None:
                away = True
                continue
            for one in ones:
                hurry |= self._mind(one, rows)
        return Looked(said=tuple(self._said), minded=sum(map(len, groups.values())), away=away, hurry=hurry)

    # Reading --------------------------------------------------------------------------------------------------------------

    def _places(self) -> list[RunDir]:
        try:
            found = runs.places(self.runs_dir)
        except OSError as error:
            self._say(self.runs_dir.name, Finding(do=Do.NOTHING, text=f"{self.runs_dir} cannot be read: {told(error)}"))
            return []
        here = {place.id for place in found}
        self.memory.runs = {name: kept for name, kept in self.memory.runs.items() if name in here}
        return found

    def _read(self, place: RunDir, passed_s: float) -> Minded | None:
        """A run that is not over; None: it is, or there is trouble with it, which is said."""
        kept = self.memory.runs.setdefault(place.id, Remembered())
        try:
            sign = signed(place)
            if kept.over and kept.sign == sign:
                return None
            kept.quiet_s = kept.quiet_s + passed_s if kept.sign == sign else 0.0
            kept.sign = sign
            one = minded(place, cwd=self.ports.cwd, quiet_s=kept.quiet_s)
        except BrokenError as error:
            self._trouble(place, kept, str(error))
            return None
        except OSError as error:
            self._trouble(place, kept, f"it cannot be read: {told(error)}")
            return None
        kept.said = ""
        kept.over = one.seen.over and not one.seen.unwanted
        return None if kept.over or not one.seen.job else one

    def _trouble(self, place: RunDir, kept: Remembered, text: str) -> None:
        self._say(place.named_from(self.ports.cwd), Finding(do=Do.NOTHING, text=text), new=kept.said != text)
        kept.said = text

    def _queue(self, state: str, chosen: Cluster) -> dict[str, Job] | None:
        """Every job of ours there; None: no answer, which is said once."""
        try:
            rows = {row.job_id: row for row in self._slurm(chosen).queue()}
        except SlurmError as error:
            text = f"Slurm was asked in vain, and nothing is done until it answers: {error.message}"
            new = state not in self.memory.said
            self._say(state or "slurm", Finding(do=Do.NOTHING, text=text, hint=error.hint), new=new)
            self.memory.said[state] = text
            return None
        self.memory.said.pop(state, None)
        return rows

    def _slurm(self, chosen: Cluster) -> Slurm:
        return cluster.port_of(chosen, ports=self.ports)

    # Minding --------------------------------------------------------------------------------------------------------------

    def _mind(self, one: Minded, rows: Mapping[str, Job]) -> bool:
        """Do what is to be done about one run; whether it is worth to look again soon."""
        seen, row = one.seen, rows.get(one.seen.job)
        found = self._decide(seen, row, rows.get(seen.spool.job) if seen.spool else None)
        kept = self.memory.runs[one.place.id]
        if found.do is Do.NOTHING or not is_worth(found, seen, row):
            kept.over |= found.about in AT_AN_END or bool(seen.unwanted and not (row and row.lives))
            if found.about:
                self._say(seen.name, found, job=seen.job, new=False)
        else:
            try:
                self._confirmed(one, found, kept)
            except SlurmError as error:
                self._say(seen.name, found, job=seen.job, failed=error.message)
            except BrokenError as error:
                self._trouble(one.place, kept, str(error))
            except OSError as error:
                self._trouble(one.place, kept, f"it cannot be read: {told(error)}")
        return self.start_now and self._comes_back(one, row)

    def _decide(self, seen: Seen, row: Job | None, spooled: Job | None) -> Finding:
        now_s = self.ports.now().timestamp()
        return decide(seen, row, now_s=now_s, start_now=self.start_now, spooled=spooled)

    def _comes_back(self, one: Minded, row: Job | None) -> bool:
        """Whether its job is about to be pending again."""
        if row is None or one.seen.unwanted or row.completing or row.state is not JobState.RUNNING:
            return row is not None and row.completing and not one.seen.unwanted
        if giving(one.place):
            return True
        self._training.append(one.place)
        return False

    def _confirmed(self, one: Minded, found: Finding, kept: Remembered) -> None:
        """Read and ask once more, about this run alone; where it still holds, write it down and do it."""
        slurm = self._slurm(one.cluster)
        job = slurm.show(one.seen.job)
        one = minded(one.place, cwd=self.ports.cwd, quiet_s=one.seen.quiet_s)
        apart = one.seen.spool is not None and one.seen.spool.job != one.seen.job
        spooled = slurm.show(one.seen.spool.job) if one.seen.spool and apart else None
        again = self._decide(one.seen, job, spooled)
        if found.about == "gone" and again.do is Do.SUCCEED:  # only accounting knows it: what followed it may be forgotten as well
            again = found
        same = again.do is found.do and (again.do is Do.SAY or again.about == found.about)  # accounting may know how a job ended
        if not same or not is_worth(again, one.seen, job):
            kept.over |= again.do is Do.SAY and again.about in AT_AN_END
            return
        if again.do is Do.CANCEL and _is_another(job.job_id, one.place, slurm):
            kept.over = True
            return
        undone = "" if again.do is Do.SAY else ", but watch only looks"
        if not self.acts:
            self._trouble(one.place, kept, f"{again.text}{undone}")
            return
        try:
            ours = self._write(one.place, again, job, n=tries(one.seen, again))
        except OSError as error:
            undone = undone and ", but nothing is done"
            self._trouble(one.place, kept, f"{again.text}{undone} ({one.place.watched.name} cannot be written: {told(error)})")
            return
        if again.do is Do.SAY:
            self._say(one.seen.name, again, job=job.job_id)
            return
        try:
            if not ours:
                raise RunError("another ftsup watch, which heeds no lock of this one, does it in this moment")
            self._do(one, again, slurm)
            self._still_wanted(one, again, slurm)
        except FtsupError as error:
            with suppress(OSError):
                self._write(one.place, again, job, failed=error.message)
            self._say(one.seen.name, again, job=job.job_id, failed=error.message)
        else:
            self._say(one.seen.name, again, job=job.job_id)

    def _do(self, one: Minded, found: Finding, slurm: Slurm) -> None:
        job = one.seen.job
        if found.do is Do.REQUEUE:
            slurm.requeue(one.seen.spool.job if one.seen.spool and found.about == "spooled" else job)
        elif found.do is Do.RELEASE:
            slurm.release(job)
        elif found.do is Do.START:
            slurm.start_now(job)
        elif found.do is Do.CANCEL:
            slurm.cancel(job)
        elif found.do is Do.SUCCEED:
            _succeed(one, found, slurm)

    def _still_wanted(self, one: Minded, found: Finding, slurm: Slurm) -> None:
        """Somebody may have cancelled or paused it in this very moment: nothing that we began may stay."""
        if found.do is Do.CANCEL or not (one.place.cancelled.exists() or one.place.paused.exists()):
            return
        for job in {one.seen.job, *runs.jobs(one.place)[-1:]}:
            slurm.cancel(job)

    def _write(self, place: RunDir, found: Finding, job: Job, *, n: int = 0, failed: str = "") -> bool:
        """Whether what is about to be done is ours to do."""
        now = self.ports.now()
        deed = Deed(
            wall=now.isoformat(timespec="milliseconds"),
            at_s=round(now.timestamp(), 3),
            do=found.do,
            about=found.about,
            job=job.job_id,
            restarts=job.restarts,
            text=found.text,
            failed=failed,
        )
        append_deed(place, deed)
        return bool(failed) or found.do is Do.SAY or claim(place, deed, n=n)

    def _say(self, run: str, found: Finding, *, job: str = "", new: bool = True, failed: str = "") -> None:
        wall = self.ports.now().isoformat(timespec="seconds")
        self._said.append(
            Said(wall=wall, run=run, do=found.do, about=found.about, job=job, text=found.text, hint=found.hint, failed=failed, new=new)
        )


def is_worth(found: Finding, seen: Seen, row: Job | None) -> bool:
    """What is only said is said once."""
    return found.do is not Do.SAY or is_new(found, seen, row)


def _is_another(job: str, place: RunDir, slurm: Slurm) -> bool:
    """Slurm has given the id to another job: ids come again, when all are used up or a cluster is installed anew.

    Of an array's task, which has another script, that cannot be told.
    """
    return job.isdecimal() and job not in {one.job_id for one in slurm.find(place.script)}


def _succeed(one: Minded, found: Finding, slurm: Slurm) -> None:
    """One successor of the job that has ended; its id is written down, and then nothing asks for it any more."""
    spool, place = one.seen.spool if found.about == "spooled" else None, one.place
    job = spool.job if spool else one.seen.job
    try:
        own = from_json(read_plain(place.config_json)).slurm.exclude
    except ValueError as error:
        raise RunError(f"{place.config_json} cannot be read: {told(error)}") from None
    nodes = spool.avoid if spool else ()
    number = int(job) if job.isdecimal() else 0  # an array's task has another script than those that follow it
    follows = chain.successor(slurm, job, number=number, script=place.script, nodes=nodes, own=own)
    try:
        add_job(place.jobs, follows.job)
        for done in (place.requeue, place.unexplained):
            done.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"job {follows.job} follows it, and that cannot be written down ({told(error)})") from None
