"""`ftsup mock`: the handles for people."""

from __future__ import annotations

import os
import subprocess

import pytest
from click.testing import CliRunner

from ftsup.cli.mock import mock as command
from ftsup.errors import ConfigError


@pytest.fixture
def call(tmp_path):
    """The group with a state directory of its own; what it printed."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(command, [*words, "--state", str(tmp_path / "a mock")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run


@pytest.mark.e2e
def test_a_shell_gets_the_commands(call, tmp_path):
    text = call("env", "--nodes", "2", "--set", "kill_wait_s=3")
    script = f"{text}\nsinfo -h -N -o %N; scontrol show config | grep KillWait; command -v sbatch"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=os.environ).stdout.splitlines()
    assert said[:2] == ["mock1", "mock2"]
    assert said[2].split() == ["KillWait", "=", "3", "sec"]
    assert said[3] == str(tmp_path / "a mock" / "bin" / "sbatch")


def test_faults_and_settings_are_shown(call):
    call("env")
    call("fault", "away", "3600")
    call("fault", "refuse-requeue", "2")
    call("fault", "node-up", "mock1")
    call("fault", "set", "begin_wait_s", "2")
    told = call("status")
    assert "fault: the controller is away for 3" in told
    assert "fault: the next 2 requeues are refused" in told
    assert "begin_wait_s=2.0" in told
    call("stop")
    assert "fault: " not in call("status")


def test_mistakes_are_told(call):
    with pytest.raises(ConfigError, match=r"no mock Slurm in .*\nhint: make one"):
        call("status")
    call("env")
    with pytest.raises(ConfigError, match=r"no node n9\nhint: its nodes: mock\[1-4\]"):
        call("fault", "node-down", "n9")
    with pytest.raises(ConfigError, match="proctrack"):
        call("fault", "set", "proctrack", "magic")
    with pytest.raises(ConfigError, match="not NAME=VALUE"):
        call("env", "--set", "kill_wait_s")
