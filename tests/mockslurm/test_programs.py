"""The programs of the mock with real processes: what the contract suite, which knows only the port, does not ask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ftsup.errors import ConfigError
from ftsup.mockslurm import control as mockslurm
from ftsup.mockslurm.model import StepState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
STAYS = "until [ -e end ]; do sleep 0.05; done"


def test_the_commands_say_who_they_are(mock):
    for name in ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol"):
        assert mock.run(name, "--version") == "slurm-wlm 22.05.8\n"


def test_options_of_the_line_beat_the_shell_and_the_shell_beats_the_script(mock):
    mock.env |= {"SBATCH_JOB_NAME": "shell", "SBATCH_TIMELIMIT": "7"}
    job = mock.submit("#SBATCH --job-name=script --time=9 --comment=kept", "--hold", "--time=8")
    told = mock.run("scontrol", "show", "job", str(job))
    assert f"JobId={job} JobName=shell" in told
    assert "TimeLimit=00:08:00" in told
    assert "Comment=kept" in told


@pytest.mark.parametrize(
    "export, seen",
    [("ALL", {"ONE": "1", "TWO": "2"}), ("NONE", {}), ("ONE", {"ONE": "1"}), ("ALL,ONE=x", {"ONE": "x", "TWO": "2"})],
)
def test_the_environment_that_travels(mock, export, seen):
    mock.env |= {"ONE": "1", "TWO": "2", "SLURM_RESTART_COUNT": "7"}
    job = mock.submit('env > env; squeue -h -o "%T" > queue', f"--export={export}")
    mock.until_word(job, "COMPLETED")
    found = dict(line.split("=", 1) for line in mock.read("env").splitlines() if "=" in line)
    assert {name: found[name] for name in ("ONE", "TWO") if name in found} == seen
    assert mock.read("queue") == "RUNNING\n"
    assert found["SLURM_EXPORT_ENV"] == export
    assert found["SLURM_RESTART_COUNT"] == "7"  # a trap of the real one: sbatch inside a job hands it on


def test_exported_functions_travel(mock):
    mock.env["BASH_FUNC_hello%%"] = "() { echo hello; }"
    job = mock.submit("srun -n1 bash -c hello > said")
    mock.until_word(job, "COMPLETED")
    assert mock.read("said") == "hello\n"


def test_file_names_are_filled_in(mock):
    job = mock.submit("echo out; echo err >&2; srun -N2 -n2 -o '%x-%j.%s.%N.%t' hostname", "-N2", "-Jname", "-o%x-%j-%N-%%j", "-eerr-%A")
    mock.until_word(job, "COMPLETED")
    assert mock.read(f"name-{job}-mock1-%j") == "out\n"
    assert mock.read(f"err-{job}") == "err\n"
    assert mock.read(f"name-{job}.0.mock2.1")


def test_a_job_may_submit_another_that_outlives_it(mock):
    """The chain: the next job's runner must not hang below this job's processes, which are all ended."""
    mock.run("sbatch", "--version")
    (mock.folder / "next.sh").write_text(f"#!/bin/bash\necho began > next\n{STAYS}\n")
    first = mock.submit("sbatch --parsable --dependency=afterany:$SLURM_JOB_ID next.sh > id; sleep 0.3")
    mock.until_word(first, "COMPLETED")
    mock.until(lambda: mock.read("next"))
    second = int(mock.read("id"))
    assert mock.word(second) == "RUNNING"
    (mock.folder / "end").touch()
    mock.until_word(second, "COMPLETED")


@pytest.mark.parametrize("proctrack, survives", [("cgroup", False), ("linuxproc", True)])
def test_a_stray_of_a_step(make, proctrack, survives):
    """What has lost its parents is ended under cgroups, and not found otherwise."""
    mock = make(proctrack=proctrack)
    job = mock.submit("srun -n1 bash -c '(setsid sleep 300 > /dev/null 2>&1 & echo $! > stray)'")
    mock.until_word(job, "COMPLETED")
    assert len(mock.left(job)) == survives


def test_under_cgroups_strays_without_a_mark_are_ended_too(mock):
    job = mock.submit("srun -n1 bash -c '(env -i setsid sleep 300 > /dev/null 2>&1 & echo $! > stray)'")
    mock.until_word(job, "COMPLETED")
    assert not mock.folder.joinpath("/proc", mock.read("stray").strip()).exists()


def test_the_controller_is_away_and_comes_back(mock):
    job = mock.submit(STAYS)
    mock.until_word(job, "RUNNING")
    mockslurm.away(mock.state, seconds=600)
    connect = "Unable to contact slurm controller (connect failure)"
    for argv, said, code in (
        (["squeue"], f"slurm_load_jobs error: {connect}", 1),
        (["scontrol", "show", "job", str(job)], f"slurm_load_jobs error: {connect}", 1),
        (["scontrol", "show", "node", "mock1"], f"slurm_load_node error: {connect}", 1),
        (["scontrol", "show", "config"], f"slurm_load_ctl_conf error: {connect}", 1),
        (["scontrol", "requeue", str(job)], f"Unexpected message received for job {job}", 1),
        (["scontrol", "update", f"JobId={job}", "StartTime=now"], f"Unexpected message received for job {job}", 1),
        (["scancel", str(job)], f"scancel: error: Kill job error on job id {job}: {connect}", 8),
        (["sinfo"], f"slurm_load_partitions: {connect}", 1),
        (["sbatch", "job.sh"], f"sbatch: error: Batch job submission failed: {connect}", 1),
        (["sbatch", "--test-only", "job.sh"], f"allocation failure: {connect}", 1),
    ):
        assert mock.run(*argv, code=code).strip() == said
    mockslurm.away(mock.state, seconds=0)
    assert mock.word(job) == "RUNNING"


def test_a_job_that_ends_while_the_controller_is_away_is_over_afterwards(mock):
    job = mock.submit("touch there; until [ -e end ]; do sleep 0.05; done; exit 3")
    mock.until((mock.folder / "there").exists)
    mockslurm.away(mock.state, seconds=1)
    (mock.folder / "end").touch()
    mock.until(lambda: "FAILED" in mock.run("squeue", "-t", "all", "-h", "-o", "%T", code=None))
    assert "ExitCode=3:0" in mock.run("scontrol", "show", "job", str(job))


def test_requeues_are_refused_and_then_granted(mock):
    mockslurm.configure(mock.state, begin_wait_s=600)
    job = mock.submit(STAYS)
    mock.until_word(job, "RUNNING")
    mockslurm.refuse_requeues(mock.state, count=1)
    said = mock.run("scontrol", "requeue", "incomplete", str(job), code=1)
    assert said == f"Requested operation is presently disabled for job {job}\n"
    mock.run("scontrol", "requeue", "incomplete", str(job))
    mock.until_word(job, "PENDING")
    assert mock.job(job).restarts == 1


def test_a_node_that_is_lost_takes_its_processes_and_the_job_is_requeued_elsewhere(mock):
    job = mock.submit("srun -N2 -n2 bash -c 'echo $SLURMD_NODENAME >> ran; sleep 300'", "-N2", "--open-mode=append")
    mock.until(lambda: mock.read("ran").count("\n") == 2)
    mockslurm.node_down(mock.state, "mock2")
    mock.until(lambda: mock.job(job).grant == 2)
    mock.until(lambda: mock.read("ran").count("\n") == 4)
    assert sorted(mock.read("ran").split()[2:]) == ["mock1", "mock3"]
    assert "State=DOWN " in mock.run("scontrol", "show", "node", "mock2")
    mockslurm.node_up(mock.state, "mock2")
    assert "State=IDLE " in mock.run("scontrol", "show", "node", "mock2")


def test_a_killed_srun_takes_its_step_with_it(mock):
    job = mock.submit(
        "srun -N2 -n2 bash -c 'touch there-$SLURM_PROCID; sleep 300' & echo $! > pid; wait; sleep 0.2; squeue -h -o %T", "-N2"
    )
    mock.until(lambda: mock.read("pid") and all((mock.folder / f"there-{rank}").exists() for rank in (0, 1)))
    subprocess.run(["kill", "-9", mock.read("pid").strip()], check=True)
    mock.until_word(job, "COMPLETED")
    assert mock.left(job) == set()


def test_an_srun_that_looks_late_still_hears_how_its_tasks_ended(mock):
    """Its step has come and gone before it looks again: no reason to say that there was none, or to miss half of the codes."""
    job = mock.submit(
        "srun -N2 -n2 bash -c 'touch first; until [ -e first-may-end ]; do sleep 0.05; done' &\n"
        "until [ -e first ]; do sleep 0.05; done\n"
        "srun -N2 -n2 bash -c 'exit $((SLURM_PROCID * 70 + 5))' 2> said & echo $! > pid; wait $!; echo $? > code",
        "-N2",
    )
    busy = [StepState.BUSY]  # the runner's word: srun holds the lock no more
    mock.until(lambda: [step.state for step in mock.job(job).steps[2:]] == busy and mock.read("pid"))
    late = int(mock.read("pid"))
    os.kill(late, signal.SIGSTOP)
    (mock.folder / "first-may-end").touch()
    mock.until(lambda: mock.job(job).steps[2].state is StepState.DONE)
    os.kill(late, signal.SIGCONT)
    mock.until_word(job, "COMPLETED")
    assert mock.read("code") == "75\n"
    assert "Unable to create step" not in mock.read("said")


def test_the_first_bad_exit_ends_the_step_where_that_is_asked(mock):
    job = mock.submit(
        "srun -N2 -n2 --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 0 ] && exit 5; exec sleep 300' 2> said; echo $? > code", "-N2"
    )
    mock.until_word(job, "COMPLETED")
    assert "task 0: Exited with exit code 5" in mock.read("said")
    assert mock.read("code") == "143\n"


def test_a_job_is_told_why_it_is_ended(mock):
    mockslurm.configure(mock.state, kill_wait_s=30, begin_wait_s=600)  # so that a slow srun has its say, and keeps it
    job = mock.submit(f"srun -N2 -n2 bash -c 'touch there-$SLURM_PROCID; {STAYS}' 2> said", "-N2", "--open-mode=append", "-o", "log")
    mock.until(lambda: all((mock.folder / f"there-{rank}").exists() for rank in (0, 1)))
    mock.run("scontrol", "requeue", str(job))
    mock.until_word(job, "PENDING")
    assert f"*** JOB {job} ON mock1 CANCELLED AT " in mock.read("log")
    assert "DUE TO JOB REQUEUE ***" in mock.read("log")
    assert "srun: Job step aborted: Waiting up to 32 seconds for job step to finish." in mock.read("said")


def test_many_commands_at_once(mock):
    """Twelve submissions side by side: every one gets its own number, and all of them run."""
    (mock.folder / "job.sh").write_text("#!/bin/bash\ntrue\n")
    started = [mock.start("sbatch", "--parsable", "job.sh") for _ in range(12)]
    numbers = sorted(int(one.communicate(timeout=30)[0]) for one in started)
    assert numbers == list(range(1, 13))
    mock.until(lambda: mock.run("squeue", "-h") == "", within_s=40)
    assert {mock.job(number).state.value for number in numbers} == {"COMPLETED"}


def test_settings_change_while_it_lives(mock):
    job = mock.submit(STAYS, "--begin=99999999999")
    assert mockslurm.configure(mock.state, begin_wait_s=0.5).begin_wait_s == 0.5
    with pytest.raises(ConfigError, match="proctrack"):
        mockslurm.configure(mock.state, proctrack="none")
    with pytest.raises(ConfigError, match="nonsense"):
        mockslurm.configure(mock.state, nonsense=1)
    assert "(BeginTime)" in mock.run("squeue", "-h", "-j", str(job))


def test_stop_ends_everything(mock):
    jobs = [mock.submit("trap '' TERM; srun -n1 bash -c 'trap \"\" TERM; touch there-$SLURM_JOB_ID; sleep 300'") for _ in range(2)]
    mock.until(lambda: all((mock.folder / f"there-{job}").exists() for job in jobs))
    assert mockslurm.stop(mock.state)
    for job in jobs:
        assert mock.left(job) == set()
        assert mock.word(job) == "CANCELLED"


def test_programs_in_a_directory_too_deep_for_a_first_line(mock, tmp_path):
    """The kernel reads 127 bytes; what is longer goes through bash."""
    deep = tmp_path / ("python " + "x" * 120)
    deep.mkdir()
    (deep / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (deep / "python").chmod(0o700)
    imports = "import sys; from pathlib import Path; from ftsup.mockslurm import control as mockslurm"
    make = f"sys.executable = {str(deep / 'python')!r}; mockslurm.create(Path({str(mock.state)!r}))"
    subprocess.run([sys.executable, "-c", f"{imports}; {make}"], check=True)
    assert mock.store.bin.joinpath("squeue").read_text().startswith("#!/bin/bash\n")
    assert mock.run("squeue", "-h") == ""


def test_times_are_written_as_asked(mock):
    job = mock.submit("true", "--hold")
    mock.env["SLURM_TIME_FORMAT"] = "%s"
    told = mock.run("scontrol", "-o", "show", "job", str(job))
    assert int(told.split("SubmitTime=")[1].split()[0]) == int(mock.job(job).submit_at)


@pytest.mark.parametrize(
    "options, ranks",
    [
        ("-N2", ["0 mock1 0", "1 mock2 0"]),
        ("-n3", ["0 mock1 0", "1 mock1 1", "2 mock2 0"]),
        ("-N1 -n1 -w mock2", ["0 mock2 0"]),
        ("-w mock2", ["0 mock1 0", "1 mock2 0"]),
        ("-n1", ["0 mock1 0"]),
        ("--ntasks-per-node=2", ["0 mock1 0", "1 mock1 1", "2 mock2 0", "3 mock2 1"]),
    ],
)
def test_where_tasks_go(mock, options, ranks):
    job = mock.submit(f"srun {options} bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID' | sort > ranks", "-N2")
    mock.until_word(job, "COMPLETED")
    assert mock.read("ranks").splitlines() == ranks


def test_a_log_is_appended_to_by_steps_where_the_job_asked_for_it(mock):
    (mock.folder / "log").write_text("old\n")
    job = mock.submit("srun -n1 -o log echo new", "--open-mode=append")
    mock.until_word(job, "COMPLETED")
    assert mock.read("log") == "old\nnew\n"
