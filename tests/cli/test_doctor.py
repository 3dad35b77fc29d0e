"""doctor: what is asked in time and what hangs, and the command, on the mock and on a real Slurm, inside a job and outside."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace as changed

from ftsup.cli import doctordisk, doctorlook
from ftsup.cli.cluster import Cluster as Chosen
from ftsup.cli.doctor import doctor
from ftsup.cli.ports import Ports, real
from ftsup.config import Config, Launcher
from ftsup.errors import Exit
from ftsup.mockslurm import control as mockslurm
from ftsup.report import doctor as judge
from ftsup.report.doctorfacts import Quota
from ftsup.slurm.fake import FakeSlurm
from tests.realslurm.fixtures import real_cluster
from tests.report.doctored import GOOD, disk, slurm, told

__all__ = ["real_cluster"]


# What is asked ------------------------------------------------------------------------------------------------------------

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:7 master:2 - nfs4 nas:/export/data rw,vers=4.2
31 30 0:41 / /data/my\\040runs rw - lustre 10.0.0.1@o2ib:/scratch rw
32 22 0:42 / /data rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    "path, found",
    [
        ("/home/me", ("ext4", "/dev/sda1", "/")),
        ("/data/x/y", ("overlay", "overlay", "/data")),
        ("/data/my runs/a", ("lustre", "10.0.0.1@o2ib:/scratch", "/data/my runs")),
        ("/database", ("ext4", "/dev/sda1", "/")),
    ],
)
def test_the_file_system_of_a_path(path, found):
    assert doctordisk.mounted(Path(path), MOUNTINFO) == found


def test_a_directory_that_is_not_there_yet_is_asked_where_it_will_be(tmp_path):
    found = doctordisk.ask("runs_dir", tmp_path / "a" / "b")
    assert (found.there, found.writable, found.silence) == (str(tmp_path), True, "")
    assert found.fstype
    assert found.total_bytes >= (found.free_bytes or 0) > 0
    (tmp_path / "file").touch()
    assert doctordisk.ask("runs_dir", tmp_path / "file").writable is False


LFS = "         /scratch  2048* 1024  4096  - 7  0 100 -\n"
QUOTA = """\
Disk quotas for user me (uid 7):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
  nas:/data    20   30   0   0   1   0   0   0
