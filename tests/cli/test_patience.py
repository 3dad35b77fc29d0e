"""A command of a person whose disk does not answer: it says so, and goes on when the disk does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ftsup.cli.patience import waits_for_disk
from tests.cli.lived import ENV, FTSUP, Lived
from tests.e2e.disks import HANGS, sick_disk


@pytest.mark.slow
def test_a_disk_that_does_not_answer_is_said_and_its_answer_still_shown(tmp_path, leader):
    with sick_disk(tmp_path / "nfs") as disk:
        lived = Lived(disk.folder, leader)
        command = [*FTSUP, "status", "--runs-dir", str(lived.folder / "ftsup-runs")]
        with disk.ill(HANGS):
            asked = subprocess.Popen(command, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            said = [asked.stderr.readline(), asked.stderr.readline()]
        out, err = asked.communicate(timeout=30)
    assert said[0] == "waiting for the disk, which has not answered for 10 s\n"
    assert said[1].startswith("hint: Ctrl-C leaves")
    assert (err, asked.returncode) == ("", 0)
    assert "demo" in out


@pytest.mark.parametrize(
    "stat, wchan, expected",
    [
        ("7 (a) b) D 1 7", "", "waits"),
        ("7 (python) S 1 7", "request_wait_answer", "waits"),
        ("7 (python) S 1 7", "do_poll", "does not"),
        ("7 (python) R 1 7", "0", "does not"),
        ("", "", "does not"),
    ],
)
def test_who_waits_for_a_disk(tmp_path: Path, stat: str, wchan: str, expected: str):
    (tmp_path / "stat").write_text(stat)
    (tmp_path / "wchan").write_text(wchan)
    assert waits_for_disk(tmp_path) is (expected == "waits")


def test_a_thread_that_has_ended_waits_for_nothing(tmp_path: Path):
    assert not waits_for_disk(tmp_path / "none")
