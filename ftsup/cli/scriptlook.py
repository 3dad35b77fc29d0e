"""What a training script tells about itself, from its text: how it is told to resume, where it saves, whether it can be asked to.

Reads the script and the modules beside it that it imports; never runs or imports them. All of it are guesses, each with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from ftsup.cli.scriptpaths import UNKNOWN, Names, tail

_LARGEST = 1 << 20
_MODULES = 20
"""Files that are read: the script, and what it imports from beside it."""
RESUME = (
    "resume_from_checkpoint", "resume_from", "resume_checkpoint", "resume_ckpt", "resume_path", "resume", "ckpt_path", "from_checkpoint",
    "load_checkpoint", "load_ckpt", "load_from", "restore_from", "restore_checkpoint", "restore", "load", "checkpoint_path",
)  # fmt: skip
"""Options that name a checkpoint to go on from, the surest first."""
_OPTIONS = {"add_argument", "option", "Option", "DEFINE_string", "DEFINE_bool"}
_SWITCHES = {"store_true", "store_false", "BooleanOptionalAction"}
_SAVERS = {"dcp", "checkpoint", "dist_cp", "DCP"}
"""What torch.distributed.checkpoint is imported as."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the script, and where: `train.py:41 --resume`."""

    what: str
    where: str


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """An option of the script's command line."""

    flag: str
    where: str
    takes_value: bool = True

    @property
    def dest(self) -> str:
        """As the parser calls it."""
        return self.flag.lstrip("-").replace("-", "_")


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """A place where checkpoints are written."""

    dir: str
    """Empty: only a run knows."""
    pattern: str
    where: str
    complete: str = ""

    @property
    def sure(self) -> int:
        """How much of it is known."""
        return 2 * bool(self.dir) + (UNKNOWN in self.pattern)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `problem`: why there is nothing, where the text cannot be read."""

    name: str
    problem: str = ""
    torch: bool = False
    resume: Option | None = None
    given: Seen | None = None
    """Where it reads FTSUP_RESUME_FROM."""
    chooses: Seen | None = None
    """Where it looks for the newest checkpoint itself."""
    save: Save | None = None
    handles: Seen | None = None
    asks: Seen | None = None
    beats: Seen | None = None


def look(words: Sequence[str], *, folder: Path) -> Script:
    """The script at the head of a command: `train.py --lr 1`, `-m package.train`."""
    name, paths = _places(words, folder)
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        return Script(name=name, problem=f"{name} is not there" if paths else f"{name} is no Python file")
    try:
        files = list(_files(path, folder))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return Script(name=name, problem=f"{name}{line} cannot be read as Python ({getattr(error, 'msg', None) or error})")
    return _Look(files, words=words).script(name)


def _places(words: Sequence[str], folder: Path) -> tuple[str, list[Path]]:
    if words[0] == "-m" and len(words) > 1:
        place = folder.joinpath(*words[1].split("."))
        return words[1], [place.with_suffix(".py"), place / "__main__.py"]
    scripts = [word for word in words if word.endswith(".py")]
    return (scripts[0], [folder / scripts[0]]) if scripts else (words[0], [])


def _files(path: Path, folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """The script, then what it imports from beside it."""
    todo, done = [path], set[Path]()
    while todo and len(done) < _MODULES:
        file = todo.pop(0)
        if file in done:
            continue
        done.add(file)
        with file.open("rb") as opened:
            tree = ast.parse(opened.read(_LARGEST), filename=file.name)
        yield (str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)), tree
        todo += [found for name in _imported(tree) for found in (_module(path.parent, name), _module(folder, name)) if found]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(folder: Path, name: str) -> Path | None:
    place = folder.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


class _Look:
    """One look at all of the files."""

    def __init__(self, files: list[tuple[str, ast.Module]], *, words: Sequence[str]) -> None:
        self.files = files
        self.words = words
        self.roots = {name.split(".")[0] for _, tree in files for name in _imported(tree)}
        self.calls = [(file, node) for file, tree in files for node in ast.walk(tree) if isinstance(node, ast.Call)]

    def script(self, name: str) -> Script:
        options = list(self._options())
        ranked = sorted((each for each in options if each.dest in RESUME), key=lambda each: (not each.takes_value, RESUME.index(each.dest)))
        return Script(
            name=name,
            torch=bool(self.roots & {"torch", "lightning", "pytorch_lightning", "transformers", "accelerate"}),
            resume=ranked[0] if ranked else None,
            given=self._constant("FTSUP_RESUME_FROM"),
            chooses=self._chooses(),
            save=max(self._saves(), key=lambda each: each.sure, default=None),
            handles=self._handler(),
            asks=self._called({"asked", "SaveWhenAsked"}),
            beats=self._called({"beat"}) if self.roots & {"ftsup", "ftsup_worker"} else None,
        )

    def _options(self) -> Iterator[Option]:
        """argparse, click, typer, absl; and the fields of dataclasses where HfArgumentParser makes options of them."""
        for file, call in self.calls:
            flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            flags = [f"--{flag}" for flag in flags[:1]] if tail(call).startswith("DEFINE_") else [f for f in flags if f.startswith("--")]
            if flags and tail(call) in _OPTIONS:
                action = [
                    ast.unparse(word.value).strip("'\"").split(".")[-1] for word in call.keywords if word.arg in {"action", "is_flag"}
                ]
                switch = bool(set(action) & {*_SWITCHES, "True"}) or tail(call) == "DEFINE_bool"
                yield Option(flag=flags[0], where=f"{file}:{call.lineno} {flags[0]}", takes_value=not switch)
        if any(tail(call) == "HfArgumentParser" for _, call in self.calls):
            (place, *_) = [f"{file}:{call.lineno}" for file, call in self.calls if tail(call) == "HfArgumentParser"]
            yield Option(flag="--resume_from_checkpoint", where=f"{place} HfArgumentParser")

    def _constant(self, text: str) -> Seen | None:
        for file, tree in self.files:
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node.value == text:
                    return Seen(what=text, where=f"{file}:{node.lineno} {text}")
        return None

    def _chooses(self) -> Seen | None:
        """Trainer.train(resume_from_checkpoint=True), fit(ckpt_path="last")."""
        for file, call in self.calls:
            for word in call.keywords:
                own = isinstance(word.value, ast.Constant) and word.value.value in {True, "last", "best", "hpc"}
                if word.arg in {"resume_from_checkpoint", "ckpt_path"} and own:
                    said = f"{word.arg}={ast.unparse(word.value)}"
                    return Seen(what=said, where=f"{file}:{call.lineno} {said}")
        return None

    def _handler(self) -> Seen | None:
        for file, call in self.calls:
            signals = [ast.unparse(each).split(".")[-1] for each in call.args[:1]]
            if tail(call) == "signal" and signals and signals[0] in {"SIGUSR1", "SIGUSR2"}:
                return Seen(what=signals[0], where=f"{file}:{call.lineno} signal.signal({signals[0]}, ...)")
        return None

    def _called(self, functions: set[str]) -> Seen | None:
        """Where ftsup's own functions are called."""
        found = [(file, call) for file, call in self.calls if tail(call) in functions]
        return Seen(what=tail(found[0][1]), where=f"{found[0][0]}:{found[0][1].lineno} {tail(found[0][1])}()") if found else None

    # Where it saves -------------------------------------------------------------------------------------------------------

    def _saves(self) -> Iterator[Save]:
        for file, tree in self.files:
            names = Names(tree, options=self._defaults())
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (found := self._save(node, names, file)):
                    yield found
        folder = self._word("output_dir")
        if "transformers" in self.roots and folder:
            yield _hugging_face(folder, f"--output_dir {folder} on the command line")

    def _save(self, call: ast.Call, names: Names, file: str) -> Save | None:
        base = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        given = {word.arg: word.value for word in call.keywords}
        at = f"{file}:{call.lineno} {ast.unparse(call.func)}(...)"
        name = tail(call)
        if name.endswith("TrainingArguments") and "output_dir" in given:
            return _hugging_face(names.glob(given["output_dir"]), at)
        if name == "ModelCheckpoint":
            folder = names.glob(given["dirpath"]) if "dirpath" in given else UNKNOWN
            return Save(dir="" if UNKNOWN in folder else folder, pattern="*.ckpt", where=at)
        target = None
        if name == "save" and base == "torch":
            target = given.get("f") or (call.args[1] if len(call.args) > 1 else None)
        elif name in {"save", "async_save"} and base.split(".")[-1] in _SAVERS:
            target = given.get("checkpoint_id")
        elif name in {"save_state", "save_checkpoint"} and base:
            target = given.get("output_dir") or given.get("save_dir") or (call.args[0] if call.args else None)
        return None if target is None else _place(names.final(names.glob(target)), at)

    def _defaults(self) -> dict[str, ast.expr | str]:
        """What the script's options are: as the command says, else their default."""
        found: dict[str, ast.expr | str] = {}
        for _, call in self.calls:
            flags = [each.value for each in call.args if isinstance(each, ast.Constant) and str(each.value).startswith("--")]
            default = [word.value for word in call.keywords if word.arg == "default"]
            for flag in [str(flag).lstrip("-").replace("-", "_") for flag in flags if tail(call) in _OPTIONS]:
                value = self._word(flag)
                if value or default:
                    found.setdefault(flag, value or default[0])
        return found

    def _word(self, dest: str) -> str:
        """The value of an option on the command line."""
        for flag in (f"--{dest}", f"--{dest.replace('_', '-')}"):
            for at, word in enumerate(self.words):
                if word == flag and at + 1 < len(self.words):
                    return self.words[at + 1]
                if word.startswith(f"{flag}="):
                    return word.partition("=")[2]
        return ""


def _hugging_face(folder: str, where: str) -> Save:
    """Trainer's own names; it writes trainer_state.json last."""
    return Save(dir="" if UNKNOWN in folder else folder, pattern="checkpoint-*", where=where, complete="trainer_state.json")


def _place(glob: str, where: str) -> Save | None:
    """A path with `*` in it -> the directory before the first one, and a pattern below it."""
    parts = list(PurePosixPath(glob).parts)
    if not parts or not glob.strip("*/."):
        return None
    first = next((at for at, part in enumerate(parts) if UNKNOWN in part), len(parts) - 1)
    if parts[first] == UNKNOWN and first == 0:  # the folder itself is unknown
        rest = "/".join(parts[1:])
        return Save(dir="", pattern=rest, where=where) if rest.strip("*/") else None
    return Save(dir=str(PurePosixPath(*parts[:first])) if first else ".", pattern="/".join(parts[first:]), where=where)
