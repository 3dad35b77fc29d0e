"""A first configuration as commented YAML: what was said and what was guessed -> text. Pure; every guess says what it was made from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import msgspec
import yaml

from ftsup.cli.scriptlook import Script

_HEAD = (
    "Written by `ftsup init`. What was guessed says so, and from what: look at it. `ftsup config check` finds mistakes, "
    "`ftsup config full` shows every key with its default and its reason."
)
_WIDTH = 100


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A value and where it comes from; empty: from the person."""

    value: str | int | tuple[str, ...] | None
    why: str = ""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says. None, or an empty text: the key is left out, with its comment where there is one."""

    name: Word
    command: Word
    launch: Word = Word(value=None)
    resume_args: Word = Word(value=None)
    python: Word = Word(value=None)
    saving: str = ""
    """Which of the three levels of saving on request the script is on, and what to do for the next."""
    nodes: Word = Word(value=1)
    gpus: Word = Word(value=None)
    time: Word = Word(value=None)
    partition: Word = Word(value=None)
    account: Word = Word(value=None)
    signal: Word = Word(value=None)
    dir: Word = Word(value=None)
    pattern: Word = Word(value=None)
    complete: Word = Word(value=None)

    @property
    def guesses(self) -> int:
        """How many values nobody said."""
        words = [getattr(self, name) for name in self.__struct_fields__]
        return sum(1 for word in words if isinstance(word, Word) and word.value not in {None, ""} and word.why.startswith("guessed"))


def text(draft: Draft) -> str:
    """The file."""
    slurm = {
        "nodes": draft.nodes, "gpus_per_node": draft.gpus, "time": draft.time, "partition": draft.partition, "account": draft.account,
        "signal": draft.signal,
    }  # fmt: skip
    checkpoint = {"dir": draft.dir, "pattern": draft.pattern, "complete": draft.complete}
    top = {"name": draft.name, "launch": draft.launch, "command": draft.command, "resume_args": draft.resume_args, "python": draft.python}
    lines = [*_comment(_HEAD), "", *_keys(top)]
    for section, keys in (("slurm", slurm), ("checkpoint", checkpoint)):
        body = list(_keys(keys, indent="  "))
        if body:
            empty = not any(_there(word) for word in keys.values())
            lines += ["", f"{'# ' if empty else ''}{section}:", *([f"# {line.replace('# ', '', 1)}" for line in body] if empty else body)]
    if draft.saving:
        lines += ["", *_comment(draft.saving)]
    return "\n".join(lines) + "\n"


def _there(word: Word) -> bool:
    return word.value not in {None, ""}


def _keys(keys: dict[str, Word], *, indent: str = "") -> Iterator[str]:
    for key, word in keys.items():
        line = f"{indent}{key}: {_yaml(word.value)}"
        if not _there(word):
            yield from _comment(f"{key}: {word.why}", indent=indent) if word.why else ()
        elif word.why and len(line) + len(word.why) + 4 > _WIDTH:
            yield from _comment(word.why, indent=indent)
            yield line
        else:
            yield f"{line}  # {word.why}" if word.why else line


def _yaml(value: object) -> str:
    if isinstance(value, tuple):
        value = list(value)
    written: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return written.removesuffix("...\n").strip()


def _comment(words: str, *, indent: str = "") -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(words, width=_WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False, break_long_words=False)


def watching(script: Script) -> str:
    """What ftsup sees of a script that has no optimizer of torch's."""
    if script.torch or script.problem or script.beats:
        return ""
    return (
        f"{script.name} does not import torch: it is watched by its output (a line at least every hang.output), or better by "
        "`from ftsup_worker import beat` and `beat(step=step)` in its loop."
    )


def saving(script: Script, *, command: bool) -> str:
    """The level of the script, and the step to the next."""
    if command:
        return (
            "Saving on request: none with `launch: command`. What was done since the newest checkpoint is done again after a requeue; "
            "under ftsup's own torchrun a script can be asked to save."
        )
    if script.problem:
        return ""
    if script.asks:
        return f"Saving on request: level 3 of 3, {script.asks.where}: all ranks save at the same step, also every checkpoint.every."
    if script.handles:
        return (
            f"Saving on request: level 2 of 3, {script.handles.where}: ftsup calls this handler on every rank at the same step, before "
            "the time limit and on `ftsup stop`. Level 3, asked() in the loop, would also save every checkpoint.every."
        )
    return (
        f"Saving on request: level 1 of 3. {script.name} neither handles SIGUSR1 nor calls asked(): up to one checkpoint interval is "
        "replayed after a requeue. Level 3 is two lines in its loop: `from ftsup_worker import asked`, then on every rank "
        "`if asked(): save(step)`."
    )
