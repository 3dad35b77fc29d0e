"""Every command that reads run directories, on run directories that are broken in every way: a sentence, quickly, and never a traceback."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ftsup import cli
from ftsup.rundir import RunDir
from tests.cli.living import World, hang_and_restart
from tests.report.leader import Leader

RUN, LOG = "RUN", "LOG"
READS = {
    "status": (["status", RUN], ["status", RUN, "--json"]),
    "top": (["top", RUN],),
    "logs": (["logs", RUN], ["logs", RUN, "--all", "-n", "3", "--rank", "0"], ["logs", RUN, "--incident", "1"], ["logs", "-f", RUN]),
    "list": (["list"], ["list", "--json"]),
    "explain": (["explain", RUN], ["explain", RUN, "--json"], ["explain", RUN, "--markdown"], ["explain", RUN, "--incident", "1"]),
    "rules": (["rules", RUN],),
    "replay": (["replay", LOG], ["replay", RUN]),
    "clean": (["clean", "--dry-run"], ["clean", "--dry-run", "--all", "--older-than", "1d"]),
    "stop": (["stop", RUN],),
    "restart": (["restart", RUN, "--from-step", "100"],),
    "requeue": (["requeue", RUN, "--avoid", "n2"],),
    "pause": (["pause", RUN],),
    "cancel": (["cancel", RUN],),
    "watch": (["watch", "--once"], ["watch", "--once", "--json"]),
    "submit": (["submit", "--continue", RUN],),
}
"""Command -> what is typed."""
READS_NO_RUN = {"init", "render", "checkpoints", "config", "completion", "demo", "doctor", "mock", "lead", "node", "run"}
ALLOWED = {0, 1, 2, 75, 78}
LIMIT_S = 1.0
"""Of work; what waits for something hears the alarm."""
ALARM_S = 20.0
MEMORY_BYTES = 1 << 30
STRANGE = [*range(32), 127]


def test_every_command_is_either_tried_here_or_reads_no_run():
    assert READS.keys() <= set(cli.COMMANDS) <= READS.keys() | READS_NO_RUN


# Run directories ----------------------------------------------------------------------------------------------------------


def whole(world: World) -> RunDir:
    """A run with everything in it, stopped and continued, with an incident."""
    leader = Leader()
    leader.grant()
    leader.launch()
    leader.after(3).train(100)
    hang_and_restart(leader)
    run = world.run(leader=leader)
    run.log("1.1", "n1").parent.mkdir(parents=True)
    run.log("1.1", "n1").write_text("[rank 0] step 1\n")
    run.log("1.2", "n1").parent.mkdir(parents=True)
    run.log("1.2", "n1").write_text("[rank 0] step 2\n")
    evidence = run.incident(1) / "n2"
    evidence.mkdir(parents=True)
    (run.incident(1) / "incident.json").write_text(
        json.dumps({"incident": 1, "epoch": "1.1", "root": {"how": "quiet", "node": "n2", "rank": 3}})
    )
    for name in ("log.3.txt", "stacks.3.txt", "node.json"):
        (evidence / name).write_text("{}")
    (run.root / "slurm-7.out").write_text("said\n")
    (run.root / "cluster.json").write_text("{}")
    (run.root / "env.json").write_text("{}")
    (run.root / "config.yaml").write_text("name: demo\ncommand: x\n")
    run.decision("7", 0).parent.mkdir()
    run.decision("7", 0).write_text("{}")
    ranks = {"0": {"step": 101, "phase": "step", "node": "n1"}}
    run.status.write_text(json.dumps({"wall": leader.lines[-1].wall, "stage": "run", "epoch": "1.2", "ranks": ranks}))
    run.requests.mkdir()
    return run


FILES = ("config.json", "jobs", "events.jsonl", "status.json", "logs", "logs/1.2/n1.log", "incidents", "incidents/1/incident.json",
         "incidents/1/n2", "incidents/1/n2/stacks.3.txt", "cluster.json", "config.yaml", "env.json", "requests", "decisions")  # fmt: skip


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def put(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        gone(path)
        path.write_bytes(data)

    return write


def link(target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        gone(path)
        path.symlink_to(target.format(name=path.name))

    return make


def folder(path: Path) -> None:
    gone(path)
    path.mkdir()
    (path / "1.1").mkdir()
    (path / "7").write_text("x")


def fifo(path: Path) -> None:
    gone(path)
    os.mkfifo(path)


def sparse(path: Path) -> None:
    gone(path)
    path.touch()
    os.truncate(path, 1 << 40)


def torn(path: Path) -> None:
    if path.is_file():
        put(path.read_bytes()[: path.stat().st_size * 2 // 3])(path)


def binary(path: Path) -> None:
    """Control bytes in the middle of what was good."""
    if path.is_file():
        data = path.read_bytes()
        put(data[: len(data) // 2] + bytes(STRANGE) + b"\xff\xfe\n" + data[len(data) // 2 :])(path)


BAD: dict[str, Callable[[Path], None]] = {
    "missing": gone,
    "empty": put(b""),
    "a newline": put(b"\n\n"),
    "zeros": put(bytes(100_000)),
    "no UTF-8": put(b"\xff\xfe\x80 7\n" * 50),
    "control characters": put(b'"\x1b[2J\x07\r"\n'),
    "text": put(b"hello\nthere are no facts here\n"),
    "null": put(b"null\n"),
    "a number": put(b"1e999\n"),
    "a list": put(b"[1, [2], {}]\n"),
    "foreign": put(b'{"name": {"first": 1}, "n": "x", "command": 5, "ranks": [], "wall": 7, "root": "x", "epoch": [], "stage": []}\n'),
    "of a newer version": put(b'{"n":1,"v":99,"event":{"type":"Invented","t":1},"name":"demo","command":["x"],"invented":true}\n'),
    "very deep": put(b"[" * 200_000 + b"\n"),
    "very deep objects": put(b'{"event":' * 100_000 + b"\n"),
    "a long line": put(b'{"n": "' + b"x" * 5_000_000 + b'"}'),
    "surrogates": put(b'{"n": 1, "name": "\\ud800", "wall": "\\ud800", "sentence": "\\udfff"}\n'),
    "a folder": folder,
    "a pipe": fifo,
    "a loop of links": link("{name}"),
    "a dangling link": link("gone/away"),
    "an endless device": link("/dev/zero"),
    "an empty device": link("/dev/null"),
    "what cannot be read": link("/proc/self/mem"),
    "a terabyte of nothing": sparse,
    "torn": torn,
    "binary within": binary,
}


class Slow(Exception):
    """The alarm."""


class Program:
    """The program with the ports of a test."""

    def __init__(self, world: World) -> None:
        self.world = world

    def main(self, **how: object) -> object:
        return cli.ftsup.main(**how, obj=self.world.ports())


class Typed(msgspec.Struct):
    code: int
    out: str
    err: str
    took_s: float


def typed(world: World, *words: str) -> Typed:
    """A command as a person types it, with all of `main`, but in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how, write_through=True) for how in ("strict", "backslashreplace"))
    sleeps = iter(range(80))
    world.asleep = lambda: next(sleeps, None) is None and bored()
    began = time.thread_time()  # of this one's work: another may be at work on the files
    with alarm(), little_memory(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([*words], program=Program(world))
        except SystemExit as left:
            code = int(str(left.code))
    took_s = time.thread_time() - began
    return Typed(code, *(stream.buffer.getvalue().decode(errors="replace") for stream in (out, err)), took_s)


def bored() -> None:
    """Whoever follows a run that says nothing presses Ctrl-C."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    def ring(_number, _frame):
        raise Slow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """A file without an end shall not take the machine with it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def complaints(said: Typed, words: list[str]) -> Iterator[str]:
    text = f"{said.out}\n{said.err}"
    if said.code not in ALLOWED | ({130} if "-f" in words else set()):
        yield f"exit code {said.code}"
    for bad in ("ftsup has a bug", "Traceback", "errno", "[Errno"):
        if bad in text:
            yield f"says {bad!r}"
    if said.code == 1 and not said.err.strip():
        yield "says no to nobody"
    if said.took_s > LIMIT_S:
        yield f"took {said.took_s:.1f} s"
    if words[0] != "logs" and re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text):
        yield "lets control characters through"


