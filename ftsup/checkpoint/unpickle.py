"""Reads what a pickle says without doing it: every class becomes an inert record, nothing is imported or called.

A program of its own (`pickles.py` starts it), so that a pickle made to harm ends a child with limits and not us. Imports the standard
library only, and knows which names and storages torch's pickles hold; not what a checkpoint is.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

NODES_CAP = 2_000_000
"""Objects looked at in one pickle: shared parts count once, so that what refers to itself does not grow."""
DEPTH_CAP = 200
NAME_CAP = 500
MODULE_PARTS = {"_parameters", "_buffers", "_modules"}
"""A pickled torch module holds its tensors in these; a state dict's names leave them out."""

DCP_MODULE = "torch.distributed.checkpoint.metadata"
DCP_KINDS = {"TensorStorageMetadata", "BytesStorageMetadata", ""}


class Record:
    """What an object would have been made of."""

    __slots__ = ("args", "items", "state")
    origin = ("", "")

    def __new__(cls, *args: object, **_: object) -> Record:  # noqa: PYI034 - Self needs 3.11, or a package
        """Keep the arguments."""
        made = object.__new__(cls)
        made.args = args
        made.items = None
        made.state = None
        return made

    args: tuple[object, ...]
    items: list[tuple[object, object]] | None
    state: object

    def __call__(self, *args: object, **_: object) -> Record:
        """What a call would have returned."""
        return Record(self, *args)

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        self.items = self.items or []
        self.items.append((key, value))

    def append(self, value: object) -> None:
        """For a subclass of list."""
        self[len(self.items or [])] = value

    add = append


class Inert(pickle.Unpickler):
    """An unpickler in which names lead to records."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")  # what Python 2 wrote
        self._known: dict[tuple[str, str], type[Record]] = {}

    def find_class(self, module: str, name: str) -> type[Record]:
        """A record class of this origin."""
        key = (str(module), str(name))
        if key not in self._known:
            self._known[key] = type("Named", (Record,), {"__slots__": (), "origin": key})
        return self._known[key]

    def persistent_load(self, pid: object) -> Persistent:
        """torch's storages: ("storage", type, key, location, number of elements, ...)."""
        return Persistent(pid)


class Persistent:
    """A reference to what lies outside of the pickle."""

    __slots__ = ("pid",)

    def __init__(self, pid: object) -> None:
        self.pid = pid


def tensors(root: object) -> Iterator[tuple[str, str, str, int]]:
    """The dotted name, storage key, storage type and number of elements of every storage, by the first name that leads to it."""
    stack: list[tuple[object, tuple[str, ...]]] = [(root, ())]
    seen: set[int] = set()
    while stack:
        found, name = stack.pop()
        if isinstance(found, Persistent):
            pid = found.pid
            if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[4], int):  # noqa: PLR2004
                origin = getattr(pid[1], "origin", ("", ""))
                yield ".".join(name)[:NAME_CAP], str(pid[2]), str(origin[1]), pid[4]
            continue
        if id(found) in seen or len(name) > DEPTH_CAP:
            continue
        seen.add(id(found))
        if len(seen) > NODES_CAP:
            raise ValueError(f"more than {NODES_CAP} objects")
        stack.extend(reversed([(child, name if part is None else (*name, part)) for part, child in _children(found)]))


def _children(found: object) -> Iterator[tuple[str | None, object]]:
    if isinstance(found, dict):
        yield from ((_part(key), value) for key, value in found.items())
    elif isinstance(found, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(found) if not isinstance(value, str | int | float | bool | None))
    elif isinstance(found, Record):
        yield from ((None, value) for value in found.args)
        yield from ((_part(key), value) for key, value in found.items or ())
        yield (None, found.state)


def _part(key: object) -> str | None:
    text = str(key) if isinstance(key, str | int | bool) else "?"
    return None if text in MODULE_PARTS else text[:NAME_CAP]


def torch_names(file: BinaryIO) -> dict[str, object]:
    """Of torch.save's data.pkl: which tensor lies in which storage."""
    return {"storages": _storages(Inert(file).load())}


def torch_legacy(file: BinaryIO) -> dict[str, object]:
    """Of a file from before torch 1.6: the storages in the order in which they follow, and where they begin."""
    magic, protocol, system = (Inert(file).load() for _ in range(3))
    root = Inert(file).load()
    keys = Inert(file).load()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise TypeError("its list of storages is damaged")
    little = bool(system.get("little_endian", True)) if isinstance(system, dict) else True
    return {
        "magic": f"{magic:x}"[:40] if isinstance(magic, int) else "",
        "protocol": protocol if isinstance(protocol, int) and abs(protocol) < 1 << 31 else 0,
        "little_endian": little,
        "at": file.tell(),
        "keys": keys,
        "storages": _storages(root),
    }


def _storages(root: object) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name, key, kind, elements in tensors(root):
        found.setdefault(key, {"name": name, "type": kind, "elements": elements if 0 <= elements < 1 << 62 else -1})
    return found


def dcp(file: BinaryIO) -> dict[str, object]:
    """Of torch.distributed.checkpoint's .metadata: each item's file, place, length and name."""
    state = _state(Inert(file).load(), "Metadata")
    items = []
    for index, info in state["storage_data"].items():
        where = info.state
        fqn = _state(index, "MetadataIndex")["fqn"]
        module, kind = getattr(state["state_dict_metadata"].get(fqn), "origin", (DCP_MODULE, ""))
        if module != DCP_MODULE or kind not in DCP_KINDS:
            raise TypeError(f"{str(fqn)[:NAME_CAP]} is described by {module[:NAME_CAP]}.{kind[:NAME_CAP]}")
        items.append(
            {
                "file": str(where["relative_path"]),
                "offset": int(where["offset"]),
                "length": int(where["length"]),
                "name": str(fqn)[:NAME_CAP],
                "kind": str(kind),
                "plain": not where.get("transform_descriptors"),
            }
        )
    return {"items": items, "names": [str(name)[:NAME_CAP] for name in state["state_dict_metadata"]]}


def _state(found: Record, name: str) -> dict[str, Any]:
    if found.origin != (DCP_MODULE, name) or not isinstance(found.state, dict):
        raise TypeError(f"no {name} where one has to be")
    return found.state


QUESTIONS: dict[str, Callable[[BinaryIO], dict[str, object]]] = {"torch": torch_names, "legacy": torch_legacy, "dcp": dcp}


def limit(*, memory_bytes: int, cpu_s: int) -> None:
    """From here on no more than this, and no file, process or core dump."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(words: list[str]) -> int:
    """`QUESTION FILE OFFSET LENGTH MEMORY-BYTES CPU-SECONDS`: one line of JSON, the answer or `{"why": ...}`."""
    question, path, offset, length, memory, cpu = words
    with Path(path).open("rb") as file:
        limit(memory_bytes=int(memory), cpu_s=int(cpu))
        file.seek(int(offset))
        source: Any = io.BytesIO(file.read(int(length))) if length != "0" else file
        try:
            answer = QUESTIONS[question](source)
            text = json.dumps(answer)
        except Exception as error:  # noqa: BLE001 - whatever a hostile pickle makes the unpickler raise, MemoryError and RecursionError among it
            source = answer = None
            text = json.dumps({"why": f"{type(error).__name__}: {str(error)[:200]}", "limit": isinstance(error, MemoryError)})
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
