from __future__ import annotations

import resource
from contextlib import contextmanager

import pytest

from ftsup.supervisor.ranklogs import Caps, bring


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def target(tmp_path):
    return tmp_path / "logs" / "1.1" / "n1.log"


def say(out, name, text):
    with (out / name).open("ab") as file:
        file.write(text.encode())


def all_of(target):
    parts = sorted((int(path.suffix[1:]), path) for path in target.parent.glob(f"{target.name}.*"))
    assert len(parts) <= 2
    return "".join(path.read_text() for path in (target, *(path for _, path in parts)))


def drain(out, target, **options):
    rounds = 0
    while bring(out, target, **options):
        rounds += 1
        assert rounds < 1000


def test_each_line_carries_its_speaker_and_comes_once(out, target):
    say(out, "out.0", "a\nb\n")
    say(out, "out.10", "c\n")
    say(out, "torchrun.err", "t\n")
    say(out, "notes.txt", "not ours\n")
    assert bring(out, target) is False
    say(out, "out.0", "d\n")
    bring(out, target)
    assert target.read_text() == "[torchrun] t\n[rank 0] a\n[rank 0] b\n[rank 10] c\n[rank 0] d\n"


def test_what_nccl_says_on_a_rank_is_the_ranks(out, target):
    say(out, "out.1", "step 1\n")
    say(out, "nccl.1", "\nn1:1:2 [0] misc/socket.cc:49 NCCL WARN x\n")
    drain(out, target)
    assert "[rank 1] n1:1:2 [0] misc/socket.cc:49 NCCL WARN x\n" in all_of(target)
    assert "[rank 1] step 1\n" in all_of(target)


def test_an_unfinished_line_waits_until_its_end_or_ours(out, target):
    say(out, "out.0", "whole\nhal")
    bring(out, target)
    assert target.read_text() == "[rank 0] whole\n"
    say(out, "out.0", "f\nrest")
    bring(out, target)
    bring(out, target, final=True)
    assert target.read_text() == "[rank 0] whole\n[rank 0] half\n[rank 0] rest\n"


def test_a_progress_bar_is_its_last_state(out, target):
    say(out, "out.0", "\r10%\r20%\r99%\nwindows\r\n")
    bring(out, target)
    assert target.read_text() == "[rank 0] 99%\n[rank 0] windows\n"


def test_a_line_without_an_end_does_not_wait_for_ever(out, target):
    say(out, "out.0", "x" * 70_000)
    bring(out, target)
    assert len(target.read_text()) > 60_000


def test_another_clerk_repeats_nothing_also_after_a_crash_between_writing_and_remembering(out, target):
    say(out, "out.0", "a\n")
    bring(out, target)
    remembered = (out / ".brought.json").read_bytes()
    say(out, "out.0", "b\n")
    bring(out, target)
    (out / ".brought.json").write_bytes(remembered)
    bring(out, target)
    assert target.read_text() == "[rank 0] a\n[rank 0] b\n"


def test_a_chatty_rank_keeps_its_head_and_its_tail(out, target):
    caps = Caps(head_bytes=2000, tail_bytes=1000)
    for start in range(0, 1000, 10):
        say(out, "out.0", "".join(f"line {n}\n" for n in range(start, start + 10)))
        drain(out, target, caps=caps)
    text = all_of(target)
    assert text.startswith("[rank 0] line 0\n")
    assert text.endswith("[rank 0] line 999\n")
    assert len(text) <= 4000
    assert all(row.startswith("[rank 0] line ") for row in text.splitlines())
    assert target.stat().st_size <= 2000


def test_a_line_that_is_longer_than_a_part_is_cut(out, target):
    say(out, "out.0", "x" * 5000 + "\nnext\n")
    drain(out, target, caps=Caps(head_bytes=100, tail_bytes=100))
    assert target.stat().st_size == 100
    assert all_of(target).endswith("[rank 0] next\n")


def test_many_files_get_their_turn(out, target):
    for rank in range(3):
        say(out, f"out.{rank}", f"{rank}\n" * 400_000)
    assert bring(out, target) is True
    assert {line.split(b"]")[0] for line in target.read_bytes().splitlines()} == {b"[rank 0", b"[rank 1", b"[rank 2"}
    drain(out, target)
    assert all_of(target).count("\n") == 1_200_000


def test_what_was_brought_over_is_given_back_to_the_local_disk(out, target):
    row = "y" * 1023 + "\n"
    say(out, "out.0", row * 4096)
    drain(out, target)
    facts = (out / "out.0").stat()
    assert facts.st_size == 4096 * 1024
    if facts.st_blocks * 512 > 1 << 20:
        pytest.skip("this file system cannot punch holes")
    assert (out / "out.0").read_bytes()[-256 * 1024 :] == (row * 256).encode()  # for an incident


@contextmanager
def files_up_to(size_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_is_lost_while_the_run_directory_takes_nothing(out, target):
    say(out, "out.0", "a\n")
    bring(out, target)
    say(out, "out.0", "b\n" * 100)
    with files_up_to(200), pytest.raises(OSError, match="large"):
        bring(out, target)
    bring(out, target)
    assert target.read_text() == "[rank 0] a\n" + "[rank 0] b\n" * 100


def test_a_round_that_was_cut_off_puts_the_same_lines_at_the_same_places(out, target):
    """Somebody may have read them already."""
    say(out, "out.0", "".join(f"a{n}\n" for n in range(20)))
    say(out, "out.1", "".join(f"b{n}\n" for n in range(20)))
    with files_up_to(300), pytest.raises(OSError, match="large"):
        bring(out, target)
    seen = target.read_text()
    say(out, "out.0", "a20\n")
    assert bring(out, target) is True
    assert target.read_text().startswith(seen)
    drain(out, target)
    assert sorted(target.read_text().splitlines()) == sorted(
        [*(f"[rank 0] a{n}" for n in range(21)), *(f"[rank 1] b{n}" for n in range(20))]
    )


def test_a_round_that_waits_until_its_bytes_have_gone_is_planned_anew(out, target):
    caps = Caps(local_bytes=1000)
    say(out, "out.0", "".join(f"{n:09}\n" for n in range(50)))
    with files_up_to(300), pytest.raises(OSError, match="large"):
        bring(out, target, caps=caps)
    say(out, "out.0", "".join(f"{n:09}\n" for n in range(50, 1000)))
    with files_up_to(300), pytest.raises(OSError, match="large"):
        bring(out, target, caps=caps)
    drain(out, target, caps=caps)
    rows = target.read_text().splitlines()
    assert rows[0] == "[rank 0] ... 9000 bytes left out: the run directory did not take them in time ..."
    assert rows[1:] == [f"[rank 0] {n:09}" for n in range(900, 1000)]


def test_what_exceeds_the_local_cap_is_left_out_and_said(out, target):
    say(out, "out.0", "".join(f"{n:09}\n" for n in range(1000)))
    drain(out, target, caps=Caps(local_bytes=1000))
    rows = target.read_text().splitlines()
    assert rows[0] == "[rank 0] ... 9000 bytes left out: the run directory did not take them in time ..."
    assert rows[1:] == [f"[rank 0] {n:09}" for n in range(900, 1000)]


def test_a_link_among_the_logs_is_not_written_through(out, target, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target.parent.mkdir(parents=True)
    target.symlink_to(victim)
    say(out, "out.0", "a\n")
    with pytest.raises(OSError, match="links"):
        bring(out, target)
    assert victim.read_text() == "precious"
    target.unlink()
    bring(out, target)
    assert target.read_text() == "[rank 0] a\n"