def sweep(world: World, run: RunDir, mend: Callable[[], object]) -> list[str]:
    """All that is wrong; `mend` makes the directory again after a command that may have changed it."""
    found = []
    for name, lines in READS.items():
        for line in lines:
            words = [{RUN: str(run.root), LOG: str(run.events)}.get(word, word) for word in line]
            said = typed(world, *words)
            found += [f"{' '.join(line)}: {complaint}\n{said.out[-1000:]}{said.err[-2500:]}" for complaint in complaints(said, words)]
        if name in {"stop", "restart", "requeue", "pause", "cancel", "submit"}:
            mend()
    return found


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def made(world: World, spoil: Callable[[RunDir], object]) -> RunDir:
    shutil.rmtree(world.home / "ftsup-runs", ignore_errors=True)
    run = whole(world)
    spoil(run)
    return run


def test_a_whole_run_is_no_trouble(world):
    assert sweep(world, made(world, lambda _: None), lambda: made(world, lambda _: None)) == []


MAIN = ("config.json", "events.jsonl")
"""The others are broken all at once, and one by one in drills."""


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [*MAIN, *(pytest.param(name, marks=pytest.mark.drill) for name in FILES if name not in MAIN)])
def test_one_thing_is_broken(world, bad, name):
    def spoil(run: RunDir) -> None:
        BAD[bad](run.root / name)

    assert sweep(world, made(world, spoil), lambda: made(world, spoil)) == []


