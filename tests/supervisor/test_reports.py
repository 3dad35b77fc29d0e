"""What the supervisor remembers of an attempt's files, and how that explains its ranks' ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftsup.events import Fault, How, Kind
from ftsup.monitors.memory import Memory
from ftsup.supervisor.reports import RECENT_S, Reports

DATA = Path(__file__).parents[1] / "data" / "errorfiles" / "lines.txt"
LINES = dict(reversed(line.split(" | ", 1)) for line in DATA.read_text().splitlines() if not line.startswith("#"))
REAL = {name: line for line, name in LINES.items()}


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(tmp_path, node="n1", ranks=(2, 3))


def write(folder: Path, rank: int, *names: str) -> None:
    with (folder / f"out.{rank}").open("a") as file:
        file.writelines(f"{REAL[name]}\n" for name in names)


def died(rank: int = 3, signal: str = "SIGABRT") -> Fault:
    return Fault(how=How.SIGNAL, node="n1", rank=rank, signal=signal)


def test_an_abort_is_told_in_the_watchdogs_words_and_not_in_the_last_ones(reports: Reports, tmp_path: Path) -> None:
    write(tmp_path, 3, "takes the process down", "watchdog ends: timeout", "C++ exception")
    assert len(reports.look(1.0)) == 3
    (end,) = reports.explain([died()])
    assert (end.how, end.kind, end.signal, end.alive) == (How.PEER, Kind.NCCL_TIMEOUT, "SIGABRT", False)
    assert end.error == "NCCL timeout in BROADCAST (SeqNum 10)"


def test_only_the_last_words_are_known(reports: Reports, tmp_path: Path) -> None:
    (tmp_path / "out.3").write_text(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at x] no"
    )
    reports.look(1.0, final=True)
    (end,) = reports.explain([died()])
    assert (end.how, end.signal, end.error) == (How.SIGNAL, "SIGABRT", "[enforce fail at x] no")


def test_words_of_another_rank_or_of_long_ago_explain_nothing(reports: Reports, tmp_path: Path) -> None:
    write(tmp_path, 3, "peer closed")
    reports.look(1.0)
    assert reports.explain([died(rank=2)]) == (died(rank=2),)
    assert reports.explain([died()]) != (died(),)
    reports.look(1.0 + RECENT_S)
    assert reports.explain([died()]) == (died(),)


def test_words_that_never_kill_explain_nothing(reports: Reports, tmp_path: Path) -> None:
    write(tmp_path, 3, "InfiniBand port")
    assert len(reports.look(1.0)) == 1
    assert reports.explain([died()]) == (died(),)


def test_slurms_word_of_memory_explains_whoever_was_killed(reports: Reports, tmp_path: Path) -> None:
    (tmp_path / "torchrun.err").write_text(REAL["OOM killer, as Slurm says"] + "\n")
    reports.look(1.0)
    killed, aborted = reports.explain([died(signal="SIGKILL"), died(rank=2, signal="SIGSEGV")])
    assert (killed.signal, killed.kind) == ("SIGKILL", Kind.HOST_MEMORY)
    assert killed.error.startswith("out of memory on host (Detected ")
    assert aborted == died(rank=2, signal="SIGSEGV")


def counting(*kills: int) -> Callable[[], Memory]:
    """The kernel's count, look by look."""
    row = iter(kills)
    return lambda: Memory(kills=next(row), counter="memory.events", limit_bytes=1 << 30, peak_bytes=1 << 30)


def test_the_kernels_count_explains_a_kill_and_no_other_end(tmp_path: Path) -> None:
    reports = Reports(tmp_path, node="n1", ranks=(2, 3), look=counting(4, 5, 5, 4))
    killed, other = reports.explain([died(signal="SIGKILL"), died()])
    assert (killed.kind, killed.how, killed.signal) == (Kind.HOST_MEMORY, How.SIGNAL, "SIGKILL")
    assert killed.error == (
        "out of memory on host: the kernel killed 1 process of the job here (memory.events: oom_kill 4 -> 5); "
        "limit 1GiB (slurm.mem), peak 1GiB"
    )
    assert other == died()
    assert reports.explain([died(signal="SIGKILL")]) != (died(signal="SIGKILL"),)
    assert reports.explain([died(signal="SIGKILL")]) == (died(signal="SIGKILL"),)


def test_an_end_that_is_known_to_be_of_memory_gets_the_kernels_numbers(tmp_path: Path) -> None:
    text = "DataLoader worker (pid 7) is killed by signal: Killed."
    loader = Fault(how=How.EXCEPTION, node="n1", rank=3, kind=Kind.HOST_MEMORY, error=text)
    (told,) = Reports(tmp_path, node="n1", ranks=(3,), look=counting(0, 2)).explain([loader])
    assert (told.how, told.error.startswith(f"{text}; out of memory on host: the kernel killed 2 processes")) == (How.EXCEPTION, True)
    assert Reports(tmp_path, node="n1", ranks=(3,), look=counting(0, 0)).explain([loader]) == (loader,), "a MemoryError, killed by nobody"
