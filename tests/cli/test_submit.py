"""submit and render as whole commands, with a Slurm in memory."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import stat
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import Life, Owner, claim
from ftsup.cli.ports import Ports
from ftsup.cli.submit import render, submit
from ftsup.config import from_json
from ftsup.errors import Busy, ConfigError, Refused, Unavailable
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.slurm.fake import FakeSlurm
from ftsup.supervisor.keys import read_keys

CONFIG = "name: demo\ncommand: train.py\nslurm: {nodes: 2, time: 1h}\ncheckpoint: {dir: ckpt}\nenv: {TOKEN: hunter2}\n"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class World:
    """A folder to type commands in, and a Slurm that remembers the environment and the script it was given."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.slurm = FakeSlurm()
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(home), "SBATCH_PARTITION": "wrong", "MINE": "1"}
        tokens = itertools.count(1)
        self.ports = Ports(
            environ=self.environ,
            slurm=lambda environ: self.slurm,
            now=lambda: NOW,
            sleep=lambda _: None,
            token=lambda: f"{next(tokens):04x}",
            python="/opt/py/bin/python",
            cwd=home,
            user="me",
        )
        (home / "c.yaml").write_text(CONFIG)
        (home / "train.py").write_text("signal.signal(signal.SIGUSR1, save)\n")

    def type(self, command, *args, fails=False):
        result = CliRunner().invoke(command, [*args], obj=self.ports)
        if result.exception and not isinstance(result.exception, SystemExit):
            if not fails:
                raise result.exception
            return result.exception
        assert not fails, result.output
        return result

    def submit(self, *args, fails=False):
        return self.type(
            submit, "c.yaml" if not any(arg.endswith(".yaml") for arg in args) else args[0], *args, "--cluster=slurm", fails=fails
        )

    @property
    def run(self) -> RunDir:
        (root,) = (self.home / "ftsup-runs" / "demo").iterdir()
        return RunDir(root)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")} - {"c.yaml", "train.py"}


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_submit_makes_a_run_directory_and_a_job_and_says_what_to_type(world):
    result = world.submit()
    assert result.stdout == "job 1: demo/20260102-030405-0001\n"
    for command in ("status", "logs -f", "cancel"):
        assert f"ftsup {command} demo/20260102-030405-0001" in result.stderr
    assert world.slurm.jobs["1"].num_nodes == 2
    run = world.run
    assert run.jobs.read_text() == "1\n"
    assert run.config_yaml.read_text() == CONFIG
    assert json.loads(run.env_json.read_bytes()) == {"TOKEN": "hunter2"}
    assert "#SBATCH --output=" + str(run.root) in run.script.read_text()
    config = from_json(run.config_json.read_bytes())
    assert (config.workdir, config.runs_dir, config.env) == (str(world.home), str(world.home / "ftsup-runs"), {})
    assert (run.worker / "ftsup_worker" / "beatfile.py").is_file()
    assert not list(run.worker.rglob("__pycache__"))
    read_keys(run.keys)


def test_modes_keep_others_out_and_the_group_away_from_secrets(world):
    world.submit("--set=share=group")
    run = world.run
    assert mode(run.root) == mode(run.root.parent) == 0o750
    assert {mode(path) for path in (run.env_json, run.config_yaml, run.script)} == {0o600}
    assert {mode(run.keys), mode(run.requests)} == {0o700}
    assert mode(run.config_json) == 0o640


@pytest.mark.parametrize("share, top", [("private", 0o700), ("group", 0o750)])
def test_whatever_the_umask_nobody_else_can_write_and_only_what_is_shared_can_be_read(world, share, top):
    old = os.umask(0)
    try:
        world.submit(f"--set=share={share}")
    finally:
        os.umask(old)
    run = world.run
    assert mode(run.root) == top
    modes = {str(path.relative_to(run.root)): mode(path) for path in run.root.rglob("*")}
    assert "worker/ftsup_worker/shim.py" in modes
    assert {path: bits for path, bits in modes.items() if bits & 0o027} == {}
    assert {path for path, bits in modes.items() if bits & 0o040} <= {"config.json", "cluster.json", "jobs"}


