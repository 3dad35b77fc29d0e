"""Starts a real Slurm (munged, slurmctld, four slurmd) on loopback, in its own folder and on free ports, and ends it for sure.

A keeper process (this file as a program) owns the daemons. It ends them once nobody holds the shared lock on `users` any more;
a lock vanishes with its holder, so a pytest that was killed leaves no daemon behind. Several xdist workers share one cluster.
It knows nothing of ftsup.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil

NODES = ("n1", "n2", "n3", "n4")
CPUS_PER_NODE = 16
"""More than the machine has (`config_overrides`): tests of several workers fit beside each other."""
CRED_EXPIRE_S = 6
KILL_WAIT_S = 5
START_S = 40.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CGROUP_V1 = Path("/sys/fs/cgroup")
DEBIAN_SBIN = ("/usr/sbin", "/sbin")


def program(name: str) -> str | None:
    """Where a daemon is: Debian keeps them out of a plain user's PATH."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *DEBIAN_SBIN)))


def why_not(proctrack: str) -> str:
    """Why no real Slurm can be started here; empty: it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if program(name) is None]
    if missing:
        return f"no {', '.join(missing)} on this machine (Debian: slurmctld slurmd slurm-client munge)"
    if proctrack == "cgroup":
        controllers = [CGROUP_V1 / name for name in ("freezer", "memory", "cpuset", "devices")]
        if not all(folder.is_dir() and os.access(folder, os.W_OK) for folder in controllers):
            return "cgroup v1 is not mounted here, or not writable"
    return ""


@contextlib.contextmanager
def shared(home: Path, *, proctrack: str = "linuxproc") -> Iterator[dict[str, str]]:
    """The environment (additions) for the commands of a running cluster; started by the first user of `home`, kept for all."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "users").open("a") as users, (home / "starting").open("a") as starting:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        ready = home / "ready"
        if not ready.exists():
            _start_keeper(home, proctrack)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield {"SLURM_CONF": ready.read_text(), "PATH": os.environ["PATH"]}


def _start_keeper(home: Path, proctrack: str) -> None:
    with (home / "keeper.log").open("a") as log:
        quiet = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *((os.POSIX_SPAWN_DUP2, log.fileno(), fd) for fd in (1, 2))]
        # Not a Popen: the keeper outlives whoever started it, and a Popen would complain of that.
        pid = os.posix_spawn(sys.executable, [sys.executable, __file__, str(home), proctrack], os.environ, file_actions=quiet, setsid=True)
    until = time.monotonic() + START_S + 20
    while not (home / "ready").exists():
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > until:
            raise RuntimeError("the real Slurm did not start:\n" + (home / "keeper.log").read_text()[-4000:])
        time.sleep(0.1)


# What follows runs in the keeper.


def keep(home: Path, proctrack: str) -> None:
    """Start the daemons, wait until the last user is gone, end every process that came of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="ftsup-slurm-"))  # short: a socket's path has 107 bytes
    with (home / "users").open("a") as users:
        try:
            conf = _write_configuration(folder, proctrack)
            _start_daemons(folder, conf, libc)
            (home / "ready.new").write_text(str(conf))
            (home / "ready.new").rename(home / "ready")
            _wait_until_alone(users)
        finally:
            (home / "ready").unlink(missing_ok=True)
            _end_everything(folder)
            _show_logs(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _wait_until_alone(users: IO[str]) -> None:
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # the subreaper's duty: job processes that ended
                pass
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.25)
        else:
            return


def _end_everything(folder: Path) -> None:
    conf = folder / "slurm.conf"
    env = {**os.environ, "SLURM_CONF": str(conf)}
    user = pwd.getpwuid(os.getuid()).pw_name
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):  # empties the job cgroups; SIGKILL below is what counts
        subprocess.run(["scancel", "--signal=KILL", "--user", user], env=env, timeout=10, check=False, capture_output=True)
        subprocess.run(["scancel", "--user", user], env=env, timeout=10, check=False, capture_output=True)
        time.sleep(1)
    me = psutil.Process()
    for process in me.children():  # slurmd removes its own cgroups, given the chance
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(me.children(), timeout=5)
    while descendants := me.children(recursive=True):
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=5)


def _show_logs(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        sys.stdout.write(f"--- {log.name}\n{log.read_text(errors='replace')[-20000:]}\n")


def _start_daemons(folder: Path, conf: Path, libc: ctypes.CDLL) -> None:
    env = {**{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}, "SLURM_CONF": str(conf)}

    def daemon(*argv: str) -> None:
        name = program(argv[0])
        assert name is not None
        with (folder / "daemons.log").open("a") as log:
            subprocess.Popen(
                [name, *argv[1:]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - one thread; even if we are killed
            )

    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = [f"--{what}-file={folder / f'munge.{what}'}" for what in ("key", "log", "pid", "seed")]
    daemon("munged", "--foreground", "--force", f"--socket={folder / 'munge.socket'}", *files)
    _wait_for("munged", (folder / "munge.socket").exists)
    daemon("slurmctld", "-D", "-i")
    for node in NODES:
        daemon("slurmd", "-D", "-N", node)
    _wait_for("the nodes", lambda: _idle_nodes(env) == len(NODES))


def _idle_nodes(env: dict[str, str]) -> int:
    try:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=env, timeout=10, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return 0
    return done.stdout.split().count("idle")


def _wait_for(what: str, there: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not there():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come up in {START_S:g} s")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _write_configuration(folder: Path, proctrack: str) -> Path:
    user = pwd.getpwuid(os.getuid()).pw_name
    ports = _free_ports(1 + len(NODES))
    cgroup = proctrack == "cgroup"
    lines = [
        "ClusterName=ftsup",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        "CryptoType=crypto/munge",
        f"AuthInfo=socket={folder}/munge.socket,cred_expire={CRED_EXPIRE_S}",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        f"ProctrackType=proctrack/{proctrack}",
        f"TaskPlugin=task/{'cgroup' if cgroup else 'none'}",
        "SelectType=select/cons_tres",
        f"SelectTypeParameters={'CR_Core_Memory' if cgroup else 'CR_Core'}",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "AccountingStorageType=accounting_storage/none",
        "SlurmdTimeout=20",
        f"KillWait={KILL_WAIT_S}",
        "MinJobAge=900",
        "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1",
        # Job ids of two clusters on one machine must differ: both trackings use cgroups named by job id.
        f"FirstJobId={1000 + ports[0] * 10}",
        *(f"NodeName={n} NodeAddr=127.0.0.1 NodeHostname=localhost Port={p} CPUs={CPUS_PER_NODE} RealMemory=16000"
          for n, p in zip(NODES, ports[1:], strict=True)),
        f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE DefaultTime=10 State=UP DefMemPerCPU=100",
    ]  # fmt: skip
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    if cgroup:
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n")
    conf = folder / "slurm.conf"
    conf.write_text("\n".join(lines) + "\n")
    return conf


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
