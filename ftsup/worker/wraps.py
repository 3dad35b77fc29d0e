"""What is hung on torch once the script has imported it: the optimizer hook, the batches of a DataLoader, the saves.

Names that are not public are probed: without one its sign of life is missing, and nothing breaks. A wrapped function keeps its name,
signature and module; nothing else of torch is changed, and torch is never imported from here.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import threading

from . import flight, places, warning
from .counters import (
    BEATS,
    IN_CHECKPOINT,
    IN_EVALUATION,
    IN_FIRST_STEP,
    IN_INIT,
    IN_STEP,
    LIFE,
    PHASE,
    WRITING,
)  # fmt: skip
from .rank import Inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .rank import Rank

    Hang = Callable[[Rank, ModuleType, "Background"], None]

_COUNT = "_num_yielded"
_KEPT = "_ftsup_num_yielded"


# Optimizers -----------------------------------------------------------------------------------------------------------


def optimizers(rank: Rank, module: ModuleType, _background: Background) -> None:
    """Beat at every optimizer step: torch's own hook, which is public."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return
    rank.reach(IN_INIT)
    flight.name_for(str(getattr(sys.modules.get("torch"), "__version__", "")))
    register(rank.optimizer_stepped)
    _when_one_is_built(getattr(module, "Optimizer", None), rank.optimizer_built)


def _when_one_is_built(optimizer: Any, then: Callable[[], None]) -> None:  # noqa: ANN401 - torch is Any here
    """Call `then` whenever an optimizer is made, through a private step of its constructor that cannot fail."""
    patch: Callable[[object], None] | None = getattr(optimizer, "_patch_step_function", None)
    if patch is None:
        return

    def patch_step_function(self: object) -> None:
        patch(self)
        then()

    optimizer._patch_step_function = patch_step_function  # noqa: SLF001


# Batches --------------------------------------------------------------------------------------------------------------


def batches(rank: Rank, module: ModuleType, _background: Background) -> None:
    """A batch that a DataLoader hands out is a sign of life; one that is taken without gradients belongs to an evaluation.

    Every iterator of torch's counts its batches in one attribute. We look on there, and not in `__next__`: that adds no frame to the
    tracebacks of data loaders, and moves no warning to another line.
    """
    iterator: Any = getattr(module, "_BaseDataLoaderIter", None)
    code = getattr(getattr(iterator, "__next__", None), "__code__", None)
    if code is None or _COUNT not in code.co_names or hasattr(iterator, _COUNT):
        return
    writer, with_gradients = rank.writer, _with_gradients()
    training = _Evaluations(rank, with_gradients)

    def taken(self: Any, number: int, life: int = LIFE) -> None:  # noqa: ANN401 - an iterator
        self._ftsup_num_yielded = number
        writer.longs[life] += 1
        if training.unusual or not with_gradients():
            training.batch()

    setattr(iterator, _COUNT, property(operator.attrgetter(_KEPT), taken))


def _with_gradients() -> Callable[[], bool]:
    """torch.is_grad_enabled, by the place where it is already while torch is still being imported."""
    for name in ("torch._C", "torch"):
        found: Callable[[], bool] | None = getattr(sys.modules.get(name), "is_grad_enabled", None)
        if found is not None:
            return found
    return lambda: True


class _Evaluations:
    """Tells evaluation from training by how batches are taken. What the script itself says of its phases stays as it is."""

    def __init__(self, rank: Rank, with_gradients: Callable[[], bool]) -> None:
        self._rank = rank
        self._with_gradients = with_gradients
        self.unusual = True
        """Not in the midst of training: the next batch may tell something, though it is taken with gradients."""
        self._before: tuple[int, int] | None = None
        """(phase, beats) where we called it an evaluation."""

    def batch(self) -> None:
        writer, training = self._rank.writer, self._with_gradients()
        phase, beats = writer.halves[PHASE], writer.words[BEATS]
        self.unusual = phase != IN_STEP or not training
        if phase in (IN_FIRST_STEP, IN_STEP) and not training:
            self._before = (phase, beats)
            self._rank.enter(IN_EVALUATION)
        elif phase == IN_EVALUATION and training and self._before is not None and self._before[1] == beats:
            self._rank.enter(self._before[0])
            self._before = None
        elif phase == IN_INIT and training:
            self._rank.batch_taken_without_optimizer()


