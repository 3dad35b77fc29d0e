"""What bash does when the leader ends, dies, or cannot start: the rendered script itself, with stand-ins for leader and Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftsup import sbatch
from ftsup.cli import owntemplate
from ftsup.config import Config, Requeue, SlurmOptions
from ftsup.rundir import LocalDir, RunDir

LEADER = """#!/bin/bash
cd "{home}" || exit 9
echo start "$@" >>calls
n=$(grep -c '^start' calls)
decide() {{ printf '{{"verdict":"%s","code":%s,"reason":"\\\\"verdict\\\\":\\\\"requeue\\\\""}}\\n' "$1" "$2" >"$(decision)"; }}
decision() {{ echo "$FTSUP_LOCAL/decision.$SLURM_RESTART_COUNT.json"; }}
progress() {{ echo "$1" >"$FTSUP_LOCAL/progress"; }}
die() {{ kill -KILL $$; }}
mkdir -p "$FTSUP_LOCAL"
{acts}
"""
DIE = "die # every time"


class World:
    """One job on one host. `leader` is what each start of the leader does, in bash; `scontrol` what Slurm does when asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run = RunDir(home / "runs" / "demo" / "1 a")
        self.run.root.mkdir(parents=True)
        self.local = LocalDir(base=home / "local", run_id=self.run.id, job="77", node="leader").root
        (home / "bin").mkdir()
        self.program("sleep", 'echo sleep "$1" >>calls')
        self.program("timeout", 'shift 3; exec "$@"')
        self.program("scontrol", "kill -TERM $PPID")  # Slurm requeues the job

    def program(self, name: str, acts: str) -> None:
        path = self.home / "bin" / name
        path.write_text(f'#!/bin/bash\ncd "{self.home}"\n{"" if name == "sleep" else f"""echo {name} "$@" >>calls"""}\n{acts}\n')
        path.chmod(0o755)

    def job(self, leader: str, *, restarts: int = 0, requeue: Requeue = Requeue.REQUEUE, setup: str = "", own: str = "") -> int:
        """Run the job's script to its end; its exit code. `own`: a template of the user's own."""
        python = self.home / "py thon"
        python.write_text(LEADER.format(home=self.home, acts=leader))
        python.chmod(0o755)
        config = Config(
            name="demo",
            command=("x",),
            workdir=str(self.home),
            local_dir=str(self.home / "local"),
            setup=setup,
            slurm=SlurmOptions(requeue=requeue),
        )
        values = sbatch.values(config, run=self.run, python=str(python))
        if own:
            (self.home / "own.j2").write_text(own)
        script = owntemplate.fill(self.home / "own.j2", values) if own else sbatch.fill(sbatch.default_template(), values)
        env = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": str(restarts), "PATH": f"{self.home}/bin:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=30, check=False)
        self.said = done.stderr
        return done.returncode

    @property
    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().splitlines()

    @property
    def starts(self) -> int:
        return sum(call.startswith("start") for call in self.calls)

    @property
    def requeues(self) -> int:
        return self.calls.count("scontrol requeue incomplete 77")


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("verdict, code", [("finished", 0), ("stop", 1), ("cancelled", 0), ("stop", 75)])
def test_the_exit_code_is_what_the_leader_decided_and_not_what_it_exited_with(world, verdict, code):
    assert world.job(f"decide {verdict} {code}; exit 9") == code
    assert world.calls == [f"start -m ftsup lead {world.run.root}"]


def test_a_leader_that_is_killed_is_started_again_in_place_at_once(world):
    assert world.job("[ $n -lt 3 ] && die; decide finished 0") == 0
    assert world.starts == 3
    assert [call for call in world.calls if call.startswith("sleep")] == ["sleep 5"]
    assert "1 of 3" in world.said


def test_progress_makes_the_deaths_count_from_the_start_again(world):
    assert world.job("[ $n -lt 8 ] && { progress $((n / 2)); die; }; decide finished 0") == 0
    assert world.starts == 8


