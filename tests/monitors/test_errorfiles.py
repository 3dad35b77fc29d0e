"""What files say of errors: real lines have their signature, healthy ones none, and no file does harm, whatever it is."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from ftsup.events import How, Kind
from ftsup.monitors import faults, memory
from ftsup.monitors.errorfiles import READ_CAP, ErrorFiles, Follower
from ftsup.monitors.exits import Ended, ExitRecord
from ftsup.monitors.signatures import ERRORS, LINES, find
from ftsup.policy.reports import Acts, Report

DATA = Path(__file__).parents[1] / "data" / "errorfiles"


def told(name: str) -> list[tuple[str, str]]:
    lines = [line for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]
    pairs = (line.partition(" | ") for line in lines)
    return [(signature, text.replace("\\n", "\n")) for signature, _, text in pairs]


HEALTHY = [line for line in (DATA / "healthy.txt").read_text().splitlines() if not line.startswith("#")]
TIMEOUT = next(text for name, text in told("lines.txt") if name == "watchdog timeout" and text.startswith("[rank3]"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def files(out: Path) -> ErrorFiles:
    return ErrorFiles(out, node="n1", ranks=(2, 3))


def names(reports: tuple[Report, ...]) -> list[tuple[int | None, str]]:
    return [(report.fault.rank, report.name) for report in reports]


# The table ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,line", told("lines.txt"))
def test_a_real_line_has_its_signature(name: str, line: str) -> None:
    found = find(LINES, line)
    assert found is not None
    row, said = found
    assert row.name == name
    assert row.says.format(**said).strip()


@pytest.mark.parametrize("name,error", told("errors.txt"))
def test_a_real_error_has_its_signature(name: str, error: str) -> None:
    found = find(ERRORS, error)
    assert found is not None
    row, said = found
    assert row.name == name
    row.says.format(**said)


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_line_has_none(line: str, files: ErrorFiles, out: Path) -> None:
    assert find(LINES, line) is None
    for name in ("out.3", "nccl.3", "torchrun.err"):
        (out / name).write_text(f"{line}\n")
    assert files.look(final=True) == ()


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: CUDA error: none; CUDA out of memory. Tried to allocate nothing",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "RuntimeError: DataLoader worker (pid(s) 16299) exited unexpectedly",
        "KeyError: 'NCCL error in: x\\nLast error:\\nnone'",
        "train.OutOfMemoryError: out of memory",
    ],
)
def test_the_scripts_own_errors_stay_its_own(message: str) -> None:
    assert faults.classify(message, message) == (How.EXCEPTION, Kind.USER, message)


def test_every_row_has_a_real_example() -> None:
    assert {name for name, _ in told("lines.txt")} == {row.name for row in LINES}
    assert {name for name, _ in told("errors.txt")} == {row.name for row in ERRORS}


def test_only_a_process_that_takes_itself_down_is_believed_at_once() -> None:
    at_once = {row.name for row in LINES if row.acts is Acts.AT_ONCE}
    assert all(name.startswith(("watchdog", "takes the process down", "heartbeat")) for name in at_once)
    assert at_once


@pytest.mark.parametrize(
    "kind,message,how",
    [
        ("OSError", "[Errno 28] No space left on device: '/scratch/x'", How.DISK),
        ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered\nCompile with ...", How.DEVICE),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB.", How.EXCEPTION),
        ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:31485", How.PEER),
        ("ValueError", "no", How.EXCEPTION),
    ],
)
def test_an_exit_record_says_whose_fault_it_is(kind: str, message: str, how: How) -> None:
    record = ExitRecord(
        version=1, rank=3, pid=7, how=Ended.EXCEPTION, code=1, type=kind, message=message, where="train.py:4", fingerprint="f"
    )
    fault = faults.of_record(record, "n1")
    assert (fault.how, fault.where, fault.fingerprint) == (how, "train.py:4", "f")
    assert fault.kind is not None


# Files --------------------------------------------------------------------------------------------------------------------


def test_a_line_is_told_with_rank_kind_and_times(files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text(f"step 1\n{TIMEOUT}\n")
    (report,) = files.look()
    fault = report.fault
    assert report.acts is Acts.AT_ONCE
    assert (fault.node, fault.rank, fault.how, fault.kind) == ("n1", 3, How.PEER, Kind.NCCL_TIMEOUT)
    assert fault.error == "NCCL timeout in BROADCAST (SeqNum 80078)"
    assert (fault.quiet_s, fault.limit_s) == (600.026, 600.0)
    assert fault.line == TIMEOUT
    assert files.look() == ()


def test_nccl_files_and_torchruns_output_are_read_too(files: ErrorFiles, out: Path) -> None:
    (out / "nccl.2").write_text("\nnode2:1:2 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n3<5>\n")
    (out / "torchrun.err").write_text(f"{TIMEOUT}\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n")
    assert names(files.look()) == [(3, "watchdog timeout"), (2, "peer closed"), (None, "OOM killer, as Slurm says")]


def test_a_rank_that_quotes_another_is_not_believed(files: ErrorFiles, out: Path) -> None:
    (out / "out.2").write_text(f"{TIMEOUT}\n")
    (out / "torchrun.out").write_text(TIMEOUT.replace("[rank3]", "[rank9]") + "\n")
    assert files.look() == ()


@pytest.mark.parametrize("at", [1, 20, 60, 100, 200, len(TIMEOUT)])
def test_a_torn_line_is_read_once_it_is_whole(at: int, files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text("a\n" + TIMEOUT[:at])
    assert files.look() == ()
    with (out / "out.3").open("a") as file:
        file.write(TIMEOUT[at:] + "\n")
    assert names(files.look()) == [(3, "watchdog timeout")]


def test_a_torn_last_line_counts_at_the_end(files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text("terminate called after throwing an instance of 'c10::Error'\n  what():  boo")
    assert files.look() == ()
    (report,) = files.look(final=True)
    assert (report.fault.error, report.acts) == ("boo", Acts.AT_END)


def test_a_progress_bar_ends_lines_as_well(files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text("".join(f"\r{i}%|##  |" for i in range(50)))
    assert files.look() == ()
    with (out / "out.3").open("a") as file:
        file.write(f"{TIMEOUT}\r\n")
    assert names(files.look()) == [(3, "watchdog timeout")]


def test_megabytes_without_a_line_end_are_read_in_bounded_memory(files: ErrorFiles, out: Path) -> None:
    with (out / "out.3").open("wb") as file:
        file.truncate(64 << 20)  # one line of zeros
        tracemalloc.start()
        assert files.look() == ()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * READ_CAP
        file.seek(0, os.SEEK_END)
        file.write(b"x" * READ_CAP + TIMEOUT.encode() + b"y" * 1000)
    assert names(files.look(final=True)) == [(3, "watchdog timeout")]


def test_what_was_written_too_fast_is_read_from_its_end(files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text(f"{TIMEOUT}\n" + "busy\n" * READ_CAP)
    assert files.look() == ()
    with (out / "out.3").open("a") as file:
        file.write("busy\n" * READ_CAP + f"{TIMEOUT}\n")
    assert names(files.look()) == [(3, "watchdog timeout")]


def test_half_a_line_is_not_read_as_a_whole_one(files: ErrorFiles, out: Path) -> None:
    line = next(text for name, text in told("lines.txt") if name == "peer closed")
    path = out / "out.3"
    path.write_text(f"sample: {line}\n")
    with path.open("a") as file:
        file.write("x\n" * ((READ_CAP - len(line) - 1) // 2) + "\n" * ((READ_CAP - len(line) - 1) % 2))
    assert path.read_bytes()[-READ_CAP:].startswith(line.encode())
    assert files.look() == ()


def test_a_hole_that_was_punched_behind_the_reader_does_no_harm(files: ErrorFiles, out: Path) -> None:
    path = out / "out.3"
    path.write_bytes(b"\0" * 8192 + TIMEOUT[:30].encode() + b"\0" * 4096 + TIMEOUT[30:].encode() + b"\n")
    assert names(files.look()) == [(3, "watchdog timeout")]


def replaced(path: Path, text: str) -> None:
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def cut(path: Path, text: str) -> None:
    path.write_text("")
    path.write_text(text)


def deleted(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("change", [replaced, cut, deleted])
def test_a_file_that_was_replaced_cut_or_deleted_is_read_from_its_start(change, files: ErrorFiles, out: Path) -> None:
    (out / "out.3").write_text("old\n" * (20 if change is replaced else 200))
    assert files.look() == ()
    change(out / "out.3", f"{TIMEOUT}\n")
    assert names(files.look()) == [(3, "watchdog timeout")]
    (out / "out.3").unlink()
    assert files.look(final=True) == ()


@pytest.mark.parametrize("what", ["fifo", "link", "folder", "device"])
def test_what_is_not_a_file_is_left_alone(what: str, files: ErrorFiles, out: Path) -> None:
    path = out / "nccl.3"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        (out / "real").write_text(f"{TIMEOUT}\n")
        path.symlink_to(out / "real" if what == "link" else "/dev/zero")
    assert files.look(final=True) == ()


def test_a_file_that_cannot_be_read_is_tried_again_when_it_grew(out: Path) -> None:
    path = out / "x"
    path.write_text("a\n")
    follower = Refused(path)
    assert (follower.read(), follower.read()) == (b"", b"")
    assert follower.tries == 1
    path.write_text("a\nb\n")
    follower.refuses = False
    assert follower.read() == b"a\nb\n"


class Refused(Follower):
    """A file without permission; root may read everything."""

    refuses = True
    tries = 0

    def _bytes(self) -> bytes:
        self.tries += 1
        if self.refuses:
            raise PermissionError
        return super()._bytes()


def test_garbage_in_every_file_is_never_more_than_nothing(files: ErrorFiles, out: Path) -> None:
    rng = random.Random(7)
    for _ in range(30):
        for name in ("out.2", "out.3", "nccl.2", "nccl.3", "torchrun.err"):
            with (out / name).open("ab") as file:
                file.write(rng.randbytes(rng.randrange(5000)) + rng.choice([b"\n", b"\r", b"NCCL WARN ", b"what():", b"[rank3]:[E ", b""]))
        assert all(report.name == "C++ exception" for report in files.look())


# torchelastic -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def error_file(out: Path) -> Path:
    folders = [out / "torchelastic" / "none_x7" / "attempt_0" / str(i) for i in range(2)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders[1] / "error.json"


def elastic(message: str, stack: str = "") -> str:
    return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}})


def test_torchelastics_error_file_names_the_users_line(files: ErrorFiles, error_file: Path) -> None:
    assert files.look() == ()
    frames = (
        ("/x/site-packages/torch/a.py", 1, "wrap"),
        ("/home/u/train.py", 41, "forward"),
        ("/usr/lib/python3.11/json/x.py", 3, "loads"),
    )
    stack = "Traceback (most recent call last):\n" + "".join(f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames)
    error_file.write_text(elastic("ValueError: no", stack))
    (report,) = files.look()
    fault = report.fault
    assert (fault.rank, fault.how, fault.kind, fault.error, fault.where) == (
        3,
        How.EXCEPTION,
        Kind.USER,
        "ValueError: no",
        "train.py:41 in forward",
    )
    assert report.acts is Acts.AT_END
    assert files.look() == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"message": 3}', '{"message": {"message": "x"}}', "\xff\xfe", "[" * 5000])
def test_an_error_file_without_sense_is_read_again_when_it_has_some(text: str, files: ErrorFiles, error_file: Path) -> None:
    error_file.write_text(text)
    assert files.look() == ()
    error_file.write_text(elastic("OSError: [Errno 116] Stale file handle"))
    (report,) = files.look()
    assert (report.fault.how, report.fault.kind) == (How.DISK, Kind.FILES)


# Memory -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own,counter,text",
    [
        (
            "0::/system.slice/job_7/step_0\n",
            "system.slice/job_7/step_0/memory.events",
            "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
        ),
        (
            "12:cpu:/x\n4:memory:/slurm/job_7\n0::/\n",
            "memory/slurm/job_7/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
        ("garbage\n0::/a\n", "a/memory.events", "oom_kill 2\n"),
    ],
)
def test_the_kernels_kills_for_memory_are_counted(own: str, counter: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(own)
    assert memory.look(own=tmp_path / "own", root=tmp_path, host=tmp_path / "none").kills == 0
    (tmp_path / counter).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / counter).write_text(text)
    assert memory.look(own=tmp_path / "own", root=tmp_path, host=tmp_path / "none").kills == 2
    assert memory.look(own=tmp_path / "nothing", root=tmp_path, host=tmp_path / "none").kills == 0
