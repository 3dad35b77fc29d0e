"""The contract of the commands themselves, where real processes run: signals, limits, environments, logs, srun.

These are the facts that the batch script, the leader and the node supervisors are built on.
"""

from __future__ import annotations

import contextlib
import os
import resource

import pytest

from ftsup.errors import Refused, Unavailable
from ftsup.ports import JobState
from ftsup.slurm.commands import Commands
from ftsup.slurm.hostlist import compress, expand
from tests.contract.rigs import SRUN, completing, over, pending


def test_a_signal_to_the_steps_reaches_whom_the_tracking_knows(tracked):
    job = tracked.signalled()
    tracked.run("scancel", "--signal=USR1", job)
    tracked.wait_for(lambda: tracked.heard(job).get("task-USR1") == 2)
    if tracked.proctrack == "linuxproc":
        tracked.wait_for(lambda: len(tracked.read(f"heard-{job}")) >= 6)
    tracked.finish(job)
    tracked.until(job, over)
    said = {who: count for who, count in tracked.heard(job).items() if who.endswith("USR1")}
    everyone = {"task-USR1": 2, "child-USR1": 2, "session-USR1": 2}
    assert said == (everyone if tracked.proctrack == "linuxproc" else {"task-USR1": 2})


def test_a_batch_signal_reaches_the_batch_shell_alone_and_a_full_one_its_children_as_well(tracked):
    """Whatever `--full` says: no step. Its children are those of its process group."""
    job = tracked.signalled()
    tracked.run("scancel", "--batch", "--signal=USR1", job)
    tracked.wait_for(lambda: tracked.heard(job).get("batch-USR1"))
    tracked.run("scancel", "--full", "--signal=USR1", job)
    tracked.wait_for(lambda: len(tracked.read(f"heard-{job}")) >= 3)
    tracked.finish(job)
    tracked.until(job, over)
    assert {who: count for who, count in tracked.heard(job).items() if who.endswith("USR1")} == {"batch-USR1": 2, "beside-USR1": 1}


def test_what_ignores_term_is_killed_after_kill_wait(live):
    job = live.submit(text="#!/bin/bash\ntrap '' TERM\ntouch there\nwhile :; do sleep 0.2; done\n")
    live.wait_for((live.folder / "there").exists)
    live.slurm.cancel(job)
    live.until(job, completing)
    end = live.until(job, over)
    assert (end.state, end.exit_signal) == (JobState.CANCELLED, 9)


def test_a_requeue_lets_the_batch_trap_run_and_act(live):
    text = """#!/bin/bash
ask() { scontrol update JobId=$SLURM_JOB_ID ExcNodeList=$SLURMD_NODENAME >> asked 2>&1; echo "asked $?" >> asked; }
trap 'ask; exit 0' TERM
echo "$SLURMD_NODENAME ${SLURM_RESTART_COUNT-unset}" >> ran
until [ -e "end-$SLURM_JOB_ID" ]; do sleep 0.1; done
"""
    job = live.submit("-N1", text=text)
    live.wait_for(lambda: live.read("ran"))
    live.slurm.requeue(job)
    live.until(job, pending)
    assert live.read("asked") == ["asked 0"]
    live.again(job)
    live.wait_for(lambda: len(live.read("ran")) == 2)
    (first, count), (second, again) = (line.split() for line in live.read("ran"))
    assert (count, again) == ("unset", "1")
    assert first != second


def test_a_job_may_requeue_itself(live):
    text = """#!/bin/bash
if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue incomplete $SLURM_JOB_ID; echo "code $?" >> said; sleep 30; fi
exit 4
"""
    job = live.submit(text=text)
    live.until(job, pending)
    live.wait_for(lambda: live.slurm.show(job).restarts == 1)
    assert live.read("said") in (["code 0"], [])
    live.until(job, pending)
    with contextlib.suppress(Refused):  # on a slow machine the wait is over by itself
        live.slurm.start_now(job)
    end = live.until(job, over)
    assert (end.state, end.exit_code, end.restarts) == (JobState.FAILED, 4, 1)


@pytest.mark.parametrize("mode, kept", [("append", ["run unset", "run 1"]), ("truncate", ["run 1"])])
def test_the_log_over_a_requeue(live, mode, kept):
    text = "#!/bin/bash\necho run ${SLURM_RESTART_COUNT-unset}\ntouch there\nuntil [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done\n"
    job = live.submit(f"--open-mode={mode}", "--output=log-%j", text=text)
    live.wait_for((live.folder / "there").exists)
    live.slurm.requeue(job)
    live.until(job, pending)
    live.again(job)
    live.finish(job)
    live.until(job, over)
    assert [line for line in live.read(f"log-{job}") if line.startswith("run")] == kept