def test_after_the_third_death_without_progress_it_requeues_once_and_counts_it(world):
    world.job(DIE)
    assert world.starts == 3
    assert world.requeues == 1
    assert (world.run.root / "bash-requeues").read_text() == "1 \n"


def test_an_scontrol_that_hangs_is_ended_and_keeps_nobody_from_hearing_a_term(world):
    world.program("timeout", "kill -TERM $PPID; exec env PATH=/usr/bin:/bin sleep 20 >/dev/null 2>&1")
    assert world.job(DIE) == 1
    assert [call for call in world.calls if call != "sleep 1"][-1] == "timeout -k 5 60 scontrol requeue incomplete 77"  # 1: before keep_out


@pytest.mark.parametrize("acts", [DIE, 'progress "$SLURM_RESTART_COUNT.1 gather 40"; die'])
def test_five_requeues_without_progress_are_the_end(world, acts):
    for grant in range(5):
        world.job(acts, restarts=grant)
    assert world.requeues == 5
    assert world.job(acts, restarts=5) == 1
    assert world.requeues == 5


def test_a_better_best_step_starts_that_count_again_also_on_another_host(world):
    (world.run.root / "bash-requeues").write_text("5 40\n")
    assert world.job('progress "6.1 gather 40"; die') == 1
    assert world.requeues == 0
    world.job('progress "7.1 run 41"; die', restarts=1)
    assert world.requeues == 1
    assert (world.run.root / "bash-requeues").read_text() == "1 41\n"


def test_a_leader_that_says_nothing_at_all_is_no_progress(world):
    (world.run.root / "bash-requeues").write_text("3 40\n")
    world.job(DIE)
    assert (world.run.root / "bash-requeues").read_text() == "4 40\n"


def test_what_cannot_be_counted_is_not_requeued(world):
    (world.run.root / "bash-requeues").mkdir()
    assert world.job(DIE) == 1
    assert world.requeues == 0


def test_a_decided_requeue_that_the_leader_could_not_ask_for_is_asked_for(world):
    world.job("decide requeue 75; die")
    assert (world.starts, world.requeues) == (1, 1)
    assert not (world.run.root / "bash-requeues").exists()


def test_of_a_chain_the_leader_that_could_not_submit_the_next_job_is_started_again(world):
    assert world.job('[ "$n" = 2 ] && decide requeued 0 || decide requeue 0; die', requeue=Requeue.CHAIN) == 0
    assert (world.starts, world.requeues) == (2, 0)


def test_a_requeue_that_is_done_already_is_not_asked_for(world):
    assert world.job("""echo '{"verdict":"requeue","code":7,"done":true,"reason":"x"}' >"$(decision)" """) == 7
    assert world.job("""echo '{"verdict":"requeue","code":7,"done":false,"reason":"x"}' >"$(decision)" """, restarts=1) == 1
    assert world.requeues == 1


def test_a_refused_requeue_is_asked_for_again_but_not_for_ever(world):
    world.program("scontrol", "exit 1")
    assert world.job("decide requeue 75") == 1
    assert world.requeues == 10
    assert "did not requeue" in world.said


@pytest.mark.parametrize("decided", ["", "decide requeue 75;", "decide cancelled 0;"])
def test_a_job_that_was_told_to_end_hands_it_on_and_never_comes_back(world, decided):
    code = world.job(f'/bin/sleep 20 & trap "kill $!; {decided} exit 0" HUP; kill -TERM $PPID; wait; echo late >>calls')
    assert code == (0 if "cancelled" in decided else 1 if decided else 143)
    assert (world.starts, world.requeues) == (1, 0)
    assert "late" not in world.calls


