"""The configuration shown: a file with every key, a JSON Schema for editors, and values as they are written.

Everything comes from the types, defaults and descriptions of the keys; nothing is said here a second time.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

import msgspec
import yaml
from msgspec import NODEFAULT, inspect

from ftsup.config.keys import Config
from ftsup.config.read import Loaded, example
from ftsup.config.values import plain
from ftsup.units import DURATION_PATTERN, SIZE_PATTERN, duration, size

_HEAD = """\
# Every key of ftsup at its default, with the reason for it. Printed by `ftsup config full`; a test compares this file with it.
# name and command have no default. Copy what you change; leave out the rest. `ftsup config check FILE` finds mistakes.
"""
_WIDTH = 110


def written(value: Any, type_: inspect.Type) -> str:  # noqa: ANN401 - a value of any key
    """A value as YAML on one line, as `load` reads it back."""
    text = yaml.safe_dump(bare(value, type_), default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def bare(value: Any, type_: inspect.Type) -> Any:  # noqa: ANN401 - YAML's own types
    """A value in YAML's own types, with its unit."""
    type_, extra = plain(type_)
    if isinstance(type_, inspect.UnionType) and value is not None:
        units = [found for member in type_.types for found in [plain(member)[1]] if "unit" in found]
        extra = {**extra, **(units[0] if units else {})}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {key: list(each) if isinstance(each, tuple) else each for key, each in value.items()}
    if value is not None and "unit" in extra:
        return duration(value) if extra["unit"] == "duration" else size(value)
    return value


def default_of(field: inspect.Field) -> Any:  # noqa: ANN401 - a value of the field
    """The default of a key; of one without, its example."""
    if field.required:
        return example(field)
    return field.default if field.default is not NODEFAULT else field.default_factory()


# Every key ----------------------------------------------------------------------------------------------------------------


def full_yaml() -> str:
    """Every key at its default with its description: `configs/full.yaml`."""
    return _HEAD + "\n".join(_keys(_struct(Config), indent="")) + "\n"


def _keys(kind: inspect.StructType, *, indent: str) -> Iterator[str]:
    for field in kind.fields:
        section = plain(field.type)[0]
        yield ""
        if isinstance(section, inspect.StructType):
            yield from _comment(section.cls.__doc__ or "", indent=indent)
            yield f"{indent}{field.encode_name}:"
            yield from _keys(section, indent=indent + "  ")
        else:
            yield from _comment(_description(field), indent=indent)
            yield f"{indent}{field.encode_name}: {written(default_of(field), field.type)}"


def _comment(text: str, *, indent: str) -> list[str]:
    return textwrap.wrap(text, width=_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False)


def _description(field: inspect.Field) -> str:
    assert isinstance(field.type, inspect.Metadata), f"{field.encode_name} has no description"
    return str((field.type.extra_json_schema or {})["description"])


def _struct(type_: type[msgspec.Struct]) -> inspect.StructType:
    return cast("inspect.StructType", inspect.type_info(type_))


# What is in force ---------------------------------------------------------------------------------------------------------


def effective(loaded: Loaded[Config]) -> list[tuple[str, str, str]]:
    """Key path, value as it is written, and source of every key. Values of `env` stay hidden: people paste this into tickets."""
    return list(_effective(_struct(Config), loaded.config, "", loaded.sources))


def _effective(kind: inspect.StructType, section: msgspec.Struct, path: str, sources: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for field in kind.fields:
        inner, key, value = plain(field.type)[0], f"{path}{field.encode_name}", getattr(section, field.name)
        if isinstance(inner, inspect.StructType):
            yield from _effective(inner, value, f"{key}.", sources)
        elif isinstance(value, dict) and value:
            for name, each in value.items():
                shown = "(hidden)" if key == "env" else written(each, cast("inspect.DictType", inner).value_type)
                yield f"{key}.{name}", shown, sources[f"{key}.{name}"]
        else:
            yield key, written(value, field.type), sources[key]


# JSON Schema --------------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """A JSON Schema of the file as people write it, for editors: durations and sizes are texts. `load` knows more than it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ftsup", **_schema(_struct(Config))}


def _schema(type_: inspect.Type) -> dict[str, Any]:
    type_, extra = plain(type_)
    if isinstance(type_, inspect.StructType):
        return {
            "type": "object",
            "description": type_.cls.__doc__,
            "properties": {field.encode_name: _property(field) for field in type_.fields},
            "required": [field.encode_name for field in type_.fields if field.required],
            "additionalProperties": False,
        }
    if isinstance(type_, inspect.UnionType):
        return {"anyOf": [_schema(each) for each in type_.types]}
    if isinstance(type_, inspect.EnumType):
        return {"enum": [member.value for member in type_.cls]}
    if isinstance(type_, inspect.DictType):
        key_type = plain(type_.key_type)[0]
        return {
            "type": "object",
            "propertyNames": {"pattern": getattr(key_type, "pattern", "")},
            "additionalProperties": _schema(type_.value_type),
        }
    if isinstance(type_, inspect.VarTupleType):
        some = {"minItems": type_.min_length} if type_.min_length else {}
        listed = {"type": "array", "items": _schema(type_.item_type), **some}
        return {"anyOf": [listed, {"type": "string", "minLength": type_.min_length or 0}]} if extra.get("shell_words") else listed
    return _scalar_schema(type_, extra)


def _scalar_schema(type_: inspect.Type, extra: dict[str, Any]) -> dict[str, Any]:
    if extra.get("unit") == "duration":
        return {"type": "string", "pattern": DURATION_PATTERN}
    if extra.get("unit") == "size":
        return {"anyOf": [{"type": "string", "pattern": SIZE_PATTERN}, {"const": 0}]}
    if isinstance(type_, inspect.StrType):  # a number that reads the same either way is a text too
        bounds = {"pattern": type_.pattern, "minLength": type_.min_length}
        return {"type": ["string", "number"], **{word: bound for word, bound in bounds.items() if bound is not None}}
    if isinstance(type_, (inspect.IntType, inspect.FloatType)):
        limits: dict[str, float | None] = {"minimum": type_.ge, "maximum": type_.le, "exclusiveMinimum": type_.gt}
        word = "integer" if isinstance(type_, inspect.IntType) else "number"
        return {"type": word, **{name: bound for name, bound in limits.items() if bound is not None}}
    return {"type": {inspect.BoolType: "boolean", inspect.NoneType: "null"}[type(type_)]}


def _property(field: inspect.Field) -> dict[str, Any]:
    inner = _schema(field.type)
    if isinstance(plain(field.type)[0], inspect.StructType):
        return inner
    default = {} if field.required else {"default": bare(default_of(field), field.type)}
    return {"description": _description(field), **default, **inner}


def schema_json() -> str:
    """`schema` as text."""
    return json.dumps(schema(), indent=2) + "\n"
