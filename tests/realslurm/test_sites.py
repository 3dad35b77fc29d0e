"""Sites differ: allocations of somebody's own, a munge that is away, a controller that has forgotten, settings that doctor must see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from tests.e2e.harness import CONFIG, Run, merged, until

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]

SAVER = Path(__file__).parent.parent / "e2e" / "saver.py"
CTRL_C = b"\x03"


class Terminal:
    """A person's terminal with one command in it."""

    def __init__(self, site, argv: list[str], *, cwd: Path) -> None:
        self.keyboard, inside = pty.openpty()
        self.text = b""
        self.process = subprocess.Popen(
            site.as_user(argv, cwd),
            cwd=cwd,
            env=site.environ | {"TERM": "dumb"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
        )
        os.close(inside)

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def read(self) -> str:
        """All that it has shown so far."""
        with contextlib.suppress(OSError):  # the other end is closed
            while select.select([self.keyboard], [], [], 0)[0] and (part := os.read(self.keyboard, 65536)):
                self.text += part
        return self.text.decode(errors="replace").replace("\r", "")

    def close(self) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


@contextlib.contextmanager
def terminal(site, *argv: str, cwd: Path) -> Iterator[Terminal]:
    made = Terminal(site, list(argv), cwd=cwd)
    try:
        yield made
    finally:
        made.close()


def written(site, name: str, **config: object) -> Path:
    """A folder of the user's with a configuration."""
    work = site.folder / name
    (work / "control").mkdir(parents=True)
    (work / "c.yaml").write_text(yaml.safe_dump(merged(CONFIG, {"local_dir": str(site.folder / "local"), **config})))
    site.give(work)
    return work


def begun(site, work: Path, typed: Terminal) -> Run:
    """The run that `ftsup run` made there."""
    root = until(lambda: next(work.glob("ftsup-runs/*/*/jobs"), None), what=typed.read).parent
    run = Run(site, work, RunDir(root), job=(root / "jobs").read_text().split()[0])
    site.runs.append(run)
    return run


def test_run_inside_salloc_trains_on_its_nodes_and_ctrl_c_saves_and_ends_with_zero(real) -> None:
    """A node is asked for with many tasks: its CPUs are the ranks' all the same. The allocation stays after Ctrl-C: it is the person's."""
    work = written(
        real,
        "hand",
        command=[str(SAVER), "asks"],
        checkpoint={"pattern": "step*", "complete": "complete"},
        setup="export SET_UP=yes",
        workers_per_node=1,
    )
    ftsup = f"{sys.executable} -m ftsup run c.yaml; echo the code is $?\n".encode()
    with terminal(real, "salloc", "-N2", "--ntasks-per-node=4", "--cpus-per-task=1", cwd=work) as typed:
        until(lambda: "$ " in typed.read(), what=typed.read)
        typed.type(ftsup)
        run = begun(real, work, typed)
        run.until(lambda: any(event.phase == "step" for event in run.events(ev.Progressed)))
        assert len(run.events(ev.LeaderStarted)[0].nodes) == 2
        cpus = {len(os.sched_getaffinity(run.rank(rank).pid)) for rank in (0, 1)}
        assert cpus == {len(os.sched_getaffinity(0))}
        typed.type(CTRL_C)
        until(lambda: "the code is 0" in typed.read(), what=lambda: typed.read() + run.story())
        verdict = run.orders(ev.Decide)[-1].verdict
        assert (verdict.kind, "saved at step" in verdict.reason) == (VerdictKind.STOP, True)
        assert typed.read().count("nothing is requeued from here") == 1
        assert run.show().state is JobState.RUNNING
        run.finish()
        typed.type(ftsup)
        until(lambda: typed.read().count("the code is 0") == 2, what=typed.read)
        typed.type(b"exit\n")
    second = RunDir(next(path for path in run.place.root.parent.iterdir() if path != run.place.root))
    picked = [line.event for line in eventlog.read(second.events)[0] if isinstance(line.event, ev.CheckpointPicked)]
    assert [f"saved at step {event.step}" in verdict.reason for event in picked] == [True]
    run.until_ended()
    assert run.orders(ev.Requeue) == []


def test_run_outside_an_allocation_and_inside_a_step_is_one_sentence_and_a_hint(real) -> None:
    work = written(real, "nowhere")
    done = real.tried(sys.executable, "-m", "ftsup", "run", "c.yaml", cwd=work)
    assert done.returncode == 1
    assert done.stderr.startswith("there is no allocation here: SLURM_JOB_ID is not set\nhint: `salloc -N2`")
    done = real.tried("srun", "-N1", "-n1", sys.executable, "-m", "ftsup", "run", "c.yaml", cwd=work)
    assert "is itself a step of job" in done.stderr
    assert not (work / "ftsup-runs").exists()
