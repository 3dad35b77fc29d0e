"""The contract of salloc, in which `ftsup run` lives: its command runs where it was typed, knows the allocation, and outlives it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from ftsup.errors import Refused
from ftsup.ports import JobState
from ftsup.slurm import hostlist
from tests.contract.rigs import SRUN, LiveRig, over, running

STAYS = "echo up; until [ -e end ]; do sleep 0.1; done; exit 3"


class Allocation:
    """A salloc that runs; its job is cancelled with the rig's others."""

    def __init__(self, rig: LiveRig, *argv: str) -> None:
        self.rig = rig
        with (rig.folder / "salloc.err").open("w") as said:  # a file: a pipe's reader may be late, and take more than the line it waits for
            self.process = subprocess.Popen(
                ["salloc", *argv], env=rig.env, cwd=rig.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
            )
        self.job = self.hear(r"salloc: (?:Granted|Pending) job allocation (\d+)")
        rig.mine.append(self.job)

    @property
    def said(self) -> list[str]:
        """All that salloc itself has said so far."""
        text = (self.rig.folder / "salloc.err").read_text()
        return text[: text.rfind("\n") + 1].splitlines()  # whole lines

    def hear(self, words: str) -> str:
        """What the pattern's group found, once it has said so."""
        self.rig.wait_for(lambda: re.search(words, "\n".join(self.said)))
        found = re.search(words, "\n".join(self.said))
        assert found
        return found[found.re.groups]

    def end(self) -> tuple[int, str]:
        """Its exit code, and what its command printed."""
        out, _ = self.process.communicate(timeout=40)
        return self.process.returncode, out


@contextlib.contextmanager
def salloc(rig: LiveRig, *argv: str) -> Iterator[Allocation]:
    made = Allocation(rig, *argv)
    try:
        yield made
    finally:
        (rig.folder / "end").touch()
        made.process.terminate()
        made.process.communicate(timeout=40)


def test_sallocs_command_runs_here_and_knows_its_nodes(live):
    line = f"env; scontrol show job $SLURM_JOB_ID; {SRUN} sh -c 'echo on $SLURMD_NODENAME'; exit 3"
    with salloc(live, "-N2", "--ntasks-per-node=1", "--job-name=mine", "bash", "-c", line) as made:
        code, out = made.end()
    told = dict(part.split("=", 1) for part in out.splitlines() if part.startswith("SLURM_") and "=" in part)
    assert (code, told["SLURM_JOB_ID"], told["SLURM_JOB_NUM_NODES"], told["SLURM_JOB_NAME"]) == (3, made.job, "2", "mine")
    nodes = hostlist.expand(told["SLURM_JOB_NODELIST"])
    assert sorted(re.findall(r"^on (\w+)", out, re.MULTILINE)) == sorted(nodes)
    assert told["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert not {"SLURM_STEP_ID", "SLURM_PROCID", "SLURMD_NODENAME"} & told.keys()
    assert "BatchFlag=0" in out
    ended = live.until(made.job, over)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 3)
    assert f"salloc: Relinquishing job allocation {made.job}" in made.said


def test_a_cancelled_allocation_ends_its_steps_and_lets_its_command_live(live):
    line = f"{SRUN} sleep 60; echo the step is over; until [ -e end ]; do sleep 0.1; done; exit 5"
    with salloc(live, "-N1", "bash", "-c", line) as made:
        live.until(made.job, running)
        live.slurm.cancel(made.job)
        made.hear("has been revoked")
        assert made.process.stdout.readline() == "the step is over\n"
        assert made.process.poll() is None
        assert live.until(made.job, over).state is JobState.CANCELLED
        (live.folder / "end").touch()
        assert made.end()[0] == 5


def test_an_allocation_cannot_be_requeued(live):
    with salloc(live, "-N1", "bash", "-c", STAYS) as made:
        live.until(made.job, running)
        with pytest.raises(Refused, match="Only batch jobs"):
            live.slurm.requeue(made.job)
        assert running(live.slurm.show(made.job))


def test_a_signal_to_salloc_gives_the_nodes_back(live):
    with salloc(live, "-N1", "bash", "-c", STAYS) as made:
        live.until(made.job, running)
        made.process.send_signal(signal.SIGTERM)
        made.hear("has been revoked")
        assert live.until(made.job, over).state in {JobState.CANCELLED, JobState.FAILED}  # 26.05: FAILED, reason RaisedSignal
        assert made.process.poll() is None
        (live.folder / "end").touch()
        assert made.end()[0] == 3


def test_a_wait_for_nodes_is_given_up_by_a_signal(live):
    with salloc(live, "-N1", f"--dependency=afterany:{live.submit('--hold')}", "true") as made:
        made.hear("queued and waiting for resources")
        for _ in range(10):  # one that comes just before salloc begins to wait is seen when it wakes, and that takes its time
            made.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                made.process.wait(3)
                break
        assert made.end()[0] == 1
        assert live.until(made.job, over).state is JobState.CANCELLED
