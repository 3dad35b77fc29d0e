"""Helper commands are found where the system keeps them, and not where somebody may have laid something of that name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftsup import proc


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where we stand lie programs named as those that we look for."""
    for name in ("true", "ftsup-no-such-program"):
        (tmp_path / name).write_text("#!/bin/sh\ntouch ran\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [".:{0}", ":{0}", "bin:.:{0}", "{0}:."])
def test_a_path_with_a_dot_in_it_does_not_run_what_lies_there(planted: Path, path: str) -> None:
    env = {"PATH": path.format(os.environ["PATH"])}
    done = proc.run(["true"], deadline_s=20, env=env, cwd=planted)
    assert done.ok
    missing = proc.run(["ftsup-no-such-program"], deadline_s=20, env=env, cwd=planted)
    assert missing.why == "ftsup-no-such-program: No such file or directory"
    with pytest.raises(FileNotFoundError):
        proc.detach(["ftsup-no-such-program"], env=env, cwd=planted, output=planted / "out")
    assert not (planted / "ran").exists()


def test_a_program_that_is_named_by_its_path_is_that(planted: Path) -> None:
    assert proc.run(["./true"], deadline_s=20, cwd=planted).ok
    assert (planted / "ran").exists()


def test_what_is_no_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "true").mkdir()
    (tmp_path / "false").touch(mode=0o600)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert proc.program("true", env=env) != str(tmp_path / "true")
    assert proc.program("false", env=env) != str(tmp_path / "false")
