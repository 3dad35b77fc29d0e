"""logs as a whole command, on run directories that grow, are written by the real writer, and are seen late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from random import Random

import pytest

from ftsup.cli import main
from ftsup.cli.logpages import tame
from ftsup.cli.logs import OLD_ROUNDS, logs
from ftsup.errors import RunError
from ftsup.events import Epoch
from ftsup.report.tails import Tail, sources
from ftsup.rundir import RunDir, rank_log_part
from tests.cli.living import World, finish
from tests.report.leader import Leader


def write_log(run: RunDir, epoch: str, node: str, text: str | bytes, *, part: int = 0) -> None:
    path = rank_log_part(run.log(epoch, node), part)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def acts(world: World, *steps) -> None:
    """Each time that the command sleeps, the next of these happens; after them nothing does."""
    left = iter(steps)
    sleeps = iter(range(5000))

    def sleep():
        next(sleeps)  # for ever is not a test
        next(left, lambda: None)()

    world.asleep = sleep


# What is there ------------------------------------------------------------------------------------------------------------


def test_the_newest_attempt_is_shown_with_the_node_where_there_are_several(world):
    run = world.run()
    write_log(run, "1.9", "n1", "old\n")
    write_log(run, "1.10", "n1", "[rank 0] a\n[rank 1] c")
    write_log(run, "1.10", "n2", "[rank 2] d\n")
    assert world.type(logs).stdout == "n1: [rank 0] a\nn1: [rank 1] c\nn2: [rank 2] d\n"
    assert world.type(logs, "--epoch", "1.9").stdout == "old\n"
    assert world.type(logs, "--node", "n2").stdout == "[rank 2] d\n"
    assert world.type(logs, "--all", "--node", "n1").stdout == "old\n[rank 0] a\n[rank 1] c\n"
    assert world.type(logs, "-n", "1").stdout == "n1: [rank 1] c\nn2: [rank 2] d\n"


def test_one_ranks_lines_are_those_with_its_number(world):
    run = world.run()
    write_log(run, "1.1", "n1", "[torchrun] t\n[rank 1] one\n[rank 10] ten\n[rank 1] [rank 10] says so\n")
    assert world.type(logs, "--rank", "1").stdout == "[rank 1] one\n[rank 1] [rank 10] says so\n"
    assert world.type(logs, "--rank", "1", "-n", "1").stdout == "[rank 1] [rank 10] says so\n"
    with pytest.raises(RunError, match=r"no line of rank 7 in attempt 1\.1") as caught:
        world.type(logs, "--rank", "7")
    assert caught.value.hint == ""


def test_lines_of_a_command_of_ones_own_carry_no_rank(world):
    write_log(world.run(), "1.1", "n1", "[torchrun] works\n")
    with pytest.raises(RunError, match="no line of rank 0") as caught:
        world.type(logs, "--rank", "0")
    assert "carries no rank" in caught.value.hint


def test_what_is_not_there_is_said_with_what_there_is(world):
    run = world.run()
    with pytest.raises(RunError, match="printed nothing yet"):
        world.type(logs)
    write_log(run, "1.1", "n1", "a\n")
    for args in (["--node", "../../jobs"], ["--epoch", ".."], ["--node", "n9"], ["--epoch", "1.2"], ["-f", "--epoch", "1"]):
        with pytest.raises(RunError, match=r"attempts 1\.1 and nodes n1"):
            world.type(logs, *args)


@pytest.mark.parametrize("args", [["--all", "--epoch", "1.1"], ["--incident", "1", "-f"], ["--incident", "1", "--all"]])
def test_options_that_contradict_each_other_are_refused(world, args, capsys):
    world.run()
    assert main(["logs", *args]) == 2
    assert "Error:" in capsys.readouterr().err


def test_a_log_that_outgrew_its_cap_is_shown_in_its_order_and_what_is_left_out_is_said_once(world):
    run = world.run()
    for part in (0, 3, 4):
        write_log(run, "1.1", "n1", f"[rank 0] {part} a\n[rank 0] {part} b\n", part=part)
    shown = world.type(logs).stdout.splitlines()
    assert [line for line in shown if not line.startswith("[ftsup]")] == [f"[rank 0] {part} {word}" for part in (0, 3, 4) for word in "ab"]
    assert shown[2].startswith("[ftsup] lines are left out here")
    assert world.type(logs, "--rank", "0").stdout.splitlines() == shown
    assert world.type(logs, "-n", "1").stdout == "[rank 0] 4 b\n"
    assert world.type(logs, "-n", "5").stdout.splitlines() == shown[-5:]


def test_the_last_lines_are_found_from_the_end_of_a_long_log(world):
    run = world.run()
    rows = [f"[rank {n % 8}] {n:07} {'x' * 60}" for n in range(60_000)]
    write_log(run, "1.1", "n1", "\n".join(rows) + "\n")
    assert world.type(logs, "-n", "3").stdout.splitlines() == rows[-3:]
    assert world.type(logs, "-n", "2", "--rank", "3").stdout.splitlines() == [rows[-13], rows[-5]]
    assert world.type(logs, "-n", "50000").stdout.splitlines() == rows[-50_000:]
    assert world.type(logs, "-n", "99999").stdout.splitlines() == rows


def test_a_pipe_gets_bytes_as_they_are_and_long_lines_whole(world):
    garbage = bytes(byte for byte in Random(1).randbytes(5000) if byte not in b"\n\0")
    long = b"[rank 0] " + b"y" * 3_000_000
    write_log(world.run(), "1.1", "n1", b"\xff\xfe\x1b[31m\n" + garbage + b"\n" + long + b"\n\nlast")
    assert world.type(logs).stdout_bytes == b"\xff\xfe\x1b[31m\n" + garbage + b"\n" + long + b"\n\nlast\n"


def test_a_terminal_obeys_nothing_but_colours():
    assert tame("a\x1b[2J\x07b\rc\td\x9b") == "a\ufffd[2J\ufffdb\ufffdc\td\ufffd"
    assert tame("\x1b[1;31mred") == "\x1b[1;31mred\x1b[0m"


def test_logs_that_are_no_files_are_said_and_keep_nobody(world):
    run = world.run()
    folder = run.root / "logs" / "1.1"
    (folder / "n1.log").mkdir(parents=True)
    os.mkfifo(folder / "n2.log")
    write_log(run, "1.1", "n3", "fine\n")
    shown = world.type(logs).stdout.splitlines()
    why = {"n1": "Is a directory", "n2": "it is not a plain file"}
    assert shown == [*(f"{node}: [ftsup] this log cannot be read: {text}" for node, text in why.items()), "n3: fine"]


# While it grows -----------------------------------------------------------------------------------------------------------


def over(world: World, leader: Leader) -> None:
    finish(leader)
    world.run(leader=leader)


def test_logs_are_followed_over_attempts_until_the_run_is_over(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\ntw")
    acts(
        world,
        lambda: write_log(run, "1.1", "n1", "o\n"),
        lambda: (write_log(run, "1.1", "n1", "the end of 1.1\n"), write_log(run, "1.2", "n2", "three\n")),
        lambda: (write_log(run, "1.2", "n2", "four"), over(world, leader)),
        lambda: write_log(run, "1.2", "n2", " and more"),
    )
    result = world.type(logs, "-f")
    assert result.stdout == "n1: one\nn1: two\nn1: the end of 1.1\nn2: three\nn2: four and more\n"
    assert result.stderr.splitlines() == ["attempt 1.1", "attempt 1.2", "demo/20260102-030405-00aa: finished (training finished)"]


def test_lines_that_come_late_are_not_lost(world, leader):
    """A slow disk shows the end of an attempt when the next one prints since long, and a node's whole log at the very end."""
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")
    acts(
        world,
        lambda: write_log(run, "1.2", "n1", "two\n"),
        *[lambda: None] * OLD_ROUNDS,
        lambda: write_log(run, "1.1", "n1", "late\n"),
        *[lambda: None] * OLD_ROUNDS,
        lambda: (over(world, leader), write_log(run, "2.1", "n1", "three\n")),
        lambda: (write_log(run, "1.1", "n2", "very late\n"), write_log(run, "2.1", "n1", "fo"), write_log(run, "2.1", "n1", "ur")),
    )
    result = world.type(logs, "-f")
    assert result.stdout == "n1: one\nn1: two\nn1: late\nn1: three\nn2: very late\nn1: four\n"
    assert [line for line in result.stderr.splitlines() if line.startswith("attempt")] == [
        f"attempt {epoch}" for epoch in ("1.1", "1.2", "1.1", "2.1", "1.1", "2.1")
    ]


