"""The beat file: what is written is read, and what is not a beat file says nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.worker import beatfile, counters
from ftsup.worker.beatfile import Beat, Flag, Phase, Word
from ftsup.worker.counters import Writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "beat.0"
    beatfile.create(path)
    return path


def test_a_new_file_says_that_nobody_has_begun(path: Path):
    assert beatfile.read(path) == Beat()
    assert Beat().pid == 0


def test_a_new_file_is_private_and_its_memory_is_taken(path: Path):
    stat = path.stat()
    assert stat.st_mode & 0o777 == 0o600
    assert stat.st_blocks * 512 >= stat.st_size == 64


def test_an_existing_file_is_not_taken_over(path: Path):
    with pytest.raises(FileExistsError):
        beatfile.create(path)


def test_what_is_written_is_read(path: Path):
    writer = Writer()
    writer.attach(path, pid=41, started=12345)
    assert beatfile.read(path) == Beat(pid=41, started=12345)
    longs, words, halves = writer.longs, writer.words, writer.halves
    longs[counters.LIFE], longs[counters.STEP], longs[counters.SAVED_STEP] = 2**40, 2**33, 7
    words[counters.BEATS], words[counters.ACK] = 9, 11
    halves[counters.PHASE], halves[counters.CODE], halves[counters.WRITING] = Phase.STEP, 255, 2
    writer.flag(Flag.ASKS)
    writer.flag(Flag.TOOK)
    writer.flag(Flag.ASKS, to=False)
    assert beatfile.read(path) == Beat(41, 12345, 2**40 + 9, 2**33, 7, 9, Phase.STEP, 255, 11, 2, Flag.TOOK)


def test_asking_leaves_the_beat_alone_and_beats_leave_the_question_alone(path: Path):
    writer = Writer()
    writer.attach(path, pid=1, started=2)
    beatfile.ask(path, beats=2**50, word=Word.COMMIT)
    writer.longs[counters.LIFE] = 5
    assert counters.asked(writer.longs[counters.ASK]) == (2**50, Word.COMMIT, False)
    beatfile.ask(path, beats=3, word=Word.PROPOSED, handlers=True)
    assert counters.asked(writer.longs[counters.ASK]) == (3, Word.PROPOSED, True)
    assert beatfile.read(path) == Beat(pid=1, started=2, activity=5)


def test_a_writer_without_a_file_writes_into_thin_air(path: Path):
    writer = Writer()
    writer.longs[counters.STEP] = 3
    assert not writer.attached
    writer.attach(path, pid=1, started=2)
    beatfile.ask(path, beats=3, word=Word.PROPOSED)
    writer.detach()
    assert (writer.step, writer.longs[counters.ASK]) == (3, 0)
    writer.longs[counters.LIFE] = 99
    assert beatfile.read(path) == Beat(pid=1, started=2, step=3)


@pytest.mark.parametrize("data", [b"", b"FTB\x02", b"FTB\x02" + bytes(61), bytes(64), b"FTB\x01" + bytes(60)])
def test_a_foreign_file_is_neither_read_nor_written(tmp_path: Path, data: bytes):
    path = tmp_path / "beat.0"
    path.write_bytes(data)
    assert beatfile.read(path) is None
    with pytest.raises(ValueError, match="not a beat file"):
        Writer().attach(path, pid=1, started=1)
    assert path.read_bytes() == data


def test_no_file_is_no_beat(tmp_path: Path):
    assert beatfile.read(tmp_path / "beat.9") is None


def test_torn_bytes_are_a_beat_or_none(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("beat") / "beat.0"

    @given(st.binary(min_size=60, max_size=60))
    def read(noise: bytes) -> None:
        path.write_bytes(counters.MAGIC + noise)
        beat = beatfile.read(path)
        assert beat is None or beat.phase in Phase

    read()


ATTACH = """
import sys
from ftsup.worker.counters import Writer
for _ in range(20_000):
    Writer().attach(sys.argv[1], pid=41, started=12345)
"""


def test_whoever_reads_while_a_rank_attaches_sees_none_of_it_or_all(path: Path):
    with subprocess.Popen([sys.executable, "-c", ATTACH, str(path)]) as process:
        seen = set()
        while process.poll() is None:
            seen.add(beatfile.read(path))
    assert None not in seen
    assert {beat for beat in seen if beat.pid} <= {Beat(pid=41, started=12345)}, "with a pid it has begun"


MAKE = """
import pathlib, sys
from ftsup.worker import beatfile
try:
    beatfile.create(pathlib.Path(sys.argv[1]))
except OSError as error:
    sys.exit(error.errno)
"""


def test_full_memory_fails_when_the_file_is_made(tmp_path: Path):
    """The kernel's own way to say "no space": a file size limit stands in for a full tmpfs (same call, same moment)."""
    shell = "ulimit -f 0; trap '' XFSZ; exec \"$@\""
    argv = ["sh", "-c", shell, "sh", sys.executable, "-c", MAKE, str(tmp_path / "beat.0")]
    assert subprocess.run(argv, check=False, timeout=30).returncode == errno.EFBIG
