"""One operation as a child process: its argv, its answer, and the real child with stand-in commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftsup.errors import Refused, Unavailable, Unreadable
from ftsup.ports import Job, JobState, Node, NodeState
from ftsup.proc import run
from ftsup.slurm import call

TEXTS = Path(__file__).parent / "texts"


@pytest.mark.parametrize(
    "op, result",
    [
        ("submit", "12"),
        ("show", Job(job_id="12", state=JobState.PENDING, excluded=("n1",), starts_in_s=3.0)),
        ("nodes", [Node(name="n1", state=NodeState.DOWN)]),
        ("config", {"KillWait": "30 sec"}),
        ("requeue", None),
    ],
)
def test_results_travel(op, result):
    assert call.decode("a wrapper's line\n" + call.encode(op, result) + "\n") == result


@pytest.mark.parametrize("kind", [Unavailable, Refused, Unreadable])
def test_errors_travel(kind):
    with pytest.raises(kind) as caught:
        call.decode(call.encode("show", kind("what happened", hint="what to do")))
    assert (caught.value.message, caught.value.hint) == ("what happened", "what to do")


def test_no_answer_is_unavailable_and_nonsense_unreadable():
    for text in ("", "Traceback ...\n"):
        with pytest.raises(Unavailable):
            call.decode(text)
    for text in (
        "{",
        '{"op":"show","ok":true}',
        '{"op":"dance","ok":true}',
        '{"op":"show","ok":false,"error":{"kind":"New","message":""}}',
    ):
        with pytest.raises(Unreadable):
            call.decode(text)


def test_an_environment_never_becomes_an_argument():
    with pytest.raises(AssertionError):
        call.argv("submit", script="job.sh", env={"SECRET": "hunter2"})


def stand_in(folder: Path, name: str, text: str, *, code: int = 0) -> None:
    """A command that prints a text."""
    (folder / f"{name}.txt").write_text(text)
    (folder / name).write_text(f"#!/bin/sh\necho \"$@\" >> '{folder}/asked'\ncat '{folder}/{name}.txt'\nexit {code}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def ask(tmp_path):
    """Run one operation in a child whose PATH has our stand-ins first."""
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def ask(op, **args):
        done = run(call.argv(op, **args), deadline_s=30, env=env, cwd=tmp_path)
        assert not done.err, done.err
        return call.decode(done.out)

    return ask


def test_the_child_answers(ask, tmp_path):
    stand_in(tmp_path, "scontrol", (TEXTS / "job-running.txt").read_text())
    assert ask("show", job_id="366903").state is JobState.RUNNING
    assert (tmp_path / "asked").read_text() == "show job 366903\nshow config\n"


def test_the_child_submits(ask, tmp_path):
    stand_in(tmp_path, "sbatch", "77\n")
    assert ask("submit", script="job.sh", args=["-N2"]) == "77"
    assert (tmp_path / "asked").read_text() == f"--parsable -N2 {tmp_path / 'job.sh'}\n"


def test_the_childs_errors_arrive(ask, tmp_path):
    stand_in(tmp_path, "scontrol", "Socket timed out on send/recv operation\n", code=1)
    with pytest.raises(Unavailable):
        ask("requeue", job_id="1")


def test_a_sigterm_to_all_of_a_job_does_not_end_it_in_the_middle(ask, tmp_path):
    """So a requeue begins, which the child itself has asked for; what follows it in the same errand must still be done."""
    stand_in(tmp_path, "scontrol", (TEXTS / "job-running.txt").read_text())
    path = tmp_path / "scontrol"
    path.write_text(path.read_text().replace("cat ", "kill -TERM $PPID $$; cat "))
    assert ask("show", job_id="366903").state is JobState.RUNNING


def test_a_module_in_the_working_directory_does_not_stand_in_for_pythons(ask, tmp_path):
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    (tmp_path / "tempfile.py").write_text("raise SystemExit('the wrong one')\n")
    stand_in(tmp_path, "scontrol", (TEXTS / "nodes.txt").read_text())
    assert len(ask("nodes")) == 4


def test_a_wrong_operation_is_usage():
    done = subprocess.run([sys.executable, "-m", "ftsup.slurm", "dance"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "show" in done.stderr


def test_the_child_is_light():
    code = "import sys, ftsup.slurm.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout.split()
    assert not {"click", "rich", "torch", "yaml", "zmq", "psutil", "asyncio"} & set(loaded)