def test_secrets_are_in_two_files_that_only_we_read_and_nowhere_else(world):
    world.submit()
    holding = [path for path in world.run.root.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert sorted(path.name for path in holding) == ["config.yaml", "env.json"]
    assert "hunter2" not in str(world.slurm.jobs)


def test_the_shells_slurm_variables_do_not_reach_the_job(world):
    world.submit()
    assert world.slurm.jobs["1"].env["MINE"] == "1"
    assert "SBATCH_PARTITION" not in world.slurm.jobs["1"].env


@pytest.mark.parametrize(
    "extra, error, said",
    [
        ("--set=slurm.partition=nowhere", Refused, "Invalid partition"),
        ("--set=setup=if true", ConfigError, "not good bash"),
        ("--set=setup=cat <<END", ConfigError, "here-document"),
        ("--set=workdir=nowhere", ConfigError, "workdir"),
        ("--set=slurm.template=nowhere.j2", ConfigError, r"slurm\.template"),
    ],
)
def test_a_failure_leaves_nothing_behind_and_says_why(world, extra, error, said):
    with pytest.raises(error, match=said):
        raise world.submit(extra, fails=True)
    assert world.files() == set()


def test_a_full_disk_leaves_nothing_behind_and_says_where_else(world):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        error = world.submit(fails=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(error, ConfigError)
    assert (error.message.endswith("cannot be filled: File too large; nothing was submitted"), error.message.count("[")) == (True, 0)
    assert "--set runs_dir=" in error.hint
    assert world.files() == set()


def test_runs_dir_on_the_command_line_is_where_a_new_run_goes(world):
    world.submit("--runs-dir", "else where")
    (run,) = (world.home / "else where" / "demo").iterdir()
    assert from_json(RunDir(run).config_json.read_bytes()).runs_dir == str(world.home / "else where")
    assert not (world.home / "ftsup-runs").exists()


def test_slurm_away_leaves_nothing_behind_and_exits_75(world):
    world.slurm.away = True
    error = world.submit(fails=True)
    assert isinstance(error, Unavailable)
    assert error.exit_code == 75
    assert world.files() == set()


def test_a_failure_keeps_the_runs_that_are_there(world):
    world.submit()
    world.submit("--set=slurm.partition=nowhere", fails=True)
    assert world.run.jobs.read_text() == "1\n"


def test_a_run_directory_of_that_name_is_never_taken_or_removed(world):
    there = world.home / "ftsup-runs" / "demo" / "20260102-030405-0001"
    there.mkdir(parents=True)
    (there / "precious").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        raise world.submit(fails=True)
    assert (there / "precious").exists()


@pytest.mark.parametrize("words,force", [((), False), (("--force",), True)])
def test_force_takes_the_checkpoints_of_another_run(world, words, force):
    world.submit(*words)
    (config,) = (world.home / "ftsup-runs" / "demo").glob("*/config.json")
    assert from_json(config.read_bytes()).checkpoint.force is force


def test_checkpoints_of_a_run_that_is_alive_are_refused_before_the_queue(world):
    world.submit()
    disk, home = RealDisk(), Home(world.home / "ckpt")
    home.folder.mkdir()
    us = Owner(run=world.run.id, job="1", folder=str(world.run.root))
    claim(disk, home, us, life=lambda owner: Life.OVER)
    before = world.files()
    refused = world.submit(fails=True)
    assert isinstance(refused, Busy)
    assert f"belong to run {world.run.id}" in refused.message
    assert "--force" in refused.hint
    assert world.files() == before
    world.submit("--force")
    world.slurm.cancel("1")
    world.submit()
    assert len(list((world.home / "ftsup-runs" / "demo").iterdir())) == 3


def test_checkpoints_of_which_nobody_can_say_whose_they_are_do_not_keep_a_job_from_the_queue(world):
    owner = Home(world.home / "ckpt").owner / "owner.json"
    owner.parent.mkdir(parents=True)
    owner.write_text("torn")
    world.submit()


def test_dry_run_prints_the_script_and_checks_and_leaves_nothing(world):
    result = world.type(submit, "--dry-run", "c.yaml")
    assert result.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=demo\n")
    assert "nothing was submitted; the script above is good bash" in result.stderr
    assert world.files() == set()
    assert not world.slurm.jobs


def test_dry_run_asks_a_slurm_that_was_named_whether_it_would_take_the_job(world):
    assert "Job 1 to start" in world.submit("--dry-run").stderr
    with pytest.raises(Refused, match="not available"):
        raise world.submit("--dry-run", "--set=slurm.nodes=99", fails=True)
    assert not world.slurm.jobs


def test_render_writes_the_script_that_submit_submits(world):
    rendered = world.type(render, "c.yaml").stdout
    world.submit()
    assert rendered.replace("-0001", "-0002") == world.run.script.read_text()


def test_the_commit_and_what_is_not_committed_are_recorded(world):
    for words in (["init", "-q"], ["add", "train.py"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=world.home, check=True)
    (world.home / "train.py").write_text("changed\n")
    world.submit()
    code = json.loads((world.run.root / "git" / "submit.json").read_bytes())
    assert len(code["commit"]) == 40
    assert "+changed" in code["diff"]
    assert "c.yaml" in code["untracked"]


def test_without_git_nothing_is_recorded_and_nothing_is_said(world):
    result = world.submit()
    assert not (world.run.root / "git").exists()
    assert "commit" not in result.stderr


@pytest.mark.parametrize("text", ["print(1)\n", "def asked(): ...\n", "callbacks=[SaveWhenAsked()]\n"])
def test_a_script_that_cannot_be_asked_to_save_is_told_what_that_costs(world, text):
    (world.home / "train.py").write_text(text)
    said = "one checkpoint interval is replayed" in world.submit().stderr
    assert said == ("sked(" not in text)


def test_a_module_is_looked_at_too(world):
    (world.home / "pkg").mkdir()
    (world.home / "pkg" / "__main__.py").write_text("print(1)\n")
    assert "pkg neither handles SIGUSR1" in world.submit("--set=command=-m pkg").stderr


def test_a_shell_that_traps_the_ignored_signal_is_told(world):
    (world.home / "go.sh").write_text("#!/bin/sh\ntrap save USR1\npython x.py\n")
    assert "go.sh traps SIGUSR1" in world.submit("--set=launch=command", "--set=command=bash go.sh").stderr


def test_a_warning_that_comes_after_the_requeue_is_asked_for_is_said_with_this_clusters_killwait(world):
    assert "KillWait" not in world.submit().stderr
    world.slurm.settings["KillWait"] = "300 sec"
    assert "no time is left to save" in world.submit().stderr


def test_auto_takes_the_mock_where_there_is_no_sbatch_and_says_so(world):
    bash = shutil.which("bash")
    (world.home / "bin").mkdir()
    (world.home / "bin" / "bash").symlink_to(bash)
    world.environ["PATH"] = str(world.home / "bin")
    world.environ["FTSUP_MOCK_STATE"] = str(world.home / "mock")
    result = world.type(submit, "c.yaml")
    assert "mock Slurm" in result.stderr
    assert json.loads((world.run.root / "cluster.json").read_bytes()) == {"state": str(world.home / "mock")}
    assert world.slurm.jobs["1"].env["PATH"].startswith(str(world.home / "mock"))


def test_a_run_belongs_to_its_cluster_and_another_one_is_not_asked_about_it(world):
    world.slurm.settings["ClusterName"] = "here"
    world.submit()
    assert json.loads((world.run.root / "cluster.json").read_bytes()) == {"name": "here"}
    world.slurm.jobs.clear()
    world.slurm.settings["ClusterName"] = "there"
    error = world.type(submit, "--continue", world.run.id, fails=True)
    assert isinstance(error, Unavailable)
    assert error.message == "the run is on cluster here, and this host asks cluster there"
    assert error.hint == "type it on a host of here"


def test_the_job_is_pending_until_slurm_starts_it(world):
    world.submit()
    assert world.slurm.show("1").state is JobState.PENDING
