"""The word that somebody meant who wrote another one: for commands, keys, runs, nodes and whatever else has a name.

One rule for all of ftsup. Knows no names itself; 20 lines instead of difflib, which takes as long to import as half of `ftsup --help`.
"""

from __future__ import annotations

from collections.abc import Iterable

_CLOSE = 3
"""One slip for each so many letters."""
_SHORT = 3
"""So many letters say what a name begins with."""


def nearest(word: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """The known words that differ by a slip or two, or that begin so; the nearest first, equally near ones in their order."""
    found = []
    for name in dict.fromkeys(known):
        slips = _slips(word.lower(), name.lower())
        if slips <= max(1, len(word) // _CLOSE) and slips < len(word):
            found.append((slips, name))
        elif len(word) >= _SHORT and name.lower().startswith(word.lower()):
            found.append((len(word), name))
    return [name for _, name in sorted(found, key=lambda each: each[0])[:most]]


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1, quote: str = "") -> str:
    """`did you mean this?`, to stand in a message or as a hint; empty when nothing is near."""
    names = [f"{quote}{name}{quote}" for name in nearest(word, known, most=most)]
    return f"did you mean {' or '.join(names)}?" if names else ""


def _slips(one: str, other: str) -> int:
    """Letters to add, drop, change or swap with their neighbour."""
    older: list[int] = []
    old = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        new = [i]
        for j, wanted in enumerate(other, start=1):
            same = letter == wanted or letter + wanted in {"-_", "_-"}
            best = min(new[-1] + 1, old[j] + 1, old[j - 1] + (not same))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, older[j - 2] + 1)
            new.append(best)
        older, old = old, new
    return old[-1]
