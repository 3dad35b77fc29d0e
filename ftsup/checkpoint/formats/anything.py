"""What no kind's rule speaks for: any directory, any other file. Nobody can say that it is whole; that it is not, often.

The parts of a directory that are of a known kind (a torch.save file, a safetensors file, a directory of torch.distributed.checkpoint inside
it) are held against their own rules: one that is torn makes the whole torn, and all of them whole make it nothing.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ftsup.checkpoint.disk import files_below
from ftsup.checkpoint.formats import dcp, safetensors, torch_legacy, torch_zip
from ftsup.checkpoint.formats.kind import Completeness, Format, Kind, Place, Problem, Report, Whole
from ftsup.ports import Disk, What

FILES = (torch_zip.FORMAT, torch_legacy.FORMAT, safetensors.FORMAT)
MARKER_HINT = "checkpoint.complete can name a file that is written last"


def is_folder(disk: Disk, path: Path) -> bool:
    """Any directory."""
    facts = disk.look(path)
    return facts is not None and facts.what is What.FOLDER


def is_file(disk: Disk, path: Path) -> bool:
    """Any file."""
    facts = disk.look(path)
    return facts is not None and facts.what is What.FILE


def complete_folder(disk: Disk, path: Path) -> Completeness:
    """Torn where a part is; else nobody knows."""
    files = tuple(files_below(disk, path))
    if not files:
        return Completeness(whole=Whole.NO, why="empty")
    for prefix, part in _parts(disk, path, files):
        found = part.complete(disk, path / prefix)
        if found.whole is Whole.NO:
            return Completeness(whole=Whole.NO, why=f"{prefix}: {found.why}", files=files)
    why = f"a directory in which nothing says that it is whole ({MARKER_HINT})"
    return Completeness(whole=Whole.UNKNOWN, why=why, files=files)


def check_folder(disk: Disk, path: Path) -> Report:
    """The parts of a known kind; of the others nothing can be said."""
    files = tuple(files_below(disk, path))
    problems: list[Problem] = []
    blind: set[str] = set()
    seen: set[str] = set()
    for prefix, part in _parts(disk, path, files):
        report = part.check(disk, path / prefix)
        problems += [_below(prefix, problem) for problem in report.problems]
        blind |= {report.blind} - {""}
        seen |= {file for file in files if file == prefix or file.startswith(f"{prefix}/")}
    unseen = [file for file in files if file not in seen]
    if unseen:
        blind.add(f"{len(unseen)} files are of no known kind ({unseen[0]})")
    return Report(problems=tuple(problems), blind="; ".join(sorted(blind)))


def locate_folder(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """As the part says."""
    for prefix, part in _parts(disk, path, tuple(files_below(disk, path))):
        if file == prefix or file.startswith(f"{prefix}/"):
            return part.locate(disk, path / prefix, file.removeprefix(prefix).lstrip("/"), where)
    return ()


def complete_file(disk: Disk, path: Path) -> Completeness:
    """Nobody knows, but that an empty one is nothing."""
    facts = disk.look(path)
    if facts is None or facts.size_bytes == 0:
        return Completeness(whole=Whole.NO, why="empty", files=("",))
    return Completeness(whole=Whole.UNKNOWN, why="a file of a kind that cannot say whether it is whole", files=("",))


def check_file(disk: Disk, path: Path) -> Report:
    """Nothing to hold it against."""
    assert disk.look(path)
    return Report(blind="a file of no known kind cannot be checked without a manifest")


def locate_file(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """Nobody knows."""
    assert disk.look(path)
    assert not file
    assert where
    return ()


def _parts(disk: Disk, path: Path, files: tuple[str, ...]) -> list[tuple[str, Format]]:
    """Folders that speak for themselves, then the files outside of them."""
    folders: dict[str, Format] = {}
    for file in files:
        parent = PurePosixPath(file).parent.as_posix()
        if parent != "." and file.endswith((dcp.METADATA, dcp.SUFFIX)):
            folders[parent] = dcp.FORMAT
    found = list(folders.items())
    for file in files:
        if not any(file.startswith(f"{folder}/") for folder in folders):
            found += [(file, part) for part in FILES if part.recognise(disk, path / file)][:1]
    return found


def _below(prefix: str, problem: Problem) -> Problem:
    file = f"{prefix}/{problem.file}" if problem.file else prefix
    return Problem(file=file, what=problem.what, offset=problem.offset, tensor=problem.tensor)


FOLDER = Format(kind=Kind.DIRECTORY, recognise=is_folder, complete=complete_folder, check=check_folder, locate=locate_folder)
FILE = Format(kind=Kind.FILE, recognise=is_file, complete=complete_file, check=check_file, locate=locate_file)
