"""Which client a command looks at a run's jobs with: as the run's configuration says, where the site has it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ftsup.cli.cluster import Cluster, looking, remember
from ftsup.errors import Unavailable
from ftsup.rundir import RunDir

HERE = "the port by commands"


def run_with(folder, text: str, *, state: str = "") -> RunDir:
    run = RunDir(folder)
    run.config_json.write_text(text)
    remember(run, Cluster(state=state))
    return run


def ports(folder) -> SimpleNamespace:
    return SimpleNamespace(environ={"PATH": str(folder)}, slurm=lambda _: HERE)


@pytest.mark.parametrize(
    "text", ['{"slurm": {"client": "commands"}}', '{"slurm": {"client": "auto"}}', '{"slurm": {"client": "morse"}}', "{}", "{", "[]"]
)
def test_by_commands_where_there_is_no_pyslurm(tmp_path, text):
    assert looking(run_with(tmp_path, text), ports=ports(tmp_path)) == HERE


def test_a_client_that_is_demanded_and_missing_is_said(tmp_path):
    run = run_with(tmp_path, '{"slurm": {"client": "pyslurm"}}')
    with pytest.raises(Unavailable, match=r"slurm\.client is pyslurm, and"):
        looking(run, ports=ports(tmp_path))


def test_one_that_is_there_and_unfit_gives_way(tmp_path, monkeypatch):
    (tmp_path / "pyslurm.py").write_text("raise ImportError('libslurm.so.40')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert looking(run_with(tmp_path, '{"slurm": {"client": "auto"}}'), ports=ports(tmp_path)) == HERE
