"""YAML text -> a struct: every problem of the file at once, each with its line, and where each value came from.

Owns the walk over the YAML nodes, guided by the struct's types. Knows no key of ours: what is allowed comes from the types and
their Meta (`unit`, `shell_words`, `allowed`), and what values must fulfil together from the `check` that is passed in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, inspect
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ftsup.config.tree import compose, mapping, override, read_text, where
from ftsup.config.values import LISTS, NULL, STR, allowed, fits, kind_of, plain, read_scalar, show
from ftsup.errors import ConfigError
from ftsup.nearest import nearest

T = TypeVar("T", bound=msgspec.Struct)

SHOWN = 50
"""Problems that one message lists."""


class Finding(msgspec.Struct, frozen=True):
    """Values that cannot stand beside each other: the key that is to blame, what is wrong, and the keys it looked at."""

    key: str
    message: str
    because_of: tuple[str, ...] = ()


class Loaded(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A configuration, and for each key path where its value came from: `file:line`, `--set`, or `default`."""

    config: T
    sources: dict[str, str]


def read(path: Path, type_: type[T], *, sets: Sequence[str], check: Callable[[T], Iterator[Finding]]) -> Loaded[T]:
    """The struct that a file and `key=value` overrides describe. Raises ConfigError with all that is wrong."""
    root = compose(read_text(path), name=str(path)) or mapping(str(path))
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{where(root)}: {kind_of(root)} instead of keys and values", hint="a configuration begins like `name: my-run`")
    for item in sets:
        override(root, item)
    walk = _Walk()
    config = walk.struct(cast("inspect.StructType", inspect.type_info(type_)), root, "")
    wrong = [problem.key for problem in walk.problems]
    for found in check(config):
        if not any(f"{key}.".startswith((f"{at}.", f"{at}[")) for key in wrong for at in (found.key, *found.because_of)):
            walk.problems.append(_Problem(found.key, walk.sources.get(found.key) or str(path), found.message))
    if walk.problems:
        raise _error(walk.problems)
    return Loaded(config=config, sources=walk.sources)


class _Problem(msgspec.Struct, frozen=True):
    key: str
    where: str
    message: str


_ELSEWHERE = {"script": "command", "cmd": "command", "gpus": "gpus_per_node"}
"""What other programs, and our own options, call a key."""
_BAD: Any = object()
"""Stands for a value whose problem has been noted."""


class _Walk:
    """Goes down the tree, guided by the types; collects problems and sources on the way."""

    def __init__(self) -> None:
        self.problems: list[_Problem] = []
        self.sources: dict[str, str] = {}

    def bad(self, node: Node, key: str, message: str) -> Any:  # noqa: ANN401 - the type of what it stands for
        """Note a problem."""
        self.problems.append(_Problem(key, where(node), message))
        return _BAD

    def struct(self, kind: inspect.StructType, node: Node, path: str) -> Any:  # noqa: ANN401 - an instance of kind.cls
        """A struct. What is missing or bad becomes its default (a required one its example), so that the walk can go on."""
        fields = {field.encode_name: field for field in kind.fields}
        values: dict[str, Any] = {}
        for key, at, inner in self.pairs(node, path):
            full = f"{path}{key}"
            if key not in fields:
                self.bad(at, full, "no such key" + _meant(full, key, kind))
            else:
                if not isinstance(plain(fields[key].type)[0], inspect.StructType):
                    self.sources[full] = where(inner)
                values[fields[key].name] = self.value(fields[key].type, inner, full)
        for name, field in fields.items():
            if field.required and field.name not in values:
                self.bad(node, f"{path}{name}", f"missing; allowed is {allowed(field.type)}")
            if field.name not in values and isinstance(section := plain(field.type)[0], inspect.StructType):
                values[field.name] = self.struct(section, mapping(where(node)), f"{path}{name}.")
            elif field.name not in values:
                self.sources[f"{path}{name}"] = "default"
            if values.get(field.name, _BAD) is _BAD:
                values[field.name] = _fallback(field)
        return kind.cls(**values)

    def pairs(self, node: Node, path: str) -> Iterator[tuple[str, Node, Node]]:
        """Keys (as they are written), their nodes and their values; nothing at all (`slurm:` alone) is an empty mapping."""
        if not isinstance(node, MappingNode):
            if node.tag != NULL:
                self.bad(node, path.rstrip("."), f"{kind_of(node)} where keys and values belong")
            return
        seen: dict[str, Node] = {}
        for at, value in node.value:
            if not isinstance(at, ScalarNode):
                self.bad(at, path.rstrip("."), "a key must be one word")
            elif at.tag == "tag:yaml.org,2002:merge":
                self.bad(at, path + "<<", "merge keys are not read; write the keys here (an alias as a whole value is fine)")
            elif at.value in seen:
                self.bad(at, path + at.value, f"given twice, first at {where(seen[at.value])}; keep one")
            else:
                seen[at.value] = at
                yield at.value, at, value

    def value(self, type_: inspect.Type, node: Node, key: str) -> Any:  # noqa: ANN401 - a value of type_
        """A value of any type that a configuration may have."""
        type_, extra = plain(type_)
        if isinstance(type_, inspect.UnionType):
            type_, extra = _member(type_, node)
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            return self.bad(node, key, f"{node.tag}: tags are not read")
        if isinstance(type_, inspect.NoneType):
            return None
        if isinstance(type_, inspect.StructType):
            return self.struct(type_, node, f"{key}.")
        if isinstance(type_, inspect.DictType):
            return self.mapping(type_, node, key)
        if isinstance(type_, inspect.VarTupleType):
            return self.sequence(type_, extra, node, key)
        return self.scalar(type_, extra, node, key)

    def mapping(self, type_: inspect.DictType, node: Node, key: str) -> Any:  # noqa: ANN401 - a dict or _BAD
        """Free keys, each of the key type."""
        values: dict[str, Any] = {}
        for name, at, inner in self.pairs(node, f"{key}."):
            full = f"{key}.{name}"
            key_type, extra = plain(type_.key_type)
            if not fits(key_type, name):
                self.bad(at, full, f"allowed is {extra['allowed']}")
            values[name] = self.value(type_.value_type, inner, full)
            self.sources[full] = where(inner)
        return _BAD if _BAD in values.values() else values

    def sequence(self, type_: inspect.VarTupleType, extra: dict[str, Any], node: Node, key: str) -> Any:  # noqa: ANN401 - a tuple or _BAD
        """A list; or, where words of a command are meant, one text."""
        if isinstance(node, ScalarNode) and extra.get("shell_words") and node.tag == STR:
            try:
                items: tuple[Any, ...] = tuple(shlex.split(node.value))
            except ValueError as error:
                return self.bad(node, key, f"{show(node)}: cannot be split into words ({str(error).lower()}); allowed is {LISTS}")
        elif isinstance(node, SequenceNode):
            items = tuple(self.value(type_.item_type, item, f"{key}[{i}]") for i, item in enumerate(node.value))
        else:
            return self.bad(node, key, f"{show(node)}: allowed is {LISTS if extra.get('shell_words') else 'a list'}")
        if _BAD in items:
            return _BAD
        if len(items) < (type_.min_length or 0):
            return self.bad(node, key, "empty")
        return items

    def scalar(self, type_: inspect.Type, extra: dict[str, Any], node: Node, key: str) -> Any:  # noqa: ANN401 - a value of type_
        """One value."""
        try:
            return read_scalar(type_, extra, node)
        except ValueError as error:
            return self.bad(node, key, f"{show(node)}: {error}")


