"""What libraries write of errors is found at once; what only looks like it is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.events import Epoch, How, Kind, Reported, VerdictKind
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

DATA = Path(__file__).parents[1] / "data" / "errorfiles"
SCRIPT = """
import os, sys, time
from pathlib import Path
from ftsup_worker import beat

rank, said = int(os.environ["RANK"]), [line.partition(" | ") for line in Path("lines.txt").read_text().splitlines()]
healthy = Path("healthy.txt").read_text().splitlines()
line = {name: text.replace("rank3", f"rank{rank}") for name, _, text in said}
order = Path("control", f"once.{rank}")
step = 0
while not Path("control", "finish").exists():
    time.sleep(0.05)
    step += 1
    beat(step=step)
    print(healthy[step % len(healthy)], file=sys.stderr if step % 2 else sys.stdout)
    if order.exists():
        word = order.read_text()
        order.unlink()
        if word == "peer closed":
            Path(os.environ["NCCL_DEBUG_FILE"]).write_text(f"\\n{line[word]}\\n")
        else:
            print(line[word], file=sys.stderr)
        if word.startswith("C++ exception"):
            os.abort()
        time.sleep(3600)
"""


@pytest.fixture
def folder(tmp_path):
    """Where the run will be, with what its script says."""
    work = tmp_path / "a"
    work.mkdir()
    for name in ("lines.txt", "healthy.txt"):
        (work / name).write_text("\n".join(line for line in (DATA / name).read_text().splitlines() if not line.startswith("#")))
    (work / "says.py").write_text(SCRIPT)
    return work


def test_errors_are_found_long_before_the_limit_and_healthy_words_are_only_words(site, folder) -> None:
    hang = {"step": "10min", "first_step": "10min", "reported": "1s"}
    run = site.submit(command=[str(folder / "says.py")], resume_args=[], checkpoint={"dir": ""}, hang=hang)
    run.until_trains(more=40)
    assert run.events(Reported) == []
    assert run.incidents() == []

    run.once(1, "watchdog ends: timeout")
    first = run.until_judged(1)
    assert (first.root.how, first.root.kind, first.root.rank) == (How.PEER, Kind.NCCL_TIMEOUT, 1)
    assert first.verdict.kind is VerdictKind.RESTART
    assert "rank 1" in first.verdict.reason
    assert "NCCL timeout in BROADCAST (SeqNum 10)" in first.verdict.reason

    run.until_trains(epoch=Epoch(1, 2))
    run.once(0, "peer closed")
    second = run.until_judged(2)
    assert (second.root.how, second.root.kind, second.root.rank) == (How.PEER, Kind.NCCL_ERROR, 0)
    assert [event.fatal for event in run.events(Reported) if event.epoch == Epoch(1, 2)] == [False, True]

    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)


@pytest.mark.drill
def test_last_words_explain_a_death(site, folder) -> None:
    run = site.submit(command=[str(folder / "says.py")], resume_args=[], checkpoint={"dir": ""})
    run.until_trains()
    run.once(1, "C++ exception: broken GPU")
    root = run.until_judged(1).root
    assert (root.how, root.rank, root.signal) == (How.DEVICE, 1, "SIGABRT")
    assert root.error == "CUDA error: uncorrectable ECC error encountered"
    assert run.events(Reported) == []
    run.until_trains(epoch=Epoch(1, 2))
    run.finish()
    run.until_over()


COMMAND = """
import sys, time
from pathlib import Path
line = Path("lines.txt").read_text().partition("watchdog ends: timeout | ")[2].partition("\\n")[0]
print(line.replace("rank3", "rank1"), file=sys.stderr)
time.sleep(3600)
"""


@pytest.mark.drill
def test_a_command_of_the_users_own_is_followed_too(site, folder) -> None:
    (folder / "own.py").write_text(COMMAND)
    run = site.submit(launch="command", command=["python3", "own.py"], resume_args=[], checkpoint={"dir": ""}, hang={"start": "10min"})
    root = run.until_judged(1).root
    assert (root.how, root.rank, root.kind) == (How.PEER, 1, Kind.NCCL_TIMEOUT)
    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)