def test_the_environment_of_the_job(live):
    """Ours travels, the surrounding job's does not, and neither overrides the script."""
    script = live.folder / "env.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --job-name=from-the-script\n#SBATCH --chdir={live.folder}\nenv > env-$SLURM_JOB_ID\n")
    env = {**live.env, "SBATCH_JOB_NAME": "from-the-shell", "SLURM_LEFTOVER": "1", "SRUN_LEFTOVER": "1", "FTSUP_TRY": "a b=c\nd"}
    job = live.slurm.submit(script, env=env)
    live.mine.append(job)
    assert live.until(job, over).name == "from-the-script"
    seen = live.read(f"env-{job}")
    assert "FTSUP_TRY=a b=c" in seen
    assert f"SLURM_JOB_ID={job}" in seen
    assert not [line for line in seen if "LEFTOVER" in line]
    assert not [line for line in seen if line.startswith("SLURM_TIME_FORMAT")]


def test_what_a_job_knows_of_itself(live):
    text = """#!/bin/bash
for name in JOB_ID JOB_NODELIST JOB_NUM_NODES SUBMIT_DIR; do echo "$name $(eval echo \\$SLURM_$name)" >> known; done
srun -N2 -n2 --mpi=none bash -c 'echo "$SLURM_NODEID $SLURM_PROCID $SLURMD_NODENAME" >> tasks'
"""
    job = live.submit("-N2", "--ntasks-per-node=1", text=text)
    nodes = live.until(job, over).nodes
    known = dict(line.split(" ", 1) for line in live.read("known"))
    assert known["JOB_ID"] == job
    assert live.run("scontrol", "show", "hostnames", known["JOB_NODELIST"]).split() == list(nodes)
    assert known["JOB_NUM_NODES"] == "2"
    assert sorted(live.read("tasks")) == [f"{index} {index} {name}" for index, name in enumerate(nodes)]


def test_srun_returns_the_highest_code_of_its_tasks(live):
    text = f"""#!/bin/bash
{SRUN} -N2 -n2 bash -c 'exit $((SLURM_PROCID * 70 + 5))'; echo "codes $?" >> codes
{SRUN} -N1 -n1 bash -c 'kill -9 $$'; echo "killed $?" >> codes
{SRUN} -N1 -n1 true; echo "fine $?" >> codes
"""
    job = live.submit("-N2", text=text)
    live.until(job, over)
    assert live.read("codes") == ["codes 75", "killed 137", "fine 0"]


def test_a_second_step_runs_beside_the_first_only_with_overlap(live):
    text = f"""#!/bin/bash
{SRUN} -N2 -n2 bash -c 'touch first-$SLURM_PROCID; until [ -e first-may-end ]; do sleep 0.1; done' &
until [ -e first-0 ] && [ -e first-1 ]; do sleep 0.1; done
last=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -1)
timeout 2 {SRUN} -N1 -n1 -w "$last" true 2> busy; echo "plain $?" >> second
{SRUN} --overlap -N1 -n1 -w "$last" bash -c '[ $SLURMD_NODENAME = $0 ]' "$last"; echo "overlap $?" >> second
touch first-may-end
wait
"""
    job = live.submit("-N2", "--ntasks-per-node=1", text=text)
    live.until(job, over)
    assert live.read("second") == ["plain 124", "overlap 0"]


def test_srun_writes_what_its_tasks_say(live):
    text = f"""#!/bin/bash
{SRUN} -N2 -n2 --label bash -c 'echo out $SLURM_PROCID; echo err >&2' > out 2> err
{SRUN} -N2 -n2 --output=step-%t.txt bash -c 'echo mine $SLURM_PROCID'
"""
    job = live.submit("-N2", text=text)
    live.until(job, over)
    assert sorted(live.read("out")) == ["0: out 0", "1: out 1"]
    errors = [line for line in live.read("err") if "cpu binding" not in line]  # a site without a task plugin cannot bind
    assert sorted(errors) == ["0: err", "1: err"]
    assert (live.read("step-0.txt"), live.read("step-1.txt")) == (["mine 0"], ["mine 1"])


def test_the_step_dies_with_its_job_although_it_ignores_term(tracked):
    text = f"""#!/bin/bash
{SRUN} -N2 -n2 bash -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 0.2; done' &
wait
"""
    job = tracked.submit("-N2", text=text)
    tracked.wait_for(lambda: len(tracked.read("pids")) == 2)
    tracked.slurm.requeue(job)
    tracked.until(job, pending)
    for pid in tracked.read("pids"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_missing_command_is_not_an_answer(live):
    with pytest.raises(Unavailable, match=r"hint: .*PATH"):
        Commands(environ={"PATH": str(live.folder)}).show("1")


def test_host_lists_are_read_as_slurm_reads_them(live):
    for text in ("n[1-3,07-12],gpu1", "r[1-2]c[01-02]", "a,b1,b[3-4]", "n[8-12]", "n[098-101]", "x-[1,3]"):
        names = live.run("scontrol", "show", "hostnames", text).split()
        assert list(expand(text)) == names
        assert sorted(live.run("scontrol", "show", "hostnames", compress(names)).split()) == sorted(names)


@pytest.mark.parametrize("args, leaks", [((), True), (("--propagate=NONE",), False)])
def test_the_limits_of_the_shell_that_submits(live, args, leaks):
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (3 << 20, before[1]))
    try:
        job = live.submit(*args, text="#!/bin/bash\nulimit -Ss > stack\n")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
    live.until(job, over)
    assert (live.read("stack") == ["3072"]) is leaks