@pytest.mark.parametrize("bad", BAD)
def test_everything_is_broken(world, bad):
    def spoil(run: RunDir) -> None:
        for name in FILES:
            if name not in {"config.json", "logs", "incidents"} and (run.root / name).parent.is_dir():
                BAD[bad](run.root / name)

    assert sweep(world, made(world, spoil), lambda: made(world, spoil)) == []


def test_things_that_come_and_go_while_they_are_read(world):
    """As on a disk that somebody cleans at the same time."""
    run = made(world, lambda _: None)
    aside = world.home / "aside"
    over = threading.Event()

    def flicker() -> None:
        while not over.is_set():
            for name in FILES:
                with contextlib.suppress(OSError):
                    (run.root / name).rename(aside)
                    aside.rename(run.root / name)

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        assert sweep(world, run, lambda: None) == []
    finally:
        over.set()
        thread.join()


@pytest.fixture
def somebody() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Whoever types is not root: modes count."""

    @contextlib.contextmanager
    def be() -> Iterator[None]:
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.capget(header, data) == 0
        all_of_them = data[0]
        data[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; root stays the owner of the interpreter's folder
        assert libc.capset(header, data) == 0
        try:
            yield
        finally:
            data[0] = all_of_them
            assert libc.capset(header, data) == 0

    return be


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize("name", [".", *MAIN, "status.json", "logs", "incidents/1", "requests"])
def test_what_may_not_be_read_is_said(somebody, monkeypatch, mode, name):
    with tempfile.TemporaryDirectory(prefix="ftsup-test-") as home:  # below a folder that all may enter
        Path(home).chmod(0o755)
        monkeypatch.chdir(home)
        world = World(Path(home))
        run = made(world, lambda _: None)
        path = run.root / name
        path.chmod(mode)
        try:
            with somebody():
                assert mode != 0 or not os.access(path, os.R_OK, effective_ids=True)
                assert sweep(world, run, lambda: None) == []
        finally:
            path.chmod(0o755)


@pytest.mark.parametrize(
    "name", ["", ".", "/", "..", "-", "x" * 5000, "\x1b[2J", "demo/\n", "*", "demo/20260102-030405-00aa/logs", "\udcff"]
)
def test_what_is_typed_may_be_strange(world, name):
    run = made(world, lambda _: None)
    found = []
    for lines in READS.values():
        for line in lines:
            words = [name if word in {RUN, LOG} else word for word in line]
            if words != line:
                said = typed(world, *words)
                found += [f"{words}: {complaint}\n{said.err[-1500:]}" for complaint in complaints(said, words)]
    assert found == []
    assert run.config_json.exists()


@pytest.mark.parametrize("bad", ["missing", "empty", "a folder", "a pipe", "a loop of links", "a dangling link", "an endless device"])
def test_the_folder_of_the_runs_may_be_anything(world, bad):
    made(world, lambda _: None)
    BAD[bad](world.home / "ftsup-runs")
    found = []
    for lines in READS.values():
        for line in lines:
            words = [word for word in line if word not in {RUN, LOG}]
            said = typed(world, *words)
            found += [f"{words}: {complaint}\n{said.err[-1500:]}" for complaint in complaints(said, words)]
    assert found == []