def _member(union: inspect.UnionType, node: Node) -> tuple[inspect.Type, dict[str, Any]]:
    """The member of a union that this kind of node can be; else the first, whose message will say what is allowed."""
    members = [plain(each) for each in union.types]
    fitting: list[tuple[type, ...]]
    if isinstance(node, MappingNode):
        fitting = [(inspect.StructType, inspect.DictType)]
    elif isinstance(node, SequenceNode):
        fitting = [(inspect.VarTupleType,)]
    else:
        exact = {NULL: inspect.NoneType, "tag:yaml.org,2002:bool": inspect.BoolType, "tag:yaml.org,2002:int": inspect.IntType}
        fitting = [(exact.get(node.tag, inspect.StrType),), (inspect.StrType,), (inspect.IntType, inspect.FloatType, inspect.EnumType)]
    for kind in fitting:
        for member, extra in members:
            if isinstance(member, kind):
                return member, extra
    return next(each for each in members if not isinstance(each[0], inspect.NoneType))


def _fallback(field: inspect.Field) -> Any:  # noqa: ANN401 - a value of the field's type
    if field.default is not NODEFAULT:
        return field.default
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return example(field)


def example(field: inspect.Field) -> Any:  # noqa: ANN401 - a value of the field's type
    """The example of a required field."""
    assert isinstance(field.type, inspect.Metadata)
    found = (field.type.extra_json_schema or {})["examples"][0]
    return tuple(found) if isinstance(found, list) else found


def _meant(full: str, key: str, kind: inspect.StructType) -> str:
    """The same word in a section below; else the nearest key of this section, or of one below; else what others call so."""
    prefix = full.removesuffix(key)
    here = [field.encode_name for field in kind.fields]
    below: dict[str, str] = {}
    for field in kind.fields:
        if isinstance(section := plain(field.type)[0], inspect.StructType):
            for inner in section.fields:
                below.setdefault(inner.encode_name, f"{field.encode_name}.{inner.encode_name}")
    if key in below:
        return f"; did you mean {prefix}{below[key]}?"
    if near := nearest(key, here):
        return f"; did you mean {prefix}{near[0]}?"
    other = _ELSEWHERE.get(key) or "".join(nearest(key, below))
    if place := other if other in here else below.get(other, ""):
        return f"; did you mean {prefix}{place}?"
    return f"; allowed are {', '.join(here)}"


def _error(problems: Sequence[_Problem]) -> ConfigError:
    ordered = sorted(problems, key=lambda each: int(found[1]) if (found := re.search(r":(\d+)$", each.where)) else 0)
    lines = [": ".join(part for part in (each.where, each.key, each.message) if part) for each in ordered]
    rest = len(lines) - SHOWN
    return ConfigError("\n".join(lines[:SHOWN] + ([f"and {rest} more problems"] if rest > 0 else [])))
