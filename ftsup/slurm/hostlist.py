"""Slurm's way of writing many node names in few letters, both ways: `n[1-3,07-12],gpu1`, `r[1-2]c[01-04]-ib`.

Text only. What is not a host list is Unreadable; it is never read as "no nodes".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from ftsup.errors import Unreadable

MOST = 1_000_000
"""Names in one list; a longer one is garbage, and must not fill our memory."""
NOTHING = {"", "(null)", "None", "N/A", "None assigned", "n/a"}
"""How Slurm writes an empty list, here and there."""

_PART = re.compile(r"([\w.-]*)(?:\[([\d,-]+)\])?", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Every name of a list, in the order it is written, the rightmost bracket turning fastest."""
    text = text.strip()
    if text in NOTHING:
        return ()
    names: list[str] = []
    for item in _split(text):
        names.extend(itertools.islice(_expand_item(item, text), MOST + 1 - len(names)))
        if len(names) > MOST:
            raise Unreadable(f"a host list of more than {MOST} names: {_short(text)}")
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """A short list that holds each of these names once; prefixes in order of first sight, their numbers sorted."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        prefix, digits, suffix = found.groups() if found else (name, "", "")
        groups.setdefault((prefix, suffix), set()).add(digits)
    return ",".join(item for (prefix, suffix), digits in groups.items() for item in _write(prefix, suffix, digits))


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    items, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            items.append(text[start:at])
            start = at + 1
    return [*items, text[start:]]


def _expand_item(item: str, text: str) -> Iterable[str]:
    choices: list[list[str]] = []
    at = 0
    while at < len(item):
        part = _PART.match(item, at)
        if not part or part.end() == at:
            break
        choices.append([part[1]])
        if part[2]:
            choices.append(_numbers(part[2], text))
        at = part.end()
    if not item or at < len(item):
        raise Unreadable(f"not a host list: {_short(text)}")
    return map("".join, itertools.product(*choices))


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for piece in ranges.split(","):
        found = _RANGE.fullmatch(piece)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not found or high < low:
            raise Unreadable(f"not a range of nodes: {_short(piece)} in {_short(text)}")
        if high - low >= MOST:
            raise Unreadable(f"a host list of more than {MOST} names: {_short(text)}")
        numbers += [f"{number:0{len(found[1])}d}" for number in range(low, high + 1)]
    return numbers


def _write(prefix: str, suffix: str, digits: set[str]) -> Iterator[str]:
    if "" in digits:  # a name without a number
        yield prefix + suffix
    runs: list[list[str]] = []
    for text in sorted(digits - {""}, key=lambda text: (len(text), text)):
        # A range is written out with the width of its first number: 08-10 is 08 09 10, and 8-10 is 8 9 10.
        if runs and text == f"{int(runs[-1][-1]) + 1:0{len(runs[-1][0])}d}":
            runs[-1].append(text)
        else:
            runs.append([text])
    pieces = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(pieces) == 1 and len(runs[0]) == 1:
        yield f"{prefix}{pieces[0]}{suffix}"
    elif pieces:
        yield f"{prefix}[{','.join(pieces)}]{suffix}"


def _short(text: str) -> str:
    return repr(text[:80])