@pytest.mark.parametrize("answers", [True, False])
def test_a_term_that_the_leader_has_answered_is_forgotten(world, answers):
    """A leader that dies afterwards is followed by another one; and the next TERM counts."""
    told = "heard=''; trap heard=1 HUP; kill -TERM $PPID; until [ -n \"$heard\" ]; do /bin/sleep 0.02; done"
    answer = "kill -URG $PPID;" if answers else ""
    code = world.job(f"case $n in 1) {told}; {answer} die ;; 2) {told}; die ;; esac; decide finished 0")
    assert (code, world.starts, world.requeues) == (143, 2 if answers else 1, 0)


def test_term_between_two_starts_starts_nothing_more(world):
    world.program("sleep", '[ "$1" != 5 ] || kill -TERM $PPID')  # not the keeper's: its parent may be gone by then, and pid 1 in its place
    assert world.job(DIE) == 143
    assert (world.starts, world.requeues) == (2, 0)


def test_term_while_it_waits_for_a_requeue_ends_the_asking(world):
    world.program("scontrol", "exit 1")
    world.program("sleep", '[ "$1" != 60 ] || kill -TERM $PPID')
    assert world.job("decide requeue 75") == 1
    assert world.requeues == 1


@pytest.mark.parametrize("mark", ["cancelled", "paused"])
@pytest.mark.parametrize("acts", [DIE, "decide requeue 75"])
def test_a_cancelled_or_paused_run_is_never_requeued(world, acts, mark):
    (world.run.root / mark).touch()
    assert world.job(acts) == 1
    assert world.requeues == 0


@pytest.mark.parametrize("mode", [Requeue.OFF, Requeue.CHAIN])
def test_without_leave_to_requeue_bash_does_not(world, mode):
    assert world.job(DIE, requeue=mode) == 1
    assert (world.starts, world.requeues) == (3, 0)


@pytest.mark.parametrize("mode", [Requeue.OFF, Requeue.CHAIN])
def test_where_bash_must_not_requeue_a_decided_requeue_is_left_to_the_next_leader(world, mode):
    """Of a chain, only it can submit the next job."""
    assert world.job("decide requeue 5", requeue=mode) == 1
    assert (world.starts, world.requeues) == (3, 0)


def test_the_decision_of_an_earlier_grant_is_not_obeyed(world):
    assert world.job("decide stop 3") == 3
    assert world.job("decide finished 0", restarts=1) == 0
    assert world.starts == 2


@pytest.mark.parametrize(
    "text", ["", '{"verdict":"fin', '{"code":0,"verdict":"finished"}', '{"verdict":"rm -rf","code":0}', '{"verdict":"restart","code":0}']
)
def test_what_is_no_decision_is_none(world, text):
    world.local.mkdir(parents=True)
    (world.local / "decision.0.json").write_text(text)
    world.job(DIE)
    assert (world.starts, world.requeues) == (3, 1)


def test_setup_cannot_break_the_loop(world):
    world.job(DIE, setup="set -eu\ncd /\nrun=/nowhere; python=/bin/true; job=1\nexport TMPDIR=/elsewhere")
    assert (world.starts, world.requeues) == (3, 1)


def test_a_setup_that_fails_under_set_e_ends_the_job_before_the_leader(world):
    assert world.job("decide finished 0", setup="echo setup >>calls; set -e; false") == 1
    assert world.calls == ["setup"]


def test_setup_runs_in_the_workdir_and_its_exports_reach_the_leader(world):
    assert world.job('echo "$A" >>calls; decide finished 0', setup="echo $PWD >>calls; export A='x y'") == 0
    assert world.calls[0] == str(world.home)
    assert world.calls[-1] == "x y"


DECIDED = '{"verdict":"finished","code":0}\n'


def planted(world) -> Path:
    """What somebody who guessed our name laid there, as the leader would."""
    folder = world.home / "theirs" / world.local.relative_to(world.local.parents[2])
    folder.mkdir(parents=True)
    (folder / "decision.0.json").write_text(DECIDED)
    (folder / "progress").write_text("1.1 gather 40\n")
    world.local.parents[3].mkdir()
    return world.home / "theirs"


