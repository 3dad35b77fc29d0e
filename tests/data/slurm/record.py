"""Records what the Slurm of this machine prints: `PYTHONPATH=. python tests/data/slurm/record.py` writes tests/data/slurm/<version>/.

It starts a cluster of its own (tests/realslurm/cluster.py), brings jobs and nodes into their states, and asks. Broken
authentication and a controller that is away are the client's: it gets a configuration that leads nowhere. Takes three minutes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.realslurm import cluster

HERE = Path(__file__).parent
STAYS = "#!/bin/bash\ntrap 'sleep 4; exit 0' TERM\nsleep 600 & wait\n"
ENDS = "#!/bin/bash\nexit 75\n"
UNKNOWN = "4000000"


class Recorder:
    """Runs Slurm's commands and keeps what they print, without this machine's paths."""

    def __init__(self, env: dict[str, str], work: Path) -> None:
        self.env = {**os.environ, **env, "SLURM_TIME_FORMAT": "%s"}
        self.work = work
        self.hidden = {str(Path(env["SLURM_CONF"]).parent): "/etc/slurm", str(work): "/home/user/run", socket.gethostname(): "localhost"}
        self.version = self.call("scontrol", "-V").stdout.split()[1].rpartition(".")[0]
        self.folder = HERE / self.version
        self.folder.mkdir(exist_ok=True)
        self.failures: list[dict[str, object]] = []

    def call(self, *argv: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env={**self.env, **extra}, cwd=self.work, capture_output=True, text=True, check=False, timeout=120)

    def clean(self, text: str) -> str:
        for real, shown in self.hidden.items():
            text = text.replace(real, shown).replace(real.replace("/", "\\/"), shown.replace("/", "\\/"))
        return text

    def keep(self, name: str, *argv: str) -> None:
        """What it prints, in a file of this name."""
        (self.folder / name).write_text(self.clean(self.call(*argv).stdout))

    def fails(self, what: str, *argv: str, **extra: str) -> None:
        """How it fails."""
        done = self.call(*argv, **extra)
        out, err = self.clean(done.stdout), self.clean(done.stderr)
        self.failures.append({"what": what, "argv": list(argv), "code": done.returncode, "out": out, "err": err})

    def submit(self, *args: str, text: str = STAYS) -> str:
        script = self.work / "job.sh"
        script.write_text(text)
        return self.call("sbatch", "--parsable", *args, str(script)).stdout.strip()

    def until(self, job: str, word: str, *, within_s: float = 120) -> None:
        end = time.monotonic() + within_s
        while f"JobState={word}" not in self.call("scontrol", "show", "job", job).stdout:
            assert time.monotonic() < end, (job, word)
            time.sleep(0.1)

    def job(self, name: str, job: str) -> None:
        """One job, in every form. 22.05 lists all of them as JSON whatever was asked: then only where the moment does not last."""
        self.keep(f"job-{name}.txt", "scontrol", "show", "job", job)
        if json_of_scontrol(self):
            self.keep(f"job-{name}.json", "scontrol", "show", "job", job, "--json")
        elif name.startswith(("completing", "requeued")):
            self.keep(f"squeue-{name}.json", "squeue", "--json", f"--jobs={job}")


def json_of_scontrol(recorder: Recorder) -> bool:
    return recorder.call("scontrol", "show", "config", "--json").returncode == 0 and recorder.version != "22.05"


def jobs(recorder: Recorder) -> None:
    timeout = recorder.submit("--time=1", "--job-name=two words")
    running = recorder.submit("-N2", "--exclude=n4", "--time=1-02:00:00", "--comment=line one\n   JobState=FAILED line two")
    failed = recorder.submit(text=ENDS)
    held = recorder.submit("--hold")
    pending = recorder.submit(f"--dependency=afterany:{running}")  # 24.11 takes no job of more nodes than there are
    array = recorder.submit("--array=0-3%1")
    cancelled = recorder.submit()
    requeued = recorder.submit()
    for job in (running, array, cancelled, requeued):
        recorder.until(job, "RUNNING")
    recorder.until(failed, "FAILED")
    for name, job in (("running", running), ("failed", failed), ("held", held), ("pending", pending), ("array", array)):
        recorder.job(name, job)
    recorder.job("array-task", f"{array}_0")
    recorder.call("scancel", cancelled)
    recorder.until(cancelled, "COMPLETING")
    recorder.job("completing-cancelled", cancelled)
    recorder.until(cancelled, "CANCELLED")
    recorder.job("cancelled", cancelled)
    recorder.call("scontrol", "requeue", requeued)
    recorder.until(requeued, "COMPLETING")
    recorder.job("completing-requeued", requeued)
    recorder.until(requeued, "PENDING")
    recorder.job("requeued", requeued)
    recorder.keep("config.txt", "scontrol", "show", "config")
    recorder.call("scontrol", "suspend", running)
    recorder.job("suspended", running)
    recorder.call("scontrol", "resume", running)
    recorder.until(timeout, "TIMEOUT")
    recorder.job("timeout", timeout)
    recorder.keep("jobs.txt", "scontrol", "show", "job")
    recorder.keep("squeue.json", "squeue", "--json", "--states=all")
    recorder.keep("squeue.txt", "squeue", "--states=all")
    for what, argv in {
        "requeue of a finished job (silent)": ("requeue", "incomplete", failed),
        "avoid of a running job": ("update", f"JobId={running}", "ExcNodeList=n3"),
        "avoid of an unknown node": ("update", f"JobId={held}", "ExcNodeList=elsewhere"),
        "release of a finished job": ("release", failed),
    }.items():
        recorder.fails(f"refused: {what}", "scontrol", *argv)


def nodes(recorder: Recorder) -> None:
    recorder.call("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=fan 2 broken, State=IDLE\nsecond line")
    recorder.call("scontrol", "update", "NodeName=n4", "State=DOWN", "Reason=no answer")
    recorder.keep("nodes.txt", "scontrol", "show", "node")
    recorder.keep("sinfo.json", "sinfo", "--json")
    recorder.keep("sinfo.txt", "sinfo", "-N", "-l")
    if json_of_scontrol(recorder):
        recorder.keep("nodes.json", "scontrol", "show", "node", "--json")
        recorder.keep("partitions.json", "scontrol", "show", "partition", "--json")
        recorder.keep("unknown-job.json", "scontrol", "show", "job", UNKNOWN, "--json")
    recorder.keep("partitions.txt", "scontrol", "show", "partition")


EVERYTHING = {
    "show": ("scontrol", "show", "job", UNKNOWN),
    "requeue": ("scontrol", "requeue", "incomplete", UNKNOWN),
    "avoid": ("scontrol", "update", f"JobId={UNKNOWN}", "ExcNodeList=n3"),
    "release": ("scontrol", "release", UNKNOWN),
    "nodes": ("scontrol", "show", "node", "elsewhere"),
    "partitions": ("scontrol", "show", "partition", "elsewhere"),
    "cancel": ("scancel", UNKNOWN),
    "squeue": ("squeue", f"--jobs={UNKNOWN}"),
    "submit": ("sbatch", "--parsable", "--partition=elsewhere", "job.sh"),
    "sacct": ("sacct", "-j", UNKNOWN),
}


def failures(recorder: Recorder) -> None:
    conf = Path(recorder.env["SLURM_CONF"])
    text = conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    with socket.socket() as closed, tempfile.TemporaryDirectory(prefix="ftsup-rec-") as folder:
        closed.bind(("127.0.0.1", 0))
        other = Path(folder)
        recorder.hidden[folder] = "/etc/slurm"
        munged = other_munge(other)
        worlds = {
            "unknown": text,
            "munge away": text.replace("/munge.socket", "/nobody.socket"),
            "munge with another key": text.replace(f"{conf.parent}/munge.socket", f"{folder}/munge.socket"),
            "controller away": text.replace(port, f"SlurmctldPort={closed.getsockname()[1]}").replace(
                "KillWait", "MessageTimeout=3\nKillWait"
            ),
        }
        for world, changed in worlds.items():
            (other / "slurm.conf").write_text(changed)
            for op, argv in EVERYTHING.items():
                recorder.fails(f"{world}: {op}", *argv, SLURM_CONF=str(other / "slurm.conf"))
        recorder.fails("no configuration: show", *EVERYTHING["show"], SLURM_CONF=f"{folder}/missing.conf")
        munged.terminate()
        munged.wait()


def other_munge(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    program = cluster.program("munged")
    assert program is not None
    files = [f"--{what}-file={folder / f'munge.{what}'}" for what in ("key", "log", "pid", "seed")]
    quiet = subprocess.DEVNULL
    munged = subprocess.Popen([program, "-F", "-f", f"--socket={folder}/munge.socket", *files], stdout=quiet, stderr=quiet)
    while not (folder / "munge.socket").exists():
        time.sleep(0.1)
    return munged


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftsup-rec-") as home, cluster.shared(Path(home) / "cluster") as made:
        recorder = Recorder(made.env, Path(home))
        try:
            jobs(recorder)
            nodes(recorder)
            failures(recorder)
        finally:
            (recorder.folder / "failures.json").write_text(json.dumps(recorder.failures, indent=1) + "\n")
    sys.stdout.write(f"{recorder.folder.name}\n")


if __name__ == "__main__":
    main()
