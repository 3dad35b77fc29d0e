"""Keeps the script's own handler for Slurm's warning, and calls it when every rank is at the same beat instead.

Where Slurm sends the warning to all that a step has started, ranks would leave one by one, and data loaders would save. So the signal
stays ignored in this process, whatever the script sets: it gets and sees its own handler, Python's way, and `rank` says when it is
called. Patches `_signal`, which the module `signal` looks into at each call: importing `signal` would cost the start 5 ms.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys

from .counters import HANDLES
from .places import STACK_SIGNAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, Union

    from .rank import Rank

    Handler = Union[Callable[[int, Union[FrameType, None]], Any], int, None]

CALL_SIGNAL = STACK_SIGNAL + 1
"""Brings a call from another thread into the main one; sent only to ourselves."""
_STACKS = (STACK_SIGNAL, _signal.SIGSEGV, _signal.SIGFPE, _signal.SIGABRT, _signal.SIGBUS, _signal.SIGILL)
_PACKAGE = __name__.rpartition(".")[0] + "."


class Kept:
    """What the script has set for one signal, in the process of its rank. A forked child is left to itself."""

    def __init__(self, rank: Rank, number: int) -> None:
        self._rank = rank
        self._number = number
        self._handler: Handler = _signal.SIG_DFL
        self._ours = True
        self._main = _thread.get_ident()
        self._set: Callable[[int, Handler], Handler] = _signal.signal
        self._get: Callable[[int], Handler] = _signal.getsignal

    def begin(self) -> None:
        """From now on; in the main thread."""
        self._set(self._number, _signal.SIG_IGN)
        _signal.signal, _signal.getsignal = self.signal, self.getsignal
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        self._ours = False

    def signal(self, signalnum: int, handler: Handler) -> Handler:
        """Set the action for a signal, as Python's own; the warning's is kept until all ranks are at one beat."""
        if signalnum in _STACKS and handler == _signal.SIG_DFL == self._get(signalnum):
            return handler  # frameworks put back what Python knew of every signal, and of faulthandler's it knows nothing
        if signalnum != self._number or not self._ours:
            return self._set(signalnum, handler)
        if not callable(handler) and handler not in (_signal.SIG_DFL, _signal.SIG_IGN):
            return self._set(signalnum, handler)  # raises
        self._set(signalnum, _signal.SIG_IGN)  # raises in another thread
        before, self._handler = self._handler, handler
        if callable(handler):
            self._set(CALL_SIGNAL, self._called)
        self._rank.handler = self.call if callable(handler) else None
        self._rank.writer.flag(HANDLES, to=callable(handler))
        return before

    def getsignal(self, signalnum: int) -> Handler:
        """Return the action for a signal, as Python's own."""
        return self._handler if signalnum == self._number and self._ours else self._get(signalnum)

    def call(self) -> None:
        """Have the script's handler called in the main thread: at once, or, from another thread, as soon as Python code runs there.

        That is still the same beat on every rank: torch's threads call optimizer hooks while the main one waits for backward to end.
        """
        if _thread.get_ident() == self._main:
            self._raise()
        else:
            _signal.pthread_kill(self._main, CALL_SIGNAL)

    def _called(self, _number: int, _frame: FrameType | None) -> None:
        self._raise()

    def _raise(self) -> None:
        """Python's own way to a handler, with the file descriptor that asyncio waits at."""
        if callable(self._handler):
            self._set(self._number, self._caught)
            _signal.raise_signal(self._number)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._set(number, _signal.SIG_IGN)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            frame = frame.f_back
        if callable(self._handler):
            self._handler(number, frame)


# Processes that the script spawns (data loaders) ----------------------------------------------------------------------


def keep_from_spawned(module: Any, number: int) -> None:  # noqa: ANN401 - a module whose names are put in place
    """Have spawned processes import the script without setting its handler, if it does so on its top level: they are no ranks.

    What `multiprocessing.spawn` sends a new process first gets one more entry. Reading it is all that it takes.
    """
    prepare = module.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        return {**data, __name__: Deaf(number)} if _importable() else data

    module.get_preparation_data = get_preparation_data


def _importable() -> bool:
    """Whether a new interpreter finds us; a script may have changed its environment."""
    ours = os.path.dirname(os.path.dirname(__file__))
    return not sys.flags.ignore_environment and ours in os.environ.get("PYTHONPATH", "").split(os.pathsep)


class Deaf:
    """Makes the process that reads it deaf to what the script's top level sets for a signal."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return deafen, (self._number,)


def deafen(number: int) -> None:
    """In the new process: until it has imported the script, the signal stays as it is, which is ignored."""
    set_action: Callable[[int, Handler], Handler] = _signal.signal
    process = sys.modules["multiprocessing.process"]

    def signal(signalnum: int, handler: Handler) -> Handler:
        if signalnum == number and getattr(process.current_process(), "_inheriting", False):
            return _signal.getsignal(number)  # type: ignore[no-any-return]
        return set_action(signalnum, handler)

    _signal.signal = signal
