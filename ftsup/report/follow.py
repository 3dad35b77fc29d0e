"""Reads a run again and again at the price of what is new, and many runs at the price of their gist. Read only.

What a run directory tells is `runs.read`'s affair; here is only how to come by it cheaply.
"""

from __future__ import annotations

from ftsup import eventlog
from ftsup.errors import RunError
from ftsup.report import runs
from ftsup.report.runs import Now, View
from ftsup.report.story import Story, fold, tell
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

_NOTES = 5


class Follower:
    """One run, looked at time after time: only the lines that came are read. What cannot be read is a note of the view."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offset = 0
        self._story = Story()
        self._notes: tuple[str, ...] = ()
        self._now: Now | None = None
        self._seen: tuple[int, ...] = ()

    def look(self) -> View:
        """The run as it is now; RunError where somebody has removed it."""
        self._there()
        trouble: list[str] = []
        try:
            lines, notes, offset = eventlog.follow(self._run.events, self._offset)
        except OSError as error:
            trouble.append(f"the event log cannot be read: {error.strerror}")
        else:
            if offset < self._offset:  # another file lies there: its lines are all of it
                self._story = Story()
            self._offset = offset
            for line in lines:
                self._story = fold(self._story, line)
            self._notes = (*self._notes, *(one_line(note, width=300) for note in notes))[-_NOTES:]
        seen = self._status()
        if seen != self._seen:
            self._seen, (self._now, _) = seen, runs.now_of(self._run)
        return runs.view(self._run, self._story, (*self._notes, *trouble), known=self._now)

    def _there(self) -> None:
        try:
            self._run.root.stat()
        except FileNotFoundError:
            raise RunError(f"{self._run.root} is gone: somebody removed it", hint="`ftsup list` shows those that are there") from None
        except OSError:
            return  # a disk that does not answer is told with the log

    def _status(self) -> tuple[int, ...]:
        """Which status.json lies there: with some thousand ranks it is worth not to be read twice."""
        try:
            facts = self._run.status.stat()
        except OSError:
            return ()
        return (facts.st_ino, facts.st_mtime_ns, facts.st_size)


def gist(run: RunDir) -> View:
    """A run without the routine between its decisions: where it stands and what it went through, not when it was back each time."""
    try:
        return runs.view(run, tell(eventlog.gist(run.events)), ())
    except OSError as error:
        return runs.view(run, Story(), (f"the event log cannot be read: {error.strerror}",))
