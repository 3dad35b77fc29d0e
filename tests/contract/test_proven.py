"""The page of what was proven: from reports, one row a test, one column a world; what failed or was left out never reads as proven."""

from __future__ import annotations

import re

import pytest

from tests.contract.proven import Proof, Recorder, Session, page, world_of


@pytest.mark.parametrize(
    "nodeid, found",
    [
        ("tests/contract/test_port.py::test_a_job[real]", ("test_port", "a_job", "real")),
        ("tests/contract/test_port.py::test_a_job[pyslurm]", ("test_port", "a_job", "pyslurm")),
        ("tests/contract/test_limits.py::test_a_limit[mock-cgroup-steps]", ("test_limits", "a_limit (steps)", "mock-cgroup")),
        ("tests/contract/test_limits.py::test_a_limit[steps-real-cgroup]", ("test_limits", "a_limit (steps)", "real-cgroup")),
        ("tests/contract/test_proven.py::test_a_page[x]", None),
        ("tests/contract/test_proven.py::test_a_page", None),
        ("tests/contract/test_proven.py::test_a_name[tests/contract/test_limits.py::test_a_limit[mock-steps]-found]", None),
    ],
)
def test_a_tests_world_is_in_its_name(nodeid, found):
    assert world_of(nodeid) == found


def report(test: str, world: str, *, when: str = "call", outcome: str = "passed", why: str = "") -> pytest.TestReport:
    longrepr = ("file", 1, f"Skipped: {why}") if why else None
    nodeid = f"tests/contract/test_port.py::test_{test}[{world}]"
    return pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, longrepr, when)


def test_what_a_run_said_becomes_the_page(tmp_path):
    recorder = Recorder(tmp_path / "slurm.md", version="22.05.8")
    for each in (
        report("a_job_runs", "fake"),
        report("a_job_runs", "real", when="setup"),
        report("a_job_runs", "real"),
        report("a_job_ends", "fake", outcome="failed"),
        report("a_job_ends", "real"),
        report("a_job_ends", "real", when="teardown", outcome="failed"),
        report("a_job_runs", "pyslurm", when="setup", outcome="skipped", why="pyslurm is not installed here"),
        report("never_called", "real", when="setup"),
    ):
        recorder.pytest_runtest_logreport(each)
    recorder.pytest_sessionfinish(exitstatus=pytest.ExitCode.INTERRUPTED)
    assert not (tmp_path / "slurm.md").exists()
    recorder.pytest_sessionfinish(exitstatus=pytest.ExitCode.TESTS_FAILED)
    written = (tmp_path / "slurm.md").read_text()
    assert "| | in memory | Slurm 22.05.8 | Slurm 22.05.8, pyslurm |" in written
    assert "| a job runs | yes | yes | left out |" in written
    assert "| a job ends | **no** | **no** | - |" in written
    assert "never called" not in written
    assert "- Slurm 22.05.8: 1 proven, 1 failed" in written
    assert "- Slurm 22.05.8, pyslurm: pyslurm is not installed here" in written


def session(version: str, **worlds: str) -> Session:
    proofs = [Proof(file="test_port", test="a_job_runs", world=world, outcome=outcome) for world, outcome in worlds.items()]
    return Session(version=version, day="2026-01-02", python="3.13.5", proofs=tuple(proofs))


def test_runs_on_several_slurms_stand_beside_each_other(tmp_path):
    for version, outcome in (("24.11.5", "failed"), ("22.05.8", "passed"), ("9.1", "passed")):
        recorder = Recorder(tmp_path / "slurm.md", version=version, note="a trial" if version == "9.1" else "")
        recorder.pytest_runtest_logreport(report("a_job_runs", "real", outcome=outcome))
        recorder.pytest_sessionfinish(exitstatus=pytest.ExitCode.OK)
    written = (tmp_path / "slurm.md").read_text()
    assert "| | Slurm 22.05.8 | Slurm 24.11.5 | Slurm 9.1 |" in written
    assert "| a job runs | yes | **no** | yes |" in written
    assert len(list((tmp_path / "proven").iterdir())) == 3
    assert re.search(r"- Slurm 9.1: run of \S+, Python \S+; a trial\n", written)


def test_a_world_that_nobody_asked_has_no_column():
    assert "Slurm 22" not in page([session("22.05.8", fake="passed")], how="x").partition("## In numbers")[0]


def test_worlds_without_a_slurm_are_told_once_by_the_newest_run():
    written = page([session("22.05.8", mock="failed", real="passed"), session("24.11.5", mock="passed", real="passed")], how="x")
    assert "| | mock | Slurm 22.05.8 | Slurm 24.11.5 |" in written
    assert "| a job runs | yes | yes | yes |" in written
    assert "- Slurm 24.11.5: run of 2026-01-02, Python 3.13.5" in written
