"""One YAML node -> one value, and the words that say what may stand there.

Owns what each type of value accepts and how a refusal is said. Knows no key, no struct, no file: a refusal is a ValueError, and the
walk (`read`) adds where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import yaml
from msgspec import inspect
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ftsup.nearest import did_you_mean
from ftsup.units import DURATION, SIZE, seconds, size_bytes

Number = TypeVar("Number", int, float)

STR = "tag:yaml.org,2002:str"
NULL = "tag:yaml.org,2002:null"
LISTS = "a list of words, or one text that is split as a shell would"


def plain(type_: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """A type without its Meta, and what the Meta says in `extra`."""
    if isinstance(type_, inspect.Metadata):
        inner, extra = plain(type_.type)
        return inner, {**extra, **(type_.extra or {})}
    return type_, {}


def kind_of(node: Node) -> str:
    """What a node is, for a message."""
    return "keys and values" if isinstance(node, MappingNode) else "a list" if isinstance(node, SequenceNode) else "one value"


def read_scalar(type_: inspect.Type, extra: dict[str, Any], node: Node) -> Any:  # noqa: ANN401 - a value of type_
    """The value of a node that must be one value; ValueError says what is allowed."""
    if not isinstance(node, ScalarNode):
        raise ValueError(wants(type_, extra))  # noqa: TRY004 - a user's value, not our type
    return _READERS[type(type_)](type_, extra, node)


def _yaml_reads(node: ScalarNode) -> str:
    """What YAML makes of a plain value that looks like something else, as a clause; empty where there is no surprise."""
    if node.tag == STR:
        return ""
    if node.tag == NULL:
        return "YAML reads this as null; "
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, yaml.YAMLError):
        value = node.tag.removeprefix("tag:yaml.org,2002:")
    shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    kind = {"bool": "a boolean", "timestamp": "a date"}.get(node.tag.removeprefix("tag:yaml.org,2002:"), "a number")
    return "" if shown == node.value and kind == "a number" else f"YAML reads this as {kind}, {shown}; "


def _read_text(type_: Any, extra: dict[str, Any], node: ScalarNode) -> str:  # noqa: ANN401 - inspect.StrType
    """Text. A number that looks the same to YAML and to us is text too (an account 1234, OMP_NUM_THREADS: 4)."""
    if surprise := _yaml_reads(node):
        quoted = f"write '{node.value}' with the quotes" if node.value else "write '' for an empty text"
        raise ValueError(f"{surprise}{quoted} where a text is meant")
    if "\0" in node.value:
        raise ValueError("holds a NUL character")
    if not fits(type_, node.value):
        raise ValueError(wants(type_, extra))
    return str(node.value)


def fits(type_: Any, text: str) -> bool:  # noqa: ANN401 - inspect.StrType
    """The bounds of a text hold."""
    return len(text) >= (type_.min_length or 0) and (type_.pattern is None or re.search(type_.pattern, text) is not None)


def _read_enum(type_: Any, extra: dict[str, Any], node: ScalarNode) -> Any:  # noqa: ANN401 - inspect.EnumType
    """The word as it is written, so that `off` is `off` although YAML calls it a boolean."""
    words = {member.value: member for member in type_.cls}
    if node.value not in words:
        raise ValueError(wants(type_, extra) + close(node.value, list(words)))
    return words[node.value]


def _read_int(type_: Any, extra: dict[str, Any], node: ScalarNode) -> int:  # noqa: ANN401 - inspect.IntType
    if extra.get("unit") == "size":
        return _within(type_, extra, node, size_bytes)
    if _yaml_reads(node) or node.tag != "tag:yaml.org,2002:int":
        raise ValueError(_yaml_reads(node) + wants(type_, extra))
    return _within(type_, extra, node, int)


def _read_float(type_: Any, extra: dict[str, Any], node: ScalarNode) -> float:  # noqa: ANN401 - inspect.FloatType
    if extra.get("unit") == "duration":
        return _within(type_, extra, node, seconds)
    if not re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", node.value):
        raise ValueError(_yaml_reads(node) + wants(type_, extra))
    return _within(type_, extra, node, float)


def _within(type_: Any, extra: dict[str, Any], node: ScalarNode, parse: Callable[[str], Number]) -> Number:  # noqa: ANN401 - inspect.*Type
    """The number, when it lies in the bounds of its type."""
    try:
        value = parse(node.value)
    except ValueError as error:
        raise ValueError(f"{_yaml_reads(node)}{error}") from None
    bounds = ((type_.ge, value.__ge__), (type_.gt, value.__gt__), (type_.le, value.__le__), (type_.lt, value.__lt__))
    if not all(limit is None or holds(limit) is True for limit, holds in bounds):
        raise ValueError(wants(type_, extra))
    return value


def _read_bool(type_: Any, extra: dict[str, Any], node: ScalarNode) -> bool:  # noqa: ANN401 - inspect.BoolType
    if node.value not in {"true", "false"}:
        raise ValueError(wants(type_, extra))
    return bool(node.value == "true")


_READERS: dict[type, Callable[[Any, dict[str, Any], ScalarNode], Any]] = {
    inspect.StrType: _read_text,
    inspect.EnumType: _read_enum,
    inspect.IntType: _read_int,
    inspect.FloatType: _read_float,
    inspect.BoolType: _read_bool,
}


# Messages -----------------------------------------------------------------------------------------------------------------


def show(node: Node) -> str:
    """A value as it is written, fit for a line."""
    if not isinstance(node, ScalarNode):
        return kind_of(node)
    text = str(node.value)
    text = text if text and text.isprintable() else repr(text)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal holds it


def allowed(type_: inspect.Type) -> str:
    """What may stand there, in words."""
    inner, extra = plain(type_)
    if isinstance(inner, inspect.UnionType):
        return " or ".join(dict.fromkeys(allowed(each) for each in inner.types))
    if isinstance(inner, inspect.VarTupleType):
        return LISTS if extra.get("shell_words") else "a list"
    if "allowed" in extra:
        return str(extra["allowed"])
    bounds = "".join(
        f", {word} {limit:g}{'s' if 'unit' in extra else ''}"
        for word, limit in (("at least", _of(inner, "ge")), ("more than", _of(inner, "gt")), ("at most", _of(inner, "le")))
        if limit is not None and not (extra.get("unit") == "size" or ("unit" in extra and word == "at least"))
    )
    if isinstance(inner, inspect.EnumType):
        return "one of " + ", ".join(str(member.value) for member in inner.cls)
    if isinstance(inner, (inspect.StructType, inspect.DictType)):
        return "keys and values"
    words = {"duration": DURATION, "size": SIZE}.get(extra.get("unit", "")) or _WORDS[type(inner)]
    return words + bounds + (" that is not empty" if getattr(inner, "min_length", None) else "")


_WORDS: dict[type, str] = {
    inspect.StrType: "a text",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
}


def _of(type_: inspect.Type, bound: str) -> float | None:
    return cast("float | None", getattr(type_, bound, None))


def wants(type_: inspect.Type, extra: dict[str, Any]) -> str:
    """The end of a refusal."""
    return f"allowed is {allowed(inspect.Metadata(type_, extra=extra))}"


def close(word: str, words: Sequence[str]) -> str:
    """The nearest word, as the end of a message; empty when none is near."""
    meant = did_you_mean(word, words)
    return f"; {meant}" if meant else ""
