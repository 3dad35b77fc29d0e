"""Waits for the script to import what can be watched, and then lets `wraps` hang something on it.

Never imports torch by itself: it only looks on while the script imports. What is hung where is the table `wraps.FOUND`.
"""

from __future__ import annotations

import sys

from .counters import IN_IMPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from . import wraps
    from .rank import Rank

WATCHED = frozenset(
    {
        "multiprocessing.spawn",
        "torch.optim.optimizer",
        "torch.utils.data.dataloader",
        "torch.serialization",
        "torch.distributed.checkpoint.state_dict_saver",
        "safetensors.torch",
        "transformers.trainer",
        "lightning.fabric.utilities.cloud_io",
        "lightning_fabric.utilities.cloud_io",
    }
)
"""The keys of `wraps.FOUND`, which a script without torch need not import."""


def install(rank: Rank) -> None:
    """Watch this process, from the moment that torch is there."""
    finder = _Waiting(rank)
    sys.meta_path.insert(0, finder)
    for name in sorted(WATCHED):
        if name in sys.modules:
            finder.found(sys.modules[name])


class _Waiting:
    """A finder for sys.meta_path. Without importlib.abc's base class, which costs 5 ms to import."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._background: wraps.Background | None = None
        self._found: dict[str, ModuleType] = {}
        self._asking: set[str] = set()
        """Names that we ask the other finders for: those who ask around themselves must not have us ask again."""

    def found(self, module: ModuleType) -> None:
        """The script's import must not fail because a version of torch is not as we know it."""
        from . import wraps  # noqa: PLC0415 - a script without torch never needs it

        if self._found.get(module.__name__) is module:  # two finders that wrap each other's loaders
            return
        self._found[module.__name__] = module
        try:
            self._background = self._background or wraps.Background(self._rank)
            wraps.FOUND[module.__name__](self._rank, module, self._background)
        except Exception as error:  # noqa: BLE001 - around what must never raise into training
            sys.stderr.write(f"ftsup: {module.__name__} is not watched: {error!r}\n")

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch":
            self._rank.reach(IN_IMPORT)
        if name not in WATCHED or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = self._ask(name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _after_import(spec.loader, name, self.found)
        return spec

    def _ask(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None


def _after_import(loader: Any, name: str, then: Callable[[ModuleType], None]) -> None:  # noqa: ANN401 - any object may be a loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        if module.__name__ == name:  # a loader may be that of many modules
            then(module)

    loader.exec_module = exec_module