"""


@pytest.mark.parametrize(
    "text, place, found",
    [
        (LFS, "/scratch", Quota(used_bytes=2 << 20, limit_bytes=4 << 20, files=7, limit_files=100)),
        (QUOTA, "nas:/data", Quota(used_bytes=20 << 10, limit_bytes=30 << 10, files=1, limit_files=0)),
        (QUOTA, "nas:/other", None),
        ("/scratch unexpected words", "/scratch", None),
        ("", "/", None),
    ],
)
def test_quotas_of_tools(text, place, found):
    assert doctorlook.quota_in(text, place=place) == found


def test_the_smallest_memory_limit_above_us_counts(tmp_path):
    for place, name, value in (("a/b", "memory.max", "max"), ("a", "memory.max", "5000"), ("memory/s/j", "memory.limit_in_bytes", "7000")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).write_text(value + "\n")
    (tmp_path / "memory/s/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert doctorlook.memory_limit("0::/a/b\n", root=tmp_path) == 5000
    assert doctorlook.memory_limit("9:memory:/s/j\n2:cpuset:/\n", root=tmp_path) == 7000
    assert doctorlook.memory_limit("", root=tmp_path) is None


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def asked(tmp_path: Path, config: Config | None = None) -> doctorlook.Asked:
    made = config or slurm()
    return doctorlook.Asked(config=changed(made, runs_dir=str(tmp_path), workdir=str(tmp_path)), given=True, chosen=Chosen())


def test_what_hangs_is_unknown_and_keeps_nobody(tmp_path):
    hung = program(tmp_path / "bin", "python", "exec sleep 100")
    program(tmp_path / "bin", "scontrol", "exec sleep 100")
    program(tmp_path / "bin", "nvidia-smi", "exec sleep 100")
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}
    ports = replace(real(), environ=environ, python=str(hung))
    began = time.monotonic()
    facts = doctorlook.look(ports, asked(tmp_path), patience_s=0.5)
    assert time.monotonic() - began < 30
    said = "\n".join(told(facts))
    assert "unknown: Slurm's settings and partitions and nodes (scontrol show config: timed out" in said
    assert said.count("could not be looked at: no answer within 0.5 s") == 3
    assert f"unknown: torch of {hung} (no answer within 0.5 s)" in said
    assert "unknown: whether the 2 GPUs of this node work (no answer within 0.5 s)" in said
    assert judge.exit_code(facts, judge.findings(facts)) is Exit.NO


@pytest.mark.drill
def test_with_its_own_patience_it_ends_within_20_s(tmp_path):
    hung = program(tmp_path / "bin", "python", "exec sleep 100")
    program(tmp_path / "bin", "scontrol", "exec sleep 100")
    began = time.monotonic()
    doctorlook.look(replace(real(), environ={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}, python=str(hung)), asked(tmp_path))
    assert time.monotonic() - began < 20


def ports(tmp_path: Path, fake: FakeSlurm, **environ: str) -> Ports:
    program(tmp_path / "bin", "scontrol", "exit 1")
    program(tmp_path / "bin", "sbatch", "exit 1")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return replace(real(), environ={"PATH": path, "HOME": str(tmp_path), **environ}, slurm_within=lambda _env, _s: fake, cwd=tmp_path)


def test_inside_a_job_the_node_is_looked_at(tmp_path):
    program(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: H200 (UUID: GPU-1)'")
    world = ports(tmp_path, FakeSlurm(), SLURM_JOB_ID="7", SLURM_GPUS_ON_NODE="2", SLURM_CPUS_ON_NODE="100000", TMPDIR=str(tmp_path))
    facts = doctorlook.look(world, asked(tmp_path))
    said = "\n".join(told(facts))
    assert "nvidia-smi lists 1 GPU on this node, and 2 are allocated" in said
    assert "and 100000 are allocated on this node (SLURM_CPUS_ON_NODE)" in said
    assert [each.key for each in facts.disks] == ["runs_dir", "checkpoint.dir", "local_dir"]


def test_what_lies_where_a_person_stands_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit(3)")
    (tmp_path / "env").symlink_to(Path(sys.executable).parent.parent)
    monkeypatch.chdir(tmp_path)
    config = changed(slurm(), python="env/bin/python")
    facts = doctorlook.look(ports(tmp_path, FakeSlurm()), asked(tmp_path, config))
    assert [each.silence for each in facts.disks] == ["", ""]
    assert facts.training is not None
    assert facts.training.version == sys.version.split()[0]


def test_a_tool_for_quotas_is_asked_by_the_kind_of_disk(tmp_path):
    program(tmp_path / "bin", "lfs", "echo '/scratch 5 0 10 - 1 0 0 -'")
    program(tmp_path / "bin", "quota", "exec sleep 100")
    world = replace(real(), environ={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    kinds = [disk(fstype="lustre", mount="/scratch", quota=None), disk(fstype="tmpfs", quota=None), disk(silence="x")]
    lustre, tmpfs, _ = doctorlook.with_quotas(kinds, world)
    (nfs,) = doctorlook.with_quotas([disk(quota=None)], world, patience_s=0.5)
    assert lustre.quota == Quota(used_bytes=5 << 10, limit_bytes=10 << 10, files=1, limit_files=0)
    assert (nfs.quota, nfs.quota_silence) == (None, "`quota`: no answer within 0.5 s")
    assert (tmpfs.quota, tmpfs.quota_silence) == (None, "")


def test_ranks_behind_a_prefix_are_not_asked_for_torch(tmp_path):
    config = changed(slurm(), launcher=Launcher(prefix=("apptainer", "exec", "x.sif")))
    facts = doctorlook.look(ports(tmp_path, FakeSlurm()), asked(tmp_path, config))
    assert "unknown: torch of" in "\n".join(told(facts))
    assert "launcher.prefix" in "\n".join(told(facts))


# The command --------------------------------------------------------------------------------------------------------------


def run(world: Ports, *args: str):
    result = CliRunner().invoke(doctor, [*args], obj=world, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.stdout


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("name: a\ncommand: train.py\ncheckpoint: {dir: ckpt}\n")
    return tmp_path


def test_which_client_asks_slurm_and_why(home):
    # Where pyslurm is not installed; what it is chosen by where it is, is tested with pyslurm.
    code, text = run(ports(home, FakeSlurm()), "c.yaml", "--set", "slurm.client=commands")
    assert "slurm.client leads to commands on this host: slurm.client: commands" in " ".join(text.split())
    if importlib.util.find_spec("pyslurm") is None:
        code, text = run(ports(home, FakeSlurm()), "c.yaml", "--set", "slurm.client=pyslurm")
        assert code == Exit.NO
        assert "slurm.client is pyslurm, and pyslurm is not installed" in " ".join(text.split())


def test_slurm_that_is_away_is_75_and_a_problem_is_1(home):
    away = FakeSlurm(away=True)
    code, text = run(ports(home, away), "c.yaml")
    assert (code, "unknown: Slurm's settings" in text) == (Exit.AGAIN, True)
    code, text = run(ports(home, away), "c.yaml", "--set", f"python={home}/nowhere", "--json")
    assert (code, json.loads(text)["verdict"]) == (Exit.NO, "problem")
    assert f"python: {home}/nowhere does not run here (No such file or directory)" in text


def test_where_slurm_stops_answering_what_it_said_is_kept():
    facts = changed(GOOD, cluster=changed(GOOD.cluster, nodes=None, silence="timed out"))
    assert told(facts) == ["slurm: warning: unknown: Slurm's nodes (timed out); ask again when `scontrol ping` says UP"]
    assert judge.exit_code(facts, judge.findings(facts)) is Exit.OK


def test_several_clusters_and_heterogeneous_jobs_are_refused_with_the_configuration(home):
    for option, said in (("clusters", "a run lives on one cluster"), ("het-group", "a heterogeneous job cannot be one")):
        result = CliRunner().invoke(doctor, ["c.yaml", "--set", f"slurm.extra.{option}=a"], obj=ports(home, FakeSlurm()))
        assert said in str(result.exception)


def test_in_a_job_without_sbatch_no_mock_is_made(home):
    inside = replace(real(), environ={"PATH": str(home), "HOME": str(home), "SLURM_JOB_ID": "7"}, cwd=home)
    code, text = run(inside, "c.yaml")
    assert "there is no scontrol on PATH" in " ".join(text.split())
    assert not (home / ".cache").exists()
    assert code == Exit.AGAIN or "problem " in text


def test_a_cluster_that_answers_is_judged(home):
    fake = FakeSlurm(gpus=8)
    fake.settings["KillWait"] = "200 sec"
    code, text = run(ports(home, fake), "c.yaml")
    assert code == Exit.NO
    assert "set slurm.signal: SIGUSR1@275" in " ".join(text.split())


def test_without_slurm_the_mock_is_looked_at_and_named(home):
    plain = replace(real(), environ={"PATH": str(home), "HOME": str(home)}, cwd=home)
    code, text = run(plain, "c.yaml")
    assert "this is the mock Slurm: there is no sbatch on PATH" in " ".join(text.split())
    assert code == Exit.OK
    assert mockslurm.stop(home / ".cache" / "ftsup" / "mock")


@pytest.mark.e2e
def test_in_a_job_of_the_mock_the_node_is_looked_at(home):
    environ = {**os.environ, **mockslurm.create(home / "mock", nodes=1)}
    (home / "job.sh").write_text(f"#!/bin/sh\nsrun -n1 {sys.executable} -m ftsup doctor c.yaml --json >said.new\nmv said.new said\n")
    try:
        subprocess.run(["sbatch", "--output=out", "job.sh"], env=environ, cwd=home, check=True, capture_output=True, timeout=30)
        until = time.monotonic() + 60
        while not (home / "said").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        assert mockslurm.stop(home / "mock")
    report = json.loads((home / "said").read_text())
    assert report["mock"]
    assert any(each["rule"] == "node" and each["text"].startswith("affinity covers") for each in report["findings"])


@pytest.mark.e2e
@pytest.mark.realslurm
def test_a_real_slurm_is_read(real_cluster, home):
    world = replace(real(), environ={**os.environ, **real_cluster.env}, cwd=home)
    code, text = run(world, "c.yaml", "--json")
    report = json.loads(text)
    said = {each["rule"]: f"{each['level']}: {each['text']}" for each in reversed(report["findings"])}
    assert (code, report["verdict"], report["mock"]) == (Exit.OK, "fine", False)
    assert said["kill-wait"].startswith("ok: KillWait is 10s")
    assert said["partition"] == "ok: partition main is there, with 4 nodes; MaxTime is unlimited"
    assert said["tracking"].startswith("note: ProctrackType is proctrack/linuxproc")
    assert said["nodes"].startswith("ok: 4 of 4 nodes")
    assert said["slurm"].startswith("ok: Slurm 2")
    python = [sys.executable, "-m", "ftsup", "doctor", "c.yaml", "--json"]
    done = subprocess.run(["srun", "-n1", *python], env=world.environ, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    inside = [f"{each['rule']}: {each['text']}" for each in json.loads(done.stdout)["findings"]]
    assert [line for line in inside if line.startswith("node: ")], inside
    assert [line for line in inside if line.startswith("disk-space: local_dir: ")], inside