def trainer(rank: Rank, module: ModuleType, _background: Background) -> None:
    """HF Trainer takes the batches of its evaluations with gradients: they are known by its methods."""
    kind: Any = getattr(module, "Trainer", None)
    for name in ("evaluate", "predict"):
        method = getattr(kind, name, None)
        if callable(method):
            setattr(kind, name, _evaluate(rank, method))


def _evaluate(rank: Rank, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def evaluating(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        with Inside(rank, IN_EVALUATION):
            return method(*args, **kwargs)

    return evaluating


# Saves ----------------------------------------------------------------------------------------------------------------


class Background:
    """Saves in flight in the background. Counted under a lock: threads end whenever they like."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of our threads, and perhaps a lock that one of them held."""
        self._lock = threading.Lock()
        self._count = 0

    def more(self, change: int) -> None:
        """So many more, or less, are being written."""
        with self._lock:
            self._count += change
            self._rank.writer.halves[WRITING] = min(max(self._count, 0), 0xFFFF)
        self._rank.writer.longs[LIFE] += 1


class Saving:
    """A save, for a `with` block: in the main thread it is the phase "checkpoint", in another one it is in flight in the background."""

    def __init__(self, rank: Rank, background: Background) -> None:
        self._background = background
        self._inside = Inside(rank, IN_CHECKPOINT) if threading.current_thread() is threading.main_thread() else None

    def __enter__(self) -> None:
        if self._inside:
            self._inside.__enter__()
        else:
            self._background.more(1)

    def __exit__(self, *_: object) -> None:
        if self._inside:
            self._inside.__exit__()
        else:
            self._background.more(-1)


def saves(*names: str) -> Hang:
    """These functions of a module save, and come back when they have."""

    def wrap(rank: Rank, module: ModuleType, background: Background) -> None:
        for name in names:
            _replace(module, name, lambda save: _save(rank, background, save))

    return wrap


def _save(rank: Rank, background: Background, save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        with Saving(rank, background):
            return save(*args, **kwargs)

    return saving


def dcp(rank: Rank, module: ModuleType, background: Background) -> None:
    """torch.distributed.checkpoint: what blocks is a save; what async_save leaves behind is in flight until its future is done."""
    saves("save", "save_state_dict")(rank, module, background)
    _replace(module, "async_save", lambda save: _async_save(rank, background, save))


def _async_save(rank: Rank, background: Background, save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def async_saving(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        with Saving(rank, background):
            begun = save(*args, **kwargs)
            when_done = getattr(getattr(begun, "upload_completion", begun), "add_done_callback", None)
            if when_done is not None:
                background.more(1)
                when_done(lambda _future: background.more(-1))
            return begun

    return async_saving


def _replace(module: ModuleType, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """In its module, and in the packages above it that had the name from there before we came."""
    found = getattr(module, name, None)
    if not callable(found):
        return
    wrapped = wrap(found)
    parts = module.__name__.split(".")
    for depth in range(len(parts), 0, -1):
        holder = sys.modules.get(".".join(parts[:depth]))
        if holder is not None and getattr(holder, name, None) is found:
            setattr(holder, name, wrapped)


# Processes ------------------------------------------------------------------------------------------------------------


def spawned(_rank: Rank, module: ModuleType, _background: Background) -> None:
    """A data loader's worker imports the script anew, and is no rank."""
    number = os.environ.get(places.WARNING, "")
    if number.isdigit():
        warning.keep_from_spawned(module, int(number))


FOUND: dict[str, Hang] = {
    "multiprocessing.spawn": spawned,
    "torch.optim.optimizer": optimizers,
    "torch.utils.data.dataloader": batches,
    "torch.serialization": saves("save"),
    "torch.distributed.checkpoint.state_dict_saver": dcp,
    "safetensors.torch": saves("save_file"),  # HF Trainer's checkpoints
    "transformers.trainer": trainer,
    "lightning.fabric.utilities.cloud_io": saves("_atomic_save"),  # Lightning's: torch.save into memory, and then this to the disk
    "lightning_fabric.utilities.cloud_io": saves("_atomic_save"),
}
"""Module -> what is hung on it as soon as it is imported. `torchhook` waits for these names."""