def by_link(world) -> None:
    world.local.parents[2].symlink_to(planted(world))


def by_folder(world) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    os.chown(planted(world).rename(world.local.parents[2]), 12345, -1)


@pytest.mark.parametrize("plant", [by_link, by_folder])
def test_a_decision_that_somebody_else_laid_there_is_not_obeyed(world, plant):
    plant(world)
    assert world.job("exit 1") == 1
    assert world.starts == 3
    assert world.requeues == 1
    assert (world.run.root / "bash-requeues").read_text() == "1 \n"


@pytest.mark.parametrize("plant", [by_link, by_folder])
def test_a_leader_that_lives_under_another_name_is_obeyed(world, plant):
    plant(world)
    elsewhere = world.local.parents[2]
    other = elsewhere.with_name(f"{elsewhere.name}-0a1b2c3d-77") / world.local.relative_to(elsewhere)
    act = f'mkdir -p "{other}"; echo \'{{"verdict":"stop","code":3,"done":true}}\' >"{other}/decision.0.json"'
    assert world.job(act, setup="set -f") == 3
    assert world.starts == 1


def test_the_count_of_requeues_is_ours_alone_and_never_run_as_code(world):
    (world.run.root / "bash-requeues").write_text(f"a[$(touch${{IFS}}{world.home}/run)] 40\n")
    world.job(DIE, setup="umask 000")
    assert not (world.home / "run").exists()
    assert (world.run.root / "bash-requeues").read_text() == "1 40\n"
    (world.run.root / "bash-requeues").unlink()
    world.job(DIE, setup="umask 000")
    assert (world.run.root / "bash-requeues").stat().st_mode & 0o077 == 0


# The second chance to keep nodes out ---------------------------------------------------------------------------------------

KEEP_OUT = """
[ "$2" = ftsup.slurm ] && exit
echo '{"job_id":"77","nodes":["n2"]}' >"$FTSUP_LOCAL/keepout.$SLURM_RESTART_COUNT.json"
"""
KEPT_OUT = 'start -m ftsup.slurm keep_out {"job_id":"77","nodes":["n2"]}'


def test_told_to_end_it_keeps_out_the_nodes_that_its_leader_did_not_live_to(world):
    world.job(f"{KEEP_OUT} decide requeue 0; die")
    assert world.requeues == 1
    assert world.calls[-1] == KEPT_OUT, "after the requeue, not before: Slurm takes it only then"


def test_while_the_leader_hangs_as_well(world):
    """It is told to end, and does not: Slurm's KillWait would end both of them."""
    hangs = f"{KEEP_OUT} trap '' TERM HUP; kill -TERM $PPID; until grep -q keep_out calls; do sleep 1; done"
    world.program("sleep", "exec /bin/sleep 0.05")
    world.job(hangs)
    assert KEPT_OUT in world.calls


@pytest.mark.parametrize("left", ['rm "$FTSUP_LOCAL"/keepout*', ': >"$FTSUP_LOCAL/keepout.$SLURM_RESTART_COUNT.json"'])
def test_nothing_where_the_leader_has_done_it(world, left):
    world.job(f"{KEEP_OUT} {left}; decide requeue 0; die")
    assert world.requeues == 1
    assert not [call for call in world.calls if "keep_out" in call]


def test_nothing_where_nobody_told_it_to_end(world):
    assert world.job(f"{KEEP_OUT} decide finished 0") == 0
    assert not [call for call in world.calls if "keep_out" in call]


def test_a_leader_that_dies_while_it_chains_is_started_again_and_nothing_is_requeued(world):
    assert world.job('[ "$n" = 2 ] && decide requeued 0 || decide chain 0; die') == 0
    assert (world.starts, world.requeues) == (2, 0)


def test_a_chain_that_no_leader_lives_to_is_left_to_others(world):
    assert world.job("decide chain 0; die") == 1
    assert (world.starts, world.requeues) == (3, 0)
