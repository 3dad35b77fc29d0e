"""What torchrun starts on each rank: makes the process a rank of ftsup, then runs the training script as if Python had started it.

The script becomes a new `__main__` that stays until the process is gone (threads and atexit handlers need it). Whatever it raises goes
on to the interpreter, so every way to end is Python's own; only our frames are taken out of the traceback.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader, SourcelessFileLoader  # importlib.machinery's own; that one takes 1 ms

from . import places, record, torchhook, warning
from .counters import EXITED, IN_SHUTDOWN

TYPE_CHECKING = False  # what follows would take longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType, ModuleType, TracebackType
    from typing import Any, NoReturn

    from .rank import Rank

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_OOM_SCORE_ADJ = 600
"""torchrun has 500, supervisors what Slurm gave them."""
_RUNPY = os.path.join(os.path.dirname(os.__file__), "runpy.py")


class CannotStart(SystemExit):
    """The script cannot be started: said on stderr, in Python's own words, and in the exit record."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self.text = text
        sys.stderr.write(f"{sys.executable}: {text}\n")


def main(argv: Sequence[str], rank: Rank) -> None:
    """Run `script.py args...` or `-m module args...`; raises whatever the script raises."""
    number = int(os.environ.get("RANK", "0"))
    beats = os.environ.get(places.BEATS)
    _die_with_parent()
    _be_taken_first()
    out_dir = os.environ.get(places.OUT_DIR)
    if out_dir:
        _send_output_to(out_dir, number)
    if beats:
        _become(rank, beats, number)
    try:
        _run(argv)
    except BaseException as error:
        answers = rank.answers
        _end(rank, beats, number, error)
        if answers and isinstance(error, SystemExit):
            _end_well(error)
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise
    _end(rank, beats, number, None)


# Becoming a rank ------------------------------------------------------------------------------------------------------


def _die_with_parent() -> None:
    """torchrun dies: so do we, at once. Without a supervisor (a test, a curious user) nobody's death is ours."""
    supervisor = os.environ.get(places.SUPERVISOR)
    if supervisor is None:
        return
    import ctypes  # noqa: PLC0415 - 2 ms that a rank without a supervisor need not pay

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() in (1, int(supervisor)):  # it died before we could ask: we are an orphan, adopted
        os.kill(os.getpid(), _SIGKILL)


def _be_taken_first() -> None:
    """Where memory ends, the kernel takes a rank, and not torchrun, which may be larger and has to tell how its ranks ended."""
    if os.environ.get(places.SUPERVISOR) is None:
        return
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < _OOM_SCORE_ADJ:
                file.write(str(_OOM_SCORE_ADJ))
    except (OSError, ValueError):
        pass


