"""Whether the owner of a directory lives: Slurm says; where it has forgotten, whose Slurm it is and the run's own last word count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftsup.checkpoint.owner import Life, Owner, alive
from ftsup.errors import Unavailable
from ftsup.slurm.fake import FakeSlurm

HERE = {"name": "here"}
OVER, ALIVE, UNKNOWN = Life.OVER, Life.ALIVE, Life.UNKNOWN


def run_of(folder: Path, *, where: dict | None = None, jobs: str = "7\n12\n", decisions: dict[str, str] | None = None) -> Owner:
    (folder / "decisions").mkdir(parents=True)
    (folder / "jobs").write_text(jobs)
    if where is not None:
        (folder / "cluster.json").write_text(json.dumps(where))
    for name, verdict in (decisions or {}).items():
        (folder / "decisions" / f"{name}.json").write_text(json.dumps({"verdict": verdict, "code": 0}))
    return Owner(run="demo/a", job=jobs.rsplit(maxsplit=1)[-1], host="n1", folder=str(folder))


def slurm_called(name: str) -> FakeSlurm:
    slurm = FakeSlurm()
    slurm.settings["ClusterName"] = name
    return slurm


@pytest.mark.parametrize(
    "where, decisions, life",
    [
        (HERE, {}, OVER),  # it forgets only what has ended
        ({"state": "/the/mock"}, {}, OVER),
        (None, {}, UNKNOWN),  # an older ftsup wrote down nothing: perhaps another cluster's
        ({}, {}, UNKNOWN),
        ({"name": "there"}, {}, UNKNOWN),
        ({"name": "there"}, {"12.0": "requeue", "12.1": "finished", "7.3": "stop"}, OVER),
        (None, {"12.9": "finished", "12.10": "requeue"}, UNKNOWN),
        (None, {"12.9": "requeue", "12.10": "stop"}, OVER),
        (None, {"7.0": "finished"}, UNKNOWN),  # that was the job before
        (None, {"12.0": "cancelled"}, OVER),
    ],
)
def test_a_job_that_slurm_does_not_know_is_over_where_it_knew_it_or_the_run_says_so(tmp_path, where, decisions, life):
    assert alive(run_of(tmp_path, where=where, decisions=decisions), slurm_called("here")) is life


def test_a_torn_decision_says_nothing(tmp_path):
    owner = run_of(tmp_path, decisions={"12.0": "finished"})
    (tmp_path / "decisions" / "12.0.json").write_text('{"verdict":"fin')
    assert alive(owner, slurm_called("here")) is UNKNOWN


def test_another_clusters_job_of_that_number_is_not_this_one(tmp_path):
    slurm = slurm_called("here")
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/bash\n")
    job = slurm.submit(script)
    assert alive(run_of(tmp_path / "a", where=HERE, jobs=f"{job}\n"), slurm) is ALIVE
    assert alive(run_of(tmp_path / "b", where={"name": "there"}, jobs=f"{job}\n"), slurm) is UNKNOWN
    slurm.cancel(job)
    assert alive(run_of(tmp_path / "c", where=HERE, jobs=f"{job}\n"), slurm) is OVER
    assert alive(run_of(tmp_path / "d", where={"name": "there"}, jobs=f"{job}\n"), slurm) is UNKNOWN


class Silent(FakeSlurm):
    """One that does not answer one kind of question."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.settings["ClusterName"] = "here"
        setattr(self, op, self.silence)

    def silence(self, *_: object) -> None:
        raise Unavailable("no answer")


@pytest.mark.parametrize("op", ["show", "config"])
def test_a_look_that_failed_is_unknown_whatever_the_run_says(tmp_path, op):
    assert alive(run_of(tmp_path, where=HERE, decisions={"12.0": "finished"}), Silent(op)) is UNKNOWN


def test_a_run_without_a_job_or_a_folder_is_unknown():
    assert alive(Owner(run="a"), slurm_called("here")) is UNKNOWN
    assert alive(Owner(run="a", job="12"), slurm_called("here")) is UNKNOWN
