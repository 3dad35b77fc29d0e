"""Which code a grant ran, and whether it changed since the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup import proc
from ftsup.incident import git


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "train.py").write_text("one\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        assert proc.run(["git", "-C", str(folder), *words], deadline_s=20).ok
    return folder


def test_a_change_between_grants_is_said(repo: Path, tmp_path: Path) -> None:
    record = tmp_path / "git"
    assert git.record(repo, record_dir=record, grant=1) == ""
    assert git.record(repo, record_dir=record, grant=2) == ""
    (repo / "train.py").write_text("two\n")
    assert git.record(repo, record_dir=record, grant=3) == "the code changed: the same commit, other local changes"
    assert sorted(path.name for path in record.iterdir()) == ["1.json", "2.json", "3.json"]


def test_no_repository_is_no_record(tmp_path: Path) -> None:
    assert git.record(tmp_path, record_dir=tmp_path / "git", grant=1) == ""
    assert not (tmp_path / "git").exists()
