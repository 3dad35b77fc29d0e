"""Sites differ: allocations of somebody's own, a munge that is away, a controller that has forgotten, settings that doctor must see."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from ftsup import eventlog
from ftsup import events as ev
from ftsup.errors import SlurmError
from ftsup.events import VerdictKind
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.slurm.commands import Commands
from tests.e2e.harness import CONFIG, Run, merged, real_site, until
from tests.realslurm import cluster
from tests.realslurm.cluster import Plan

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
    jobs = until(lambda: next((path for path in work.glob("ftsup-runs/*/*/jobs") if path.read_text()), None), what=typed.read)
    run = Run(site, work, RunDir(jobs.parent), job=jobs.read_text().split()[0])
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
        run.until(lambda: len({event.node for event in run.events(ev.Progressed) if event.phase == "step"}) == 2)
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


def test_a_heterogeneous_job_is_refused_in_one_sentence(real) -> None:
    work = written(real, "het")
    (work / "own.sh").write_text(f"#!/bin/bash\n{sys.executable} -m ftsup run c.yaml 2> said\necho $? > code\n")
    real.give(work)
    assert real.tried("sbatch", "-N1", ":", "-N1", "own.sh", cwd=work).returncode == 0
    code = until(lambda: (work / "code").exists() and (work / "code").read_text().strip())
    assert code == "1"
    assert "is heterogeneous (2 components, SLURM_HET_SIZE), and a run needs nodes of one kind in one\nhint:" in (work / "said").read_text()
    assert not (work / "ftsup-runs").exists()


# A site with odd settings -------------------------------------------------------------------------------------------------

ODD = Plan(
    nodes=("n1", "n2"),
    settings={
        "JobRequeue": "0",
        "MinJobAge": "2",
        "RequeueExit": "1",
        "UnkillableStepTimeout": "20",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    },
    partitions=("main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10 PreemptMode=CANCEL GraceTime=20", "tiny Nodes=n1 MaxTime=1"),
    users=True,
)
odd_group = pytest.mark.xdist_group("odd")
FORGETS_S = 150
"""MinJobAge is looked at once a minute."""


@pytest.fixture(scope="module")
def odd_cluster():
    if why := cluster.why_not("linuxproc"):
        pytest.skip(f"real Slurm: {why}")
    with cluster.own(ODD) as made:
        yield made


@pytest.fixture
def odd(odd_cluster, request):
    """A user's folder on it."""
    with real_site(odd_cluster, request.node.name) as made:
        yield made


def findings(site, work: Path, *words: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """What doctor finds, by rule: level, and text with what to set."""
    done = site.tried(sys.executable, "-m", "ftsup", "doctor", "c.yaml", "--cluster", "slurm", "--json", *words, cwd=work)
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["rule"], []).append((each["level"], f"{each['text']}; {each['todo']}"))
    return done.returncode, found


def said(found: list[tuple[str, str]], level: str, words: str) -> bool:
    return any(at == level and words in text for at, text in found)


@odd_group
def test_doctor_sees_what_is_odd_about_a_site_and_what_is_not(odd) -> None:
    work = written(odd, "odd")
    code, found = findings(odd, work)
    assert code == 0, found
    assert said(found["requeue"], "note", "JobRequeue is 0: jobs are not requeueable unless they ask")
    assert said(found["requeue-exit"], "warning", "RequeueExit is 1: Slurm requeues a run that ftsup has stopped")
    assert said(found["unkillable"], "warning", "UnkillableStepTimeout is 20s")
    assert said(found["preemption"], "warning", "PreemptMode of partition main is CANCEL: a preempted job is cancelled")
    assert said(found["preemption"], "note", "GraceTime is 20s and KillWait 5s")
    assert said(found["forgetting"], "note", "MinJobAge is 2s: so long Slurm knows how a job ended, and without accounting")
    assert said(found["kill-wait"], "warning", "KillWait is 5s")
    assert said(found["tracking"], "note", "ProctrackType is proctrack/linuxproc")
    assert said(found["batch-requeues"], "ok", "MaxBatchRequeue")
    assert said(found["curve"], "ok", "pyzmq has CURVE")
    code, found = findings(odd, work, "--set", "slurm.partition=tiny", "--set", "slurm.nodes=2")
    assert code == 1
    assert said(found["partition"], "problem", "slurm.time is 9min, and partition tiny allows 1min (MaxTime); set slurm.time: 1min")
    assert said(found["partition"], "problem", "slurm.nodes is 2, and partition tiny has 1 node")


def test_doctor_finds_an_ordinary_site_ordinary(real) -> None:
    code, found = findings(real, written(real, "plain"))
    assert code == 0, found
    assert said(found["requeue"], "ok", "JobRequeue is 1")
    assert said(found["preemption"], "ok", "nobody is preempted")
    assert said(found["forgetting"], "ok", "MinJobAge is 2h")
    assert "requeue-exit" not in found