def _send_output_to(out_dir: str, number: int) -> None:
    """Print into a file: nobody's death or pause can block or break a print of the script then, as a pipe's reader could."""
    if os.environ.get("NCCL_DEBUG", "").upper() == "WARN":  # who raised the level wants to read it in his output
        os.environ.setdefault("NCCL_DEBUG_FILE", places.nccl_path(out_dir, number))
    try:
        fd = os.open(places.out_path(out_dir, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _complain(f"output stays where it was: {error}")
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _become(rank: Rank, beats: str, number: int) -> None:
    try:
        rank.join(places.beat_path(beats, number), pid=os.getpid(), started=_started(), base_step=_base_step())
    except (OSError, ValueError) as error:
        _complain(f"this rank is not watched: {error}")
        return
    atexit.register(rank.enter, EXITED)  # the first one registered runs last
    os._exit = _exit_of(rank, beats, number)  # type: ignore[assignment] # its parameter has a name
    torchhook.install(rank)
    number_of_warning = os.environ.get(places.WARNING, "")
    if number_of_warning.isdigit():
        warning.Kept(rank, int(number_of_warning)).begin()
    try:
        stacks = os.open(places.stacks_path(beats, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _complain(f"no stacks: {error}")
        return
    faulthandler.register(places.STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    faulthandler.enable(file=stacks, all_threads=True)


def _started() -> int:
    with open("/proc/self/stat", errors="replace") as file:
        stat = file.read()
    return int(stat.rpartition(")")[2].split()[19])


def _base_step() -> int | None:
    step = os.environ.get(places.BASE_STEP, "")
    return int(step) if step.isdigit() else None


def _complain(text: str) -> None:
    sys.stderr.write(f"ftsup: {text}\n")


# Running the script ---------------------------------------------------------------------------------------------------


def _run(argv: Sequence[str]) -> None:
    if not argv or argv == ["-m"]:
        raise CannotStart(2, "ftsup's shim needs a script, or -m and a module")
    if argv[0] == "-m":
        _search_first(os.getcwd())
        code, main_module = _load_module(argv[1])
        sys.argv = [str(main_module.__file__), *argv[2:]]
    else:
        sys.argv = list(argv)
        code, main_module = _load_script(os.path.abspath(argv[0]))  # links stay in __file__, as with Python itself
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)  # noqa: S102 - this is what the shim is for


def _search_first(place: str, *, asked: bool = False) -> None:
    """sys.path[0] is what Python would have made of it: our own folder stands there, or nothing where Python was told so."""
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = place
    elif asked:
        sys.path.insert(0, place)


def _load_script(path: str) -> tuple[CodeType, ModuleType]:
    if _holds_modules(path):
        return _load_folder(path)
    _search_first(os.path.dirname(os.path.realpath(path)))
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        code = compiled.get_code("__main__")
        if code is not None:
            return code, _main_module(path, compiled, None)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise CannotStart(2, f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}") from None
    return compile(source, path, "exec", dont_inherit=True), _main_module(path, SourceFileLoader("__main__", path), None)


def _holds_modules(path: str) -> bool:
    """A folder or a zip file with a `__main__.py`: whatever the import system can search."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _load_folder(path: str) -> tuple[CodeType, ModuleType]:
    _search_first(path, asked=True)
    spec = PathFinder.find_spec("__main__", [path])
    code = _code_of("__main__", spec)
    if spec is None or code is None:
        raise CannotStart(1, f"can't find '__main__' module in {path!r}")
    return code, _main_module(str(spec.origin), spec.loader, spec)


def _load_module(name: str) -> tuple[CodeType, ModuleType]:
    spec, why = _spec_of(name), f"No module named {name}"
    if spec is not None and spec.submodule_search_locations is not None:
        package, name = name, f"{name}.__main__"
        spec, why = _spec_of(name), f"No module named {name}; {package!r} is a package and cannot be directly executed"
    code = _code_of(name, spec)
    if spec is None or code is None:
        raise CannotStart(1, why)
    return code, _main_module(spec.origin or name, spec.loader, spec)


def _code_of(name: str, spec: ModuleSpec | None) -> CodeType | None:
    loader: Any = None if spec is None else spec.loader
    return None if loader is None else loader.get_code(name)


def _spec_of(name: str) -> ModuleSpec | None:
    import importlib.util  # noqa: PLC0415 - a plain script need not wait for it

    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None  # the module itself, or a package above it
        raise


def _main_module(file: str, loader: Any, spec: ModuleSpec | None) -> ModuleType:  # noqa: ANN401 - any object may be a loader
    module = type(sys)("__main__")
    module.__file__ = file
    module.__loader__ = loader
    module.__spec__ = spec
    module.__package__ = None if spec is None else spec.parent
    module.__dict__["__cached__"] = None if spec is None else spec.cached
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    return module


# The end --------------------------------------------------------------------------------------------------------------


def _end(rank: Rank, beats: str | None, number: int, error: BaseException | None) -> None:
    if beats is None or not rank.writer.attached:  # outside a run, or a child that the script forked and let run to the end
        return
    if error is not None:
        _clean(error)
    try:
        facts = record.describe(error)
        rank.ended(-1 if facts["code"] is None else facts["code"])
        record.write(places.exit_path(beats, number), facts, rank=number, step=rank.writer.step)
        if facts["how"] == "exception" and error is not None:
            record.tell_torchelastic(os.environ.get("TORCHELASTIC_ERROR_FILE"), facts)
    except Exception as trouble:  # noqa: BLE001 - the program's last line: how the script ended must not change
        rank.reach(IN_SHUTDOWN)
        _complain(f"no exit record: {trouble}")


def _exit_of(rank: Rank, beats: str, number: int) -> Callable[[int], NoReturn]:
    """os._exit, for one that leaves by it because it was asked to save: what `_end_well` does for sys.exit, with a record."""
    now = os._exit

    def _exit(status: int) -> NoReturn:
        if rank.answers and isinstance(status, int):
            _end(rank, beats, number, SystemExit(status))
            status = 0
        now(status)

    return _exit


def _end_well(error: SystemExit) -> None:
    """A rank that leaves because it was asked to save: one that fails makes torchrun end the others in the middle of their saves.

    What it wanted to leave with stands in its record.
    """
    if error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")
    error.code = 0


def _clean(error: BaseException) -> None:
    """Take our frames out of its traceback, and out of those of the errors that led to it."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = _strip(one.__traceback__)
        one = one.__cause__ or one.__context__


def _strip(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on, without what we have wrapped (a save); but where it was raised is shown."""
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    at = trace
    while at is not None and at.tb_next is not None:
        if at.tb_next.tb_next is not None and at.tb_next.tb_frame.f_globals.get("__package__") == __package__:
            at.tb_next = at.tb_next.tb_next
        else:
            at = at.tb_next
    return trace


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return frame.f_globals.get("__package__") == __package__ or file.startswith(("<frozen runpy>", "<frozen importlib")) or file == _RUNPY


def _without_our_frames(hook: Callable[..., Any]) -> Callable[..., None]:
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _clean(error)
        trace = sys.last_traceback = _strip(trace)
        try:
            hook(kind, error.with_traceback(trace), trace)
        except Exception as second:  # noqa: BLE001 - Python's own answer to a hook that fails, which would show our frames
            sys.stderr.write("Error in sys.excepthook:\n")
            shown = _strip(second.__traceback__)
            sys.__excepthook__(type(second), second.with_traceback(shown), shown)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, error, trace)

    return excepthook
