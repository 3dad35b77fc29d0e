"""The one job that follows, on a real Slurm: whoever is killed, at whichever moment, whatever ended the job, whatever a plugin does."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import Run, Site, until
from tests.e2e.plainly import submit, until_runs
from tests.realslurm.cluster import Plan
from tests.realslurm.test_requeue import asked, follow, of_script
from tests.realslurm.test_watch import look, minute_later

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.drill, pytest.mark.timeout(400)]

THREE = ("main Nodes=n1,n2,n3 Default=YES MaxTime=INFINITE DefaultTime=10",)
LOSING = Plan(nodes=("n1", "n2", "n3"), partitions=THREE, settings={"SlurmdTimeout": "5"}, users=True)
TAKEN = Plan(
    nodes=("n1", "n2"),
    settings={"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
    partitions=(
        "low Nodes=n1,n2 PriorityTier=1 PreemptMode=CANCEL GraceTime=0 DefaultTime=10 Default=YES",
        "high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF DefaultTime=10",
    ),
    users=True,
)
PLUGIN = """
function slurm_job_submit(job, partitions, uid)
    job.requeue = 0
    {more}
    return slurm.SUCCESS
end
function slurm_job_modify(job, old, partitions, uid)
    return slurm.SUCCESS
end
"""


def in_path(site: Site, **commands: str) -> str:
    """A `setup` with commands before Slurm's in PATH: shell text, in which `real` is Slurm's own, and `once` true a single time."""
    folder = site.folder / "before"
    folder.mkdir()
    for name, text in commands.items():
        real = shutil.which(name, path=site.environ["PATH"])
        once = f"here={folder}\nonce() {{ mkdir $here/.once 2>/dev/null; }}"
        (folder / name).write_text(f'#!/bin/bash\n{once}\nreal() {{ {real} "$@"; }}\n{text}\n')
        (folder / name).chmod(0o755)
    site.give(folder)
    return f"PATH={folder}:$PATH"


def states(run: Run) -> list[tuple[str, JobState]]:
    """Of the jobs that follow it."""
    return [(job, run.site.slurm.show(job).state) for job in of_script(run.site, run.place.script) if job != run.job]


def one_follows(run: Run) -> Run:
    """It leads the run, ends it, and is the only one that ever began."""
    until(lambda: len(run.events(ev.LeaderStarted)) > 1 and run.events(ev.LeaderStarted)[-1].job != run.job, what=run.story)
    later = Run(run.site, run.work, run.place, job=run.events(ev.LeaderStarted)[-1].job)
    run.site.runs.append(later)
    until_runs(later, epoch=ev.Epoch(2, 1))
    assert [event.job for event in run.events(ev.LeaderStarted) if event.job != run.job] == [later.job]
    later.finish()
    assert later.until_ended().state is JobState.COMPLETED  # a node that died has left its memory as it was
    until(lambda: all(state in {JobState.COMPLETED, JobState.CANCELLED} for _, state in states(run)), what=run.story)  # who is one too many
    assert [event.job for event in run.events(ev.LeaderStarted) if event.job != run.job] == [later.job]
    return later


# Killed at every moment ---------------------------------------------------------------------------------------------------

LEADER = "kill -9 $(ps -o ppid= -p $PPID)"
"""Its helper, which asks Slurm, is our parent."""
MOMENTS = {
    "before it looks": {"squeue": f'once && {LEADER}\nreal "$@"'},
    "between the look and sbatch": {"sbatch": f'once && {LEADER}\nreal "$@"'},
    "while sbatch hangs": {
        "sbatch": f'if once; then {LEADER}; until [ -e $here/.second ]; do sleep 0.1; done; else touch $here/.second; fi\nreal "$@"'
    },
    "after sbatch": {"sbatch": f'said=$(real "$@") || exit\nonce && {LEADER} && kill -9 $PPID\necho "$said"'},
    "after sbatch, whose helper goes on": {"sbatch": f'said=$(real "$@") || exit\nonce && {LEADER}\necho "$said"'},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_its_leader_is_killed(real, moment: str) -> None:
    (run,) = submit(real, setup=in_path(real, **MOMENTS[moment]), requeue="chain")
    until_runs(run)
    asked(run)
    one_follows(run)
    assert len([event for event in run.events(ev.LeaderStarted) if event.job == run.job]) == 2, run.story()
    assert len(states(run)) == (2 if moment == "while sbatch hangs" else 1)


@contextlib.contextmanager
def typed_with(site: Site, path: str) -> Iterator[None]:
    """The user has this in PATH."""
    before = site.environ["PATH"]
    site.environ["PATH"] = path.partition("=")[2].replace("$PATH", before)
    try:
        yield
    finally:
        site.environ["PATH"] = before


@pytest.mark.parametrize("moment", ["squeue", "sbatch", "after sbatch"])
def test_its_watcher_is_killed(real, moment: str) -> None:
    """Leader and batch script are killed with the requeue decided; then watch, in the middle of it."""
    (run,) = submit(real, requeue="chain", setup=in_path(real, squeue="sleep 600"))
    until_runs(run)
    asked(run)
    run.until(run.place.requeue.exists)
    leader, bash = run.leader(), run.bash()
    bash.kill()
    leader.kill()
    run.until_ended()
    shutil.rmtree(real.folder / "before")
    dies = {
        "squeue": {"squeue": '[[ $* = *%o* ]] && once && kill -9 $PPID\nreal "$@"'},
        "sbatch": {"sbatch": 'once && kill -9 $PPID\nreal "$@"'},
        "after sbatch": {"sbatch": 'said=$(real "$@") || exit\nonce && kill -9 $PPID\necho "$said"'},
    }[moment]
    assert look(run) == []
    minute_later(run)
    with typed_with(real, in_path(real, **dies)):
        assert real.tried("ftsup", "watch", "--once", cwd=run.work).returncode < 0 or not states(run)
    for _ in range(3):
        minute_later(run)
        run.place.root.joinpath("watch.jsonl").write_text(aged(run))
        real.give(run.place.root / "watch.jsonl")
        look(run)
    one_follows(run)


def aged(run: Run, *, by_s: float = 100.0) -> str:
    """What watch wrote down, as if it were so much longer ago."""
    lines = [json.loads(line) for line in (run.place.root / "watch.jsonl").read_text().splitlines()]
    return "".join(json.dumps({**line, "at_s": line["at_s"] - by_s}) + "\n" for line in lines)


# Ended by Slurm -----------------------------------------------------------------------------------------------------------


def test_preempted_for_good_while_nobody_answered_watch_submits_the_one_that_follows(own_site) -> None:
    """PreemptMode=CANCEL; the leader is told to end, and asks in vain why."""
    site = own_site(TAKEN)
    deaf = site.folder / "deaf"
    away = f'[ -e {deaf} ] && echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2 && exit 1\nreal "$@"'
    (run,) = submit(site, setup=in_path(site, scontrol=away))
    until_runs(run)
    deaf.touch()
    high = site.run("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "--wrap=sleep 600").strip()
    assert run.until_ended().state is JobState.PREEMPTED
    assert run.place.unexplained.exists()
    deaf.unlink()
    assert look(run) == []
    minute_later(run)
    (said,) = look(run)
    assert (said["do"], said["about"], said.get("failed", "")) == ("succeed", "unexplained", "")
    for _ in range(3):
        minute_later(run)
        assert look(run) == []
    site.run("scancel", high)
    one_follows(run)


def test_preempted_for_good_the_leader_submits_the_one_that_follows(own_site) -> None:
    """It hears why in the seconds until KillWait."""
    site = own_site(TAKEN)
    (run,) = submit(site, requeue="chain")
    until_runs(run)
    high = site.run("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "--wrap=sleep 600").strip()
    assert run.until_ended().state is JobState.PREEMPTED
    assert [state for _, state in states(run)] == [JobState.PENDING]
    site.run("scancel", high)
    one_follows(run)


def test_a_node_is_lost_and_the_leader_submits_the_one_that_follows(own_site) -> None:
    """Slurm notices it before we do, and requeues nothing: NODE_FAIL."""
    site = own_site(LOSING)
    (run,) = submit(site, nodes=2, requeue="chain", more={"node_grace": "10min"})
    until_runs(run)
    site.cluster.node_dies("n2")
    assert run.until_ended().state is JobState.NODE_FAIL
    assert "Slurm has lost a node of the job" in run.output()
    one_follows(run)


def test_the_batch_host_is_lost_and_watch_submits_the_one_that_follows(own_site) -> None:
    site = own_site(LOSING)
    (run,) = submit(site, nodes=1, requeue="chain")
    until_runs(run)
    site.cluster.node_dies("n1")
    assert run.until_ended().state is JobState.NODE_FAIL
    assert look(run) == []
    minute_later(run)
    (said,) = look(run)
    assert (said["do"], said["about"], said.get("failed", "")) == ("succeed", "unexplained", "")
    minute_later(run)
    assert look(run) == []
    one_follows(run)


# Given up -----------------------------------------------------------------------------------------------------------------


def test_a_launch_that_always_fails_is_released_five_times_and_given_up(own_site, tmp_path) -> None:
    """An administrator takes the node back into service each time, and it is as broken as before."""
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/bash\nexit 1\n")
    prolog.chmod(0o755)
    site = own_site(
        Plan(nodes=("n1",), partitions=("main Nodes=n1 Default=YES DefaultTime=10",), settings={"Prolog": str(prolog)}, users=True)
    )
    (run,) = submit(site)
    done = []
    while True:
        until(lambda: run.show().held, what=run.story)
        (said,) = look(run)
        done.append(said["do"])
        if said["do"] != "release":
            break
        site.cluster.admin("scontrol", "update", "NodeName=n1", "State=RESUME")
        (run.place.root / "watch.jsonl").write_text(aged(run, by_s=3600.0))
        site.give(run.place.root / "watch.jsonl")
        until(lambda: not run.show().held or run.show().restarts > len(done), what=run.story)
    assert done == ["release"] * 5 + ["say"]
    assert said["about"] == "launch failed given up"
    assert "that was done 5 times within a day, and is not done again" in said["text"]
    assert f"ftsup submit --continue {run.place.id}" in said["hint"]
    assert look(run) == []


# A site's submit plugin ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", 'job.comment = "site"; job.partition = "main"'])
def test_a_submit_plugin_takes_requeue_away(own_site, more: str) -> None:
    """JobSubmitPlugins=lua: what is asked for with --requeue is not requeueable, and nobody is told."""
    partitions = ("other Nodes=n3 Default=YES DefaultTime=10", "main Nodes=n1,n2 DefaultTime=10") if more else THREE
    files = {"job_submit.lua": PLUGIN.format(more=more)}
    site = own_site(Plan(nodes=("n1", "n2", "n3"), partitions=partitions, settings={"JobSubmitPlugins": "lua"}, files=files, users=True))
    (run,) = submit(site)
    assert not run.show().requeueable
    until_runs(run)
    asked(run)
    after = follow(run)
    until_runs(after, epoch=ev.Epoch(2, 1))
    assert f"Slurm does not requeue job {run.job} (the job is not requeueable): another job of this run follows" in run.output()
    assert run.show().state is JobState.COMPLETED
    assert not more or (after.show().partition, "Comment=site" in site.run("scontrol", "show", "job", after.job)) == ("main", True)
    after.finish()
    after.until_over()
    assert len(of_script(site, run.place.script)) == 2
