"""What this process says as a rank, and hears: beats, phases, saves, and the question "save now?".

Owns the counters between calls. Knows no torch (an optimizer is any object here), no signal and no exit; the shim tells it when it
is a rank. Everywhere else all of it does nothing.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path

from .beatfile import Phase, Writer

_STEP = int(Phase.STEP)  # an enum's member is a slow look-up before Python 3.12


class Rank:
    """One process is one rank: `THIS` is the only object of it outside of tests."""

    def __init__(self) -> None:
        self.writer = Writer()
        self._script_counts = False
        self._lead: Callable[[], object | None] = _nobody
        self._answered = 0

    def join(self, beat_file: Path, *, pid: int, started: int, base_step: int | None) -> None:
        """Become the rank of this beat file. `base_step`: the step that training starts from; None when unknown."""
        self.writer.step = -1 if base_step is None else base_step
        self.writer.attach(beat_file, pid=pid, started=started)
        os.register_at_fork(after_in_child=self.writer.detach)

    def enter(self, phase: int) -> None:
        """Go to a phase."""
        writer = self.writer
        writer.activity += 1
        writer.phase = phase
        writer.write()

    def reach(self, phase: Phase) -> None:
        """Come to a phase of the start-up, unless it is passed already."""
        if self.writer.phase < phase:
            self.enter(phase)

    def optimizer_stepped(self, optimizer: object, _args: object = None, _kwargs: object = None) -> None:
        """Torch's hook: an optimizer has stepped. Never raises into training.

        Steps are those of the first optimizer seen: a second one (a GAN's, one that wraps the first) is activity only.
        """
        writer = self.writer
        # What a memory write and weakref.ref() can raise, and not `Exception`: a signal handler of the script that raises just now (an
        # alarm, say) must be heard. And not contextlib.suppress, which costs more than the beat.
        try:
            writer.activity += 1
            writer.beats += 1
            writer.phase = _STEP
            lead = self._lead()
            if lead is None:
                lead = optimizer
                self._lead = weakref.ref(optimizer)
            if lead is optimizer and writer.step >= 0 and not self._script_counts:
                writer.step += 1
            writer.write()
        except (TypeError, ValueError, struct.error):
            pass

    def ended(self, code: int) -> None:
        """The script's body has ended."""
        self.writer.code = code
        self.enter(Phase.SHUTDOWN)

    # What a script may call -------------------------------------------------------------------------------------------

    def beat(self, step: int | None = None, *, phase: str | None = None) -> None:
        """Say "I am alive", and, where the script knows better than the optimizer hook, at which step and in which phase."""
        writer = self.writer
        if phase is not None:
            writer.phase = phase_named(phase)
        if step is not None:
            self._script_counts = True
            writer.step = int(step)
            if phase is None and writer.phase < _STEP:
                writer.phase = _STEP
            if self._lead is _nobody:  # no optimizer of torch's: the script's own word is what ranks are compared by
                writer.beats += 1
        writer.activity += 1
        writer.write()

    def phase(self, name: str) -> Inside:
        """A part of training with a time limit of its own, for a `with` block: first_step, evaluation, checkpoint."""
        return Inside(self, phase_named(name))

    def saved(self, step: int) -> None:
        """Say that a checkpoint of this step is on disk."""
        self.writer.saved_step = int(step)
        self.writer.activity += 1
        self.writer.write()

    def asked(self) -> bool:
        """True once when a save is wanted now. Save and go on; ending the job is ftsup's affair."""
        word = self.writer.ask()
        if word in (0, self._answered) or self.writer.beats < word:
            return False
        self._answered = word
        return True


class Inside:
    """A phase for the length of a `with` block; afterwards the one before, unless an optimizer step has moved on."""

    def __init__(self, rank: Rank, phase: Phase) -> None:
        self._rank = rank
        self._phase = phase
        self._before = rank.writer.phase

    def __enter__(self) -> None:
        self._before = self._rank.writer.phase
        self._rank.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        now = self._rank.writer.phase
        self._rank.enter(self._before if now == self._phase else now)


def phase_named(name: str) -> Phase:
    """The phase of this name; ValueError with the allowed ones."""
    try:
        return Phase[name.upper()]
    except KeyError:
        allowed = ", ".join(phase.name.lower() for phase in Phase)
        message = f"there is no phase {name!r}; allowed: {allowed}"
        raise ValueError(message) from None


def _nobody() -> None:
    """No optimizer yet."""


THIS = Rank()
"""The one exception from "no module-level state": a training script calls `beat()` with nothing in hand, and a process is one rank."""
