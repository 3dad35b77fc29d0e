"""YAML text and `key=value` overrides -> one tree of nodes whose marks say where each came from.

Owns reading the file and what is no configuration at all (binary, too large, not YAML). Knows no key and no type.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from ftsup.errors import ConfigError

LARGEST = 256 * 1024
"""Bytes of a file. A configuration has a few kilobytes; anything larger is the wrong file."""
SET = "--set"
"""Where overrides come from."""


def read_text(path: Path) -> str:
    """The text of a file that may be a configuration; ConfigError says why it is none."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > LARGEST:
        raise ConfigError(f"{path}: larger than {LARGEST // 1024} KiB, which no configuration is", hint="is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not text in UTF-8", hint="is it the right file?") from None


def compose(text: str, *, name: str) -> Node | None:
    """The tree of one YAML document; its marks carry `name`."""
    try:
        loader = yaml.SafeLoader(text)
        loader.name = name
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{name}:{mark.line + 1}" if mark else name
        hint = "indent with spaces; YAML allows no tabs there" if "'\\t'" in (error.problem or "") else _YAML_HINT
        raise ConfigError(f"{at}: not YAML: {error.context or ''} {error.problem or ''}".replace(":  ", ": ").rstrip(), hint=hint) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{name}: holds the character {error.character!r}, which is no text", hint="is it the right file?") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply to be a configuration", hint="is it the right file?") from None


_YAML_HINT = "a text with ': ', ' #', quotes or brackets needs quotes around it; every opened quote and bracket must be closed"


def mapping(name: str) -> MappingNode:
    """No keys and values, from there."""
    mark = yaml.Mark(name, 0, 0, 0, None, 0)
    return MappingNode("tag:yaml.org,2002:map", [], mark, mark)


def override(root: MappingNode, item: str) -> None:
    """Put a `key=value` into the tree, instead of what is there."""
    path, equals, value_text = item.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {item}: allowed is --set key=value, such as --set slurm.nodes=4")
    value = compose(value_text, name=SET) or _scalar("")
    at = root
    for key in keys[:-1]:
        old = next((v for k, v in at.value if k.value == key), None)
        inner = mapping(SET)  # a new one: the old one may stand in other places too, by its anchor
        inner.value = list(old.value) if isinstance(old, MappingNode) else []
        at.value = [(k, v) for k, v in at.value if k.value != key] + [(_scalar(key), inner)]
        at = inner
    at.value = [(k, v) for k, v in at.value if k.value != keys[-1]] + [(_scalar(keys[-1]), value)]


def _scalar(text: str) -> ScalarNode:
    mark = yaml.Mark(SET, 0, 0, 0, None, 0)
    return ScalarNode("tag:yaml.org,2002:str" if text else "tag:yaml.org,2002:null", text, mark, mark)


def where(node: Node) -> str:
    """`file:line`, or `--set`."""
    name = str(node.start_mark.name)
    return name if name == SET else f"{name}:{node.start_mark.line + 1}"
