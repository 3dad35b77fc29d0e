"""What this process says as a rank, and hears: beats, phases, saves, and the question "save now?".

Owns the counters between calls, and the rank's part of "save at beat N". Knows no torch (an optimizer is any object here), no signal
and no exit; the shim tells it when it is a rank. Everywhere else all of it does nothing.
"""

from __future__ import annotations

import os
import time
import weakref

from . import counters
from .counters import (
    ACK,
    ASK,
    ASKS,
    BEATS,
    CODE,
    COMMIT,
    COUNTS,
    FLAGS,
    IN_STEP,
    LIFE,
    PHASE,
    PROPOSED,
    SAVED_STEP,
    STEP,
    TOOK,
    UNSURE,
    Writer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .beatfile import Phase

HOLD_S = 30.0
"""The most that a rank waits after beat N for a word that does not come: then it goes on without a save."""
_POLL_S = 0.001
_BEATS_END = 1 << 32


class Rank:
    """One process is one rank: `THIS` is the only object of it outside of tests."""

    def __init__(self, *, hold_s: float = HOLD_S) -> None:
        self.writer = Writer()
        self.handler: Callable[[], object] | None = None
        """Calls the script's own handler for the warning signal, in the main thread."""
        self._hold_s = hold_s
        self._lead: Callable[[], object | None] = _nobody
        self._stride = 0
        """What one beat of the lead optimizer adds to the step: nothing where steps are unknown, or the script's own affair."""
        self._base = -1
        self._others: set[int] = set()
        """Optimizers that have stepped since the lead's last step."""
        self._turns = 0
        """So many of them step in each round; 0: the lead is alone; -1: its first round with others is not over."""
        self._heard = 0
        """The ask word that needs nothing more from us."""
        self._due = False
        self._took_at = 0

    def join(self, beat_file: Path | str, *, pid: int, started: int, base_step: int | None) -> None:
        """Become the rank of this beat file. `base_step`: the step that training starts from; None when unknown."""
        writer = self.writer
        writer.attach(beat_file, pid=pid, started=started)
        if base_step is not None:
            writer.longs[STEP] = self._base = base_step
            self._stride = 1
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """A forked child is no rank."""
        self.writer.detach()
        self.handler, self._heard, self._due = None, 0, False

    def enter(self, phase: int) -> None:
        """Go to a phase."""
        writer = self.writer
        writer.longs[LIFE] += 1
        writer.halves[PHASE] = phase

    def reach(self, phase: int) -> None:
        """Come to a phase of the start-up, unless it is passed already."""
        if self.writer.phase < phase:
            self.enter(phase)

    def batch_taken_without_optimizer(self) -> None:
        """Training may have begun with an optimizer that is none of torch's: until one of torch's is built, steps are unknown."""
        if not self.writer.halves[FLAGS] & (UNSURE | COUNTS):
            self.writer.flag(UNSURE)
            if self._stride:
                self.writer.longs[STEP] = -1

    def optimizer_built(self) -> None:
        """One of torch's."""
        if self._lead is _nobody and self.writer.halves[FLAGS] & UNSURE:
            self.writer.flag(UNSURE, to=False)
            if self._stride:
                self.writer.longs[STEP] = self._base
        self.reach(counters.IN_FIRST_STEP)
        lead = self._lead()
        if lead is not None and _beats_twice(lead):
            self._lose_count()

    def optimizer_stepped(self, optimizer: object, _args: object = None, _kwargs: object = None) -> None:
        """Torch's hook: an optimizer has stepped. Never raises into training, but for what a signal handler of the script's raises.

        Steps are those of the first optimizer seen, as long as all others take turns with it (a GAN's, one that wraps the first, one
        for each parameter). Nothing here is guarded, for nothing can fail: memory is written. A guard would swallow what the script's
        own signal handlers raise meanwhile.
        """
        writer = self.writer
        longs = writer.longs
        try:
            writer.words[BEATS] += 1
        except ValueError as error:
            self._cannot_count(error)
        writer.halves[PHASE] = IN_STEP
        lead = self._lead()
        if lead is optimizer:
            longs[STEP] += self._stride
            if self._turns:
                self._round()
        elif lead is None:
            self._follow(optimizer)
        elif self._stride:
            self._other(optimizer)
        if longs[ASK] != self._heard:
            self._hear()

    def _cannot_count(self, error: ValueError) -> None:
        """After four billion beats (weeks of steps of a millisecond) it goes on living, and nothing is saved on request any more."""
        if self.writer.words[BEATS] < _BEATS_END - 1:
            raise error  # a signal handler of the script's
        self.writer.longs[LIFE] += 1

    def _follow(self, optimizer: object) -> None:
        self.optimizer_built()
        try:
            self._lead = weakref.ref(optimizer)
        except TypeError:  # an object of a kind that we do not know: no step is counted
            return
        self.writer.longs[STEP] += self._stride
        if _beats_twice(optimizer):
            self._lose_count()

    def _other(self, optimizer: object) -> None:
        self._turns = self._turns or -1
        if id(optimizer) in self._others:
            self._lose_count()
        else:
            self._others.add(id(optimizer))

    def _round(self) -> None:
        """The lead has stepped again."""
        if self._turns > 0 and len(self._others) != self._turns:
            self._lose_count()
        else:
            self._turns = len(self._others)
            self._others.clear()

    def _lose_count(self) -> None:
        """Which are the script's steps? Optimizers do not take turns (five steps of one for each of the other), or one beats twice."""
        if self._stride:
            self._stride = 0
            self.writer.longs[STEP] = -1
            self.writer.flag(UNSURE)
        self._turns = 0
        self._others.clear()

    def ended(self, code: int) -> None:
        """The script's body has ended."""
        self.writer.halves[CODE] = code & 0xFFFF
        self.enter(counters.IN_SHUTDOWN)

    # Save at beat N ---------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """A beat was counted, and the ask word is one that we are not done with."""
        writer = self.writer
        value, beats, agreed = writer.longs[ASK], writer.words[BEATS], writer.words[ACK]
        if value == self._heard:
            return
        at_beat, word, handlers = counters.asked(value)
        if word == PROPOSED and beats <= at_beat < _BEATS_END:
            self._agree(at_beat)
            if beats == at_beat:
                self._hold(value)
                self._hear()
        elif word == COMMIT and beats < at_beat == agreed:
            pass  # at beat N, then
        else:
            self._heard = value
            if word == COMMIT and beats == at_beat == agreed:
                self._hand_over(handlers=handlers)

    def _agree(self, at_beat: int) -> None:
        writer = self.writer
        if writer.words[ACK] != at_beat:
            writer.flag(TOOK, to=False)
            writer.words[ACK] = at_beat

    def _hold(self, value: int) -> None:
        """Wait after beat N until the word is another one, but not for ever. Waiting is a sign of life.

        Who goes on without an answer takes its agreement back before it looks for the last time; the supervisor looks at agreements
        after it has written COMMIT: one of the two sees the other.
        """
        longs, words = self.writer.longs, self.writer.words
        agreed, until = words[ACK], time.monotonic() + self._hold_s
        try:
            while longs[ASK] == value and time.monotonic() < until:
                longs[LIFE] += 1
                time.sleep(_POLL_S)
        except BaseException:  # a signal handler of the script's has called us away
            words[ACK] = 0
            raise
        if longs[ASK] == value:
            words[ACK] = 0
            time.sleep(_POLL_S)
            if longs[ASK] == value:
                self._heard = value
            else:
                words[ACK] = agreed

    def _hand_over(self, *, handlers: bool) -> None:
        writer = self.writer
        if self.handler is None or not handlers or writer.halves[FLAGS] & ASKS:
            self._due = True
        else:
            self._take()
            self.handler()

    def _take(self) -> None:
        """The script gets the request now."""
        self._took_at = self.writer.words[BEATS]
        self.writer.flag(TOOK)

    @property
    def answers(self) -> bool:
        """Whether the script's next act is its answer to a request: it got it, and has made no step since."""
        return self.writer.attached and bool(self.writer.halves[FLAGS] & TOOK) and self.writer.words[BEATS] == self._took_at

    # What a script may call -------------------------------------------------------------------------------------------

    def beat(self, step: int | None = None, *, phase: str | None = None) -> None:
        """Say "I am alive", and, where the script knows better than the optimizer hook, at which step and in which phase."""
        writer = self.writer
        if phase is not None:
            writer.halves[PHASE] = phase_named(phase)
        if step is not None:
            self._stride = 0
            writer.halves[FLAGS] = writer.halves[FLAGS] & ~UNSURE | COUNTS
            writer.longs[STEP] = int(step)
            if phase is None and writer.halves[PHASE] < IN_STEP:
                writer.halves[PHASE] = IN_STEP
            if self._lead is _nobody:  # no optimizer of torch's: the script's own word is what ranks are compared by
                try:
                    writer.words[BEATS] += 1
                except ValueError as error:
                    self._cannot_count(error)
                if writer.longs[ASK] != self._heard:
                    self._hear()
                return
        writer.longs[LIFE] += 1

    def phase(self, name: str) -> Inside:
        """A part of training with a time limit of its own, for a `with` block: first_step, evaluation, checkpoint."""
        return Inside(self, phase_named(name))

    def saved(self, step: int) -> None:
        """Say that a checkpoint of this step is on disk."""
        self.writer.longs[SAVED_STEP] = int(step)
        self.writer.longs[LIFE] += 1

    def asked(self) -> bool:
        """True once when a save is wanted now, at the same beat on every rank. Save and go on; ending the job is ftsup's affair."""
        halves = self.writer.halves
        if not halves[FLAGS] & ASKS:
            halves[FLAGS] |= ASKS
        if not self._due:
            return False
        self._due = False
        self._take()
        return True


class Inside:
    """A phase for the length of a `with` block; afterwards the one before, unless an optimizer step has moved on."""

    def __init__(self, rank: Rank, phase: int) -> None:
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
    from .beatfile import Phase  # noqa: PLC0415 - a script that names phases has imported more than enum by then

    try:
        return Phase[name.upper()]
    except KeyError:
        allowed = ", ".join(phase.name.lower() for phase in Phase)
        message = f"there is no phase {name!r}; allowed: {allowed}"
        raise ValueError(message) from None


def _beats_twice(optimizer: object) -> bool:
    """Its step may be one that calls its parent's, and torch has hung the hook on both: it does once the parent's kind was built too."""
    hooked = [kind for kind in type(optimizer).__mro__ if getattr(vars(kind).get("step"), "hooked", False)]
    return len(hooked) > 1


def _nobody() -> None:
    """No optimizer yet."""


THIS = Rank()
"""The one exception from "no module-level state": a training script calls `beat()` with nothing in hand, and a process is one rank."""
