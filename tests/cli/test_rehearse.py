"""`submit --dry-run=mock`: really submitted to a mock of its own, really launched by torchrun, and nothing is left."""

from __future__ import annotations

import os
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner

from ftsup.cli.ports import real
from ftsup.cli.submit import submit
from ftsup.errors import RunError
from tests.e2e.harness import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    ports = replace(real(), cwd=tmp_path, environ=dict(os.environ))
    (tmp_path / "c.yaml").write_text("name: r\ncommand: train.py\ngrace: 1s\nevidence: 1s\nslurm: {nodes: 2, partition: gpu}\n")

    def typed(script):
        (tmp_path / "train.py").write_text(script)
        result = CliRunner().invoke(submit, ["c.yaml", "--dry-run=mock"], obj=ports)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    yield typed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "tmp", "train.py"]
    until(lambda: not any(str(tmp_path) in word for one in psutil.process_iter(["cmdline"]) for word in one.info["cmdline"] or ()))


def test_a_script_that_runs_is_said_to(rehearse):
    result = rehearse("print('here I am')\n")
    assert "training finished" in result.stderr
    assert result.stdout.startswith("#!/bin/bash\n")
    assert "--partition=gpu" in result.stdout


@pytest.mark.drill
def test_a_script_that_fails_is_shown_with_its_last_words(rehearse):
    with pytest.raises(RunError, match=r"(?s)the rehearsal failed.*ValueError: boom"):
        rehearse("raise ValueError('boom')\n")