OPERATIONS = {
    "submit": lambda slurm, script, _: slurm.submit(script),
    "test_only": lambda slurm, script, _: slurm.submit(script, test_only=True),
    "show": lambda slurm, _, job: slurm.show(job),
    "show unknown": lambda slurm, *_: slurm.show("4000000"),
    "queue": lambda slurm, *_: slurm.queue(),
    "find": lambda slurm, script, _: slurm.find(script),
    "requeue": lambda slurm, _, job: slurm.requeue(job),
    "cancel": lambda slurm, _, job: slurm.cancel(job),
    "nodes": lambda slurm, *_: slurm.nodes(),
    "partitions": lambda slurm, *_: slurm.partitions(),
    "avoid": lambda slurm, _, job: slurm.avoid(job, ["n1"]),
    "config": lambda slurm, *_: slurm.config(),
    "release": lambda slurm, _, job: slurm.release(job),
    "start_now": lambda slurm, _, job: slurm.start_now(job),
}


def outcome(op: str, slurm, script: Path, job: str) -> str:
    try:
        return f"answered {OPERATIONS[op](slurm, script, job)}"
    except SlurmError as error:
        return f"{type(error).__name__}: {error}"


@odd_group
@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_while_munge_is_away_each_operation_is_unavailable_and_none_is_refused_or_gone(odd, way: str) -> None:
    script = odd.folder / "job.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    odd.give(odd.folder)
    slurm = Commands(environ=os.environ | odd.cluster.commands(), deadline_s=6)
    job = slurm.submit(script, args=[f"--chdir={odd.folder}", "--hold"])
    assert {name for name in dir(Commands) if not name.startswith("_")} == {op.split()[0] for op in OPERATIONS} - {"test_only"}
    odd.cluster.kill("munged") if way == "killed" else odd.cluster.freeze("munged")
    try:
        with ThreadPoolExecutor(len(OPERATIONS)) as pool:
            found = dict(zip(OPERATIONS, pool.map(lambda op: outcome(op, slurm, script, job), OPERATIONS), strict=True))
    finally:
        odd.cluster.start("munged") if way == "killed" else odd.cluster.thaw("munged")
    kinds = {op: text.partition(":")[0] for op, text in found.items()}
    assert kinds.pop("submit") in {"Unavailable", "Unanswered"}, found
    assert set(kinds.values()) == {"Unavailable"}, found
    assert all("or munge does not answer" in text for text in found.values()), found
    assert slurm.show(job).state is JobState.PENDING
    slurm.cancel(job)


@pytest.mark.drill
@odd_group
def test_a_job_that_slurm_has_forgotten_is_what_the_run_itself_says(odd) -> None:
    """Without accounting: one that finished, and one whose batch script was killed, so that nobody wrote an end down."""
    done, killed = odd.submit("done"), odd.submit("killed", checkpoint={"dir": str(odd.folder / "killed" / "ckpt")})
    for run in (done, killed):
        run.until_trains()
    done.finish()
    killed.bash().kill()
    for run in (done, killed):
        run.until(lambda run=run: odd.slurm.show(run.job).state is JobState.GONE, within_s=FORGETS_S)
    assert "finished" in odd.ftsup("status", cwd=done.work)
    killed.until(lambda: f"job {killed.job} is not known to Slurm any more" in odd.ftsup("status", cwd=killed.work))
    assert "finished" not in odd.ftsup("status", cwd=killed.work)
    stop = odd.tried(sys.executable, "-m", "ftsup", "stop", cwd=killed.work)
    assert (stop.returncode, "is not known to Slurm any more" in stop.stderr) == (1, True)
    heir = odd.submit("heir", checkpoint={"dir": str(odd.folder / "killed" / "ckpt")})  # its checkpoints are nobody's now
    heir.until_trains()
    heir.finish()
    assert heir.until(lambda: heir.orders(ev.Decide))[-1].verdict.kind is VerdictKind.FINISHED


@pytest.mark.drill
def test_with_accounting_a_job_that_slurm_has_forgotten_is_what_sacct_says_until_that_is_away_too(own_site) -> None:
    site = own_site(
        Plan(nodes=("n1",), settings={"MinJobAge": "2"}, partitions=("main Nodes=n1 Default=YES",), users=True, accounting=True)
    )
    script = site.folder / "job.sh"
    script.write_text("#!/bin/bash\nexit 3\n")
    site.give(site.folder)
    slurm = Commands(environ=os.environ | site.cluster.commands())
    job = slurm.submit(script, args=[f"--chdir={site.folder}"])
    until(lambda: "Invalid job id" in site.tried("scontrol", "show", "job", job, cwd=site.folder).stderr, within_s=FORGETS_S)
    found = slurm.show(job)
    assert (found.state, found.exit_code) == (JobState.FAILED, 3)
    code, told = findings(site, written(site, "a"), "--set", "slurm.qos=gold")
    assert code == 1
    assert said(told["qos"], "problem", "slurm.qos is gold: there is no such qos; set another: there are normal")
    assert said(told["forgetting"], "ok", "afterwards ftsup asks sacct")
    site.cluster.kill("slurmdbd")
    assert slurm.show(job).state is JobState.GONE