@pytest.mark.parametrize(
    "args, shown", [([], "two\nthree\n"), (["--all"], "one\ntwo\nthree\n"), (["-n", "1"], "three\n"), (["-n", "0"], "")]
)
def test_whoever_comes_late_sees_the_newest_attempt_or_all_or_the_last_lines(world, leader, args, shown):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")
    write_log(run, "1.2", "n1", "two\nthree\n")
    acts(world, lambda: write_log(run, "1.2", "n1", "four\n"), lambda: over(world, leader))
    assert world.type(logs, "-f", "--node", "n1", *args).stdout == f"{shown}four\n"


def test_one_attempt_is_followed_until_the_next_begins(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")

    def restart():
        leader.after(5).hang()
        leader.after(1).end_attempt()
        leader.launch(checkpoint=100)
        world.run(leader=leader)
        write_log(run, "1.1", "n1", "last words")
        write_log(run, "1.2", "n1", "not these\n")

    acts(world, restart)
    result = world.type(logs, "-f", "--epoch", "1.1", "--node", "n1")
    assert result.stdout == "one\nlast words\n"
    assert result.stderr.splitlines()[-1] == "attempt 1.1 is over; the newest is 1.2"


def test_a_run_that_waits_says_so_and_the_log_of_a_continued_one_goes_on(world):
    run = world.run()
    leader = Leader()

    def begin():
        leader.grant()
        leader.launch()
        leader.after(3).train(100)
        world.run(leader=leader)
        write_log(run, "1.1", "n1", "one\n")

    def finish_and_continue():
        over(world, leader)
        run.jobs.write_text("7\n8\n")

    acts(
        world,
        begin,
        finish_and_continue,
        *[lambda: None] * 20,
        lambda: write_log(run, "2.1", "n1", "two\n"),
        lambda: run.jobs.write_text("7\n"),
    )
    result = world.type(logs, "-f", "--node", "n1")
    assert result.stdout == "one\ntwo\n"
    assert result.stderr.splitlines()[0] == "demo/20260102-030405-00aa: no leader has started yet (job 7)"


def test_a_cancelled_run_ends_it_also_where_nobody_is_left_to_say_so(world, leader):
    run = world.run()
    run.cancelled.touch()
    assert world.type(logs, "-f").stderr.splitlines()[-1] == "demo/20260102-030405-00aa: cancelled"
    world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")
    acts(world, lambda: write_log(run, "1.1", "n1", "last words\n"))
    result = world.type(logs, "-f", "--node", "n1")
    assert (result.stdout, result.stderr.splitlines()[-1]) == ("one\nlast words\n", "demo/20260102-030405-00aa: cancelled")


def test_a_long_silence_is_said_once(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")
    acts(world, *[lambda: None] * 1500, lambda: over(world, leader))
    said = world.type(logs, "-f").stderr
    assert said.count("nothing new for 5 min; `ftsup status demo/20260102-030405-00aa` shows") == 1


def test_a_log_that_somebody_cuts_goes_on_where_its_writer_goes_on(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "a long first line\nanother\n")
    log = run.log("1.1", "n1")
    size = log.stat().st_size

    def go_on():
        with log.open("r+b") as file:
            file.seek(size)
            file.write(b"more\n")

    acts(world, lambda: os.truncate(log, 5), lambda: None, go_on, lambda: over(world, leader))
    shown = world.type(logs, "-f", "--node", "n1").stdout.splitlines()
    assert shown == ["a long first line", "another", "[ftsup] somebody has cut this log: what comes next follows", "more"]


def test_bytes_that_a_network_disk_has_not_got_yet_are_waited_for(tmp_path):
    log = tmp_path / "logs" / "1.1" / "n1.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"a\nb\n\0\0\0\0")
    tail, (source,) = Tail(), sources(RunDir(tmp_path), Epoch(1, 1))
    assert list(tail.lines(source, end=False)) == [b"a", b"b"]
    log.write_bytes(b"a\nb\nc\nd\n")
    assert list(tail.lines(source, end=False)) == [b"c", b"d"]
    log.write_bytes(b"a\nb\nc\nd\n\0\0\0\0e\n")
    looks = [list(tail.lines(source, end=False)) for _ in range(100)]
    assert [look for look in looks if look] == [[b"e"]]
    assert looks[0] == []


def test_ctrl_c_is_quiet(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\n")
    argv = [sys.executable, "-m", "ftsup", "logs", "-f", str(run.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"n1: one\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read().decode().split() == ["attempt", "1.1"]
        finally:
            process.kill()  # else a failure waits for its end


# An incident's last lines -------------------------------------------------------------------------------------------------


def kept(run: RunDir, number: int, files: dict[str, str], root: dict[str, object] | None = None) -> None:
    folder = run.incident(number)
    folder.mkdir(parents=True)
    told = {"incident": number, "epoch": "1.1", "root": root, "sentence": "rank 3 on n2 raised ValueError"}
    (folder / "incident.json").write_text(json.dumps(told))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_the_last_lines_before_an_incident_are_those_of_the_rank_with_which_it_began(world):
    run = world.run()
    lines = "".join(f"step {n}\n" for n in range(100))
    files = {
        "n2/log.3.txt": lines,
        "n2/log.2.txt": "other\n",
        "n1/log.0.txt": "zero\n",
        "n2/torchrun.err.txt": "W torch",
        "n2/nccl.3.txt": "NCCL",
    }
    kept(run, 1, files, {"how": "exception", "node": "n2", "rank": 3})
    result = world.type(logs, "--incident", "1")
    assert result.stdout.splitlines() == [*(f"[rank 3] step {n}" for n in range(50, 100)), "[rank 3] NCCL"]
    assert result.stderr.splitlines()[0] == "incident 1, attempt 1.1: rank 3 on n2 raised ValueError"
    assert "the last 50 lines of each; --node and --rank show others'" in result.stderr
    assert world.type(logs, "--incident", "1", "--rank", "0").stdout == "[rank 0] zero\n"
    assert world.type(logs, "--incident", "1", "--node", "n2", "-n", "1").stdout.splitlines() == [
        "[rank 2] other",
        "[rank 3] step 99",
        "[rank 3] NCCL",
        "[torchrun] W torch",
    ]


def test_an_incident_without_evidence_is_told_from_the_attempts_log(world):
    run = world.run()
    kept(run, 1, {}, {"how": "node", "node": "n2"})
    write_log(run, "1.1", "n1", "[rank 0] a\n")
    write_log(run, "1.1", "n2", "".join(f"[rank 2] {n}\n" for n in range(70)))
    assert world.type(logs, "--incident", "1").stdout.splitlines() == [f"[rank 2] {n}" for n in range(20, 70)]
    with pytest.raises(RunError, match="no lines were kept of incident 1"):
        world.type(logs, "--incident", "1", "--node", "n9")


def test_a_rank_that_printed_nothing_before_its_incident_is_told_so(world):
    run = world.run()
    kept(run, 1, {}, {"how": "signal", "node": "n2", "rank": 2})
    write_log(run, "1.1", "n2", "[rank 3] a\n")
    result = world.type(logs, "--incident", "1")
    assert (result.stdout, result.stderr.splitlines()[1][:56]) == ("", "rank 2, n2: nothing was printed in this attempt; all tha")


def test_an_incident_that_there_is_not(world):
    run = world.run()
    with pytest.raises(RunError, match="has no incident 3") as caught:
        world.type(logs, "--incident", "3")
    assert caught.value.hint == "there is none"
    kept(run, 2, {})
    with pytest.raises(RunError, match="has no incident 3") as caught:
        world.type(logs, "--incident", "3")
    assert caught.value.hint == "there are 2"
