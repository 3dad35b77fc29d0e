"""Waits for the script to import torch, then hangs the beat on every optimizer step.

Never imports torch by itself, changes nothing else of it, and removes itself from the import path when it is done. Names of torch
that are not public are probed; without them a phase is not told, and nothing breaks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .beatfile import Phase
from .rank import Rank

TARGET = "torch.optim.optimizer"


def install(rank: Rank) -> None:
    """Beat at every optimizer step of this process, from the moment that torch is there."""
    module = sys.modules.get(TARGET)
    if module is not None:
        _hook(rank, module)
    else:
        sys.meta_path.insert(0, _Waiting(rank))


class _Waiting:
    """A finder for sys.meta_path. Without importlib.abc's base class, which costs 5 ms to import."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch":
            self._rank.reach(Phase.IMPORT)
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = _found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:
            _after_import(spec.loader, lambda module: _hook(self._rank, module))
        return spec


def _found_by_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _after_import(loader: Any, then: Callable[[ModuleType], None]) -> None:  # noqa: ANN401 - any object may be a loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        then(module)

    loader.exec_module = exec_module


def _hook(rank: Rank, module: ModuleType) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return
    rank.reach(Phase.INIT)
    register(rank.optimizer_stepped)
    _when_first_built(getattr(module, "Optimizer", None), lambda: rank.reach(Phase.FIRST_STEP))


def _when_first_built(optimizer: Any, then: Callable[[], None]) -> None:  # noqa: ANN401 - torch is Any here
    """Call `then` once, when the first optimizer is made, through a private step of its constructor that cannot fail."""
    patch: Callable[[object], None] | None = getattr(optimizer, "_patch_step_function", None)
    if patch is None:
        return

    def patch_step_function(self: object) -> None:
        optimizer._patch_step_function = patch  # noqa: SLF001
        then()
        patch(self)

    optimizer._patch_step_function = patch_step_function  # noqa: SLF001
