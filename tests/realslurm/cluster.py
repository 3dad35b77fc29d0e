"""Starts a real Slurm (munged, slurmctld, some slurmd) on loopback, in its own folder and on free ports, and ends it for sure.

A keeper process (`keep`, below) owns the daemons. It ends them once nobody holds the shared lock on `users` any more;
a lock vanishes with its holder, so a pytest that was killed leaves no daemon behind. Several xdist workers share one cluster.
Started by root, its people are plain users of its own (see plainuser.py). It knows nothing of ftsup.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from tests.realslurm import plainuser

NODES = ("n1", "n2", "n3", "n4")
CPUS_PER_NODE = 16
"""More than the machine has (`config_overrides`): tests of several workers fit beside each other."""
CRED_EXPIRE_S = 6
REQUEUE_WAIT_S = CRED_EXPIRE_S + 1
"""How long a requeued job waits before it may start."""
KILL_WAIT_S = 5
KEEPER = "import sys; sys.path.insert(0, sys.argv[1]); from tests.realslurm import cluster; cluster.keep(cluster.Path(sys.argv[2]))"
MAIN = "main Nodes=n1,n2,n3,n4 Default=YES MaxTime=INFINITE DefaultTime=10"
START_S = 40.0
PORTS = 3
"""Of a cluster, beside those of its nodes: slurmctld, slurmdbd, its database."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CGROUP_V1 = Path("/sys/fs/cgroup")
DEBIAN_SBIN = ("/usr/sbin", "/sbin")


def program(name: str) -> str | None:
    """Where a daemon is: Debian keeps them out of a plain user's PATH."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *DEBIAN_SBIN)))


def why_not(proctrack: str, *, accounting: bool = False) -> str:
    """Why no real Slurm can be started here; empty: it can."""
    if accounting and (missing := [name for name in ("slurmdbd", "mariadbd", "mariadb-install-db") if program(name) is None]):
        return f"no {', '.join(missing)} on this machine (Debian: slurmdbd mariadb-server)"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if program(name) is None]
    if missing:
        return f"no {', '.join(missing)} on this machine (Debian: slurmctld slurmd slurm-client munge)"
    if proctrack == "cgroup":
        controllers = [CGROUP_V1 / name for name in ("freezer", "memory", "cpuset", "devices")]
        if not all(folder.is_dir() and os.access(folder, os.W_OK) for folder in controllers):
            return "cgroup v1 is not mounted here, or not writable"
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cluster is to be like."""

    nodes: tuple[str, ...] = NODES
    cpus: int = CPUS_PER_NODE
    """Of each node."""
    proctrack: str = "linuxproc"
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Lines of slurm.conf, added or in place of ours; `{folder}` in a value is the cluster's own."""
    each: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is added to the line of a node: `Feature=a100`."""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What lies beside slurm.conf, such as a site's job_submit.lua."""
    cores: bool = False
    """Whether control groups hold a step to its CPUs as well; then no node may have more than the machine."""
    partitions: tuple[str, ...] = (MAIN,)
    """What follows `PartitionName=`; State=UP and DefMemPerCPU are ours."""
    users: bool = False
    """Whether there are plain users, `alice` and `mallory`; only root can have them, others are themselves."""
    accounting: bool = False
    """Whether there is a slurmdbd, with a MariaDB of its own: sacct answers. Takes 10 s more to come up."""


class Cluster:
    """A running cluster: its environment, its users, and hands on its daemons ("munged", "slurmctld", and each node's name)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = json.loads((folder / "keeper.json").read_text())
        self.keeper: int = state["pid"]
        self.users: bool = state["users"]
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"]}
        if self.users:
            venv = Path(sys.executable).parent
            self.env["PATH"] = f"{venv}:/usr/local/bin:/usr/bin:/bin"

    # Its people --------------------------------------------------------------------------------------------------------------

    def argv(self, argv: Sequence[str], *, cwd: Path, user: str = plainuser.ALICE) -> list[str]:
        """What runs this as one of its users, below `cwd`; their HOME and name are set, all else is the environment that you give."""
        return plainuser.argv(argv, cwd=cwd, user=user, keeper=self.keeper, folder=self.folder) if self.users else list(argv)

    def commands(self, *, user: str = plainuser.ALICE) -> dict[str, str]:
        """The environment in which Slurm's commands, whoever calls them, are this user's."""
        if not self.users:
            return self.env
        folder = self.folder / f"bin-{user}"
        folder.mkdir(exist_ok=True)
        for name in ("sbatch", "scancel", "scontrol", "squeue", "sinfo", "sacct", "srun", "salloc"):
            if (path := program(name)) and not (folder / name).exists():
                part = folder / f".{name}-{os.getpid()}"
                line = shlex.join(self.argv([f"PATH={self.env['PATH']}", path], cwd=Path("@"), user=user)).replace(
                    "--chdir=@", '--chdir="$PWD"'
                )
                part.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
                part.chmod(0o755)
                part.rename(folder / name)
        return {**self.env, "PATH": f"{folder}:{self.env['PATH']}"}

    def work(self, name: str, *, user: str = plainuser.ALICE) -> Path:
        """A new folder of this user's, which all may look into."""
        path = Path(tempfile.mkdtemp(prefix=f"{name[:20]}-", dir=self.folder / "work"))
        path.chmod(0o755)
        self.give(path, user=user)
        return path

    def give(self, path: Path, *, user: str = plainuser.ALICE) -> None:
        """The user owns it, and all in it."""
        if self.users:
            for each in (path, *path.rglob("*")):
                os.chown(each, plainuser.UIDS[user], plainuser.UIDS[user], follow_symlinks=False)

    def admin(self, *argv: str, check: bool = True) -> str:
        """A command as whom Slurm trusts; what it printed."""
        done = subprocess.run(argv, env=self.admin_env(), capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, (argv, done)
        return done.stdout

    def admin_env(self) -> dict[str, str]:
        """Ours, and the way to this cluster."""
        return {**{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}, "SLURM_CONF": self.env["SLURM_CONF"]}

    # Its daemons: only on a cluster of your own ------------------------------------------------------------------------------

    def daemon(self, name: str) -> psutil.Process:
        """The daemon of this name that was started last."""
        return psutil.Process(json.loads((self.folder / "daemons.json").read_text())[name])

    def alive(self, name: str) -> bool:
        """Whether it runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.daemon(name).status() != psutil.STATUS_ZOMBIE
        return False

    def kill(self, name: str) -> None:
        """As a crash does it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.daemon(name).kill()
        _until(lambda: not self.alive(name), f"the end of {name}")

    def freeze(self, name: str) -> None:
        """It is there and does nothing."""
        self.daemon(name).suspend()

    def thaw(self, name: str) -> None:
        """It goes on."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.daemon(name).resume()

    def start(self, name: str) -> None:
        """Start a daemon that is gone, and wait until it serves."""
        (self.folder / "orders" / name).touch()
        _until(lambda: not (self.folder / "orders" / name).exists() and self.alive(name), f"the start of {name}")
        if name == "munged":
            _until((self.folder / "munge.socket").exists, name)
        elif name == "slurmctld":
            _until(lambda: self._answers("scontrol", "ping", word="UP"), name)

    def node_dies(self, name: str) -> None:
        """The node is gone: its slurmd, every slurmstepd and whatever they started."""
        self.kill(name)
        while found := list(self._of_node(name)):
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=5)

    def node_back(self, name: str) -> None:
        """It is there again, and Slurm may use it."""
        self.start(name)
        if "State=DOWN" in self.admin("scontrol", "show", "node", name):
            self.admin("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        _until(lambda: self._answers("sinfo", "-h", "-n", name, "-o", "%T", word=("idle", "mixed", "allocated")), f"{name} to be back")

    def _of_node(self, name: str) -> Iterator[psutil.Process]:
        log, conf = str(self.folder / f"slurmd-{name}.log"), f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                place = Path(f"/proc/{process.pid}")
                environ = (place / "environ").read_bytes().split(b"\0")
                if conf not in environ:
                    continue
                of_it = f"SLURMD_NODENAME={name}".encode() in environ
                if of_it or (process.name() == "slurmstepd" and any(str(fd.readlink()) == log for fd in (place / "fd").iterdir())):
                    yield process

    def _answers(self, *argv: str, word: str | tuple[str, ...]) -> bool:
        try:
            done = subprocess.run(argv, env=self.admin_env(), timeout=10, check=False, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return False
        return any(each in done.stdout for each in ((word,) if isinstance(word, str) else word))


def _until(there: Callable[[], object], what: str) -> None:
    until = time.monotonic() + START_S
    while not there():
        assert time.monotonic() < until, f"not within {START_S:g} s: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def shared(home: Path, plan: Plan | None = None) -> Iterator[Cluster]:
    """A running cluster, started by the first user of `home` and kept for all."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "users").open("a") as users, (home / "starting").open("a") as starting:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        ready = home / "ready"
        if not ready.exists():
            (home / "plan.json").write_text(json.dumps(dataclasses.asdict(plan or Plan())))
            _start_keeper(home)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield Cluster(Path(ready.read_text()))


@contextlib.contextmanager
def own(plan: Plan) -> Iterator[Cluster]:
    """A cluster of one test's own, to be broken."""
    with tempfile.TemporaryDirectory(prefix="ftsup-own-") as home:
        with shared(Path(home), plan) as made:
            yield made
        with contextlib.suppress(ChildProcessError):  # it is our child
            os.waitpid(made.keeper, 0)


def _start_keeper(home: Path) -> None:
    with (home / "keeper.log").open("a") as log:
        quiet = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *((os.POSIX_SPAWN_DUP2, log.fileno(), fd) for fd in (1, 2))]
        # Not a Popen: the keeper outlives whoever started it, and a Popen would complain of that.
        argv = [sys.executable, "-c", KEEPER, str(plainuser.REPOSITORY), str(home)]
        pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=quiet, setsid=True)
    until = time.monotonic() + START_S + 20
    while not (home / "ready").exists():
        if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > until:
            raise RuntimeError("the real Slurm did not start:\n" + (home / "keeper.log").read_text()[-4000:])
        time.sleep(0.1)


# What follows runs in the keeper.


def keep(home: Path) -> None:
    """Start the daemons, wait until the last user is gone, end every process that came of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    plan = Plan(**json.loads((home / "plan.json").read_text()))
    folder = Path(tempfile.mkdtemp(prefix="ftsup-slurm-"))  # short: a socket's path has 107 bytes
    folder.chmod(0o755)
    with (home / "users").open("a") as users, _ports(PORTS + len(plan.nodes)) as ports:
        try:
            mine = plan.users and plainuser.enter(folder)
            (folder / "keeper.json").write_text(json.dumps({"pid": os.getpid(), "users": mine}))
            daemons = _start_daemons(folder, _write_configuration(folder, plan, ports), plan, libc, ports)
            (home / "ready.new").write_text(str(folder))
            (home / "ready.new").rename(home / "ready")
            _wait_until_alone(users, daemons, folder / "orders")
        finally:
            (home / "ready").unlink(missing_ok=True)
            _end_everything(folder)
            _show_logs(folder)
            plainuser.leave(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _wait_until_alone(users: IO[str], daemons: Daemons, orders: Path) -> None:
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # the subreaper's duty: job processes that ended
                pass
        for order in orders.iterdir():
            daemons.start(order.name)
            order.unlink()
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
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


class Daemons:
    """Starts them by name, and writes down which process each is."""

    def __init__(self, folder: Path, conf: Path, plan: Plan, libc: Any) -> None:
        self.folder, self.libc = folder, libc
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}, "SLURM_CONF": str(conf)}
        files = [f"--{what}-file={folder / f'munge.{what}'}" for what in ("key", "log", "pid", "seed")]
        self.argvs: dict[str, list[str]] = {
            "munged": ["munged", "--foreground", "--force", f"--socket={folder / 'munge.socket'}", *files],
            "slurmctld": ["slurmctld", "-D"],
            **{node: ["slurmd", "-D", "-N", node] for node in plan.nodes},
        }
        self.pids: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Start this one."""
        argv = self.argvs[name]
        path = program(argv[0])
        assert path is not None
        with (self.folder / "daemons.log").open("a") as log:
            self.pids[name] = subprocess.Popen(
                [path, *argv[1:]],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - one thread; even if we are killed
            ).pid
        part = self.folder / "daemons.new"
        part.write_text(json.dumps(self.pids))
        part.rename(self.folder / "daemons.json")


def _start_daemons(folder: Path, conf: Path, plan: Plan, libc: Any, ports: Sequence[int]) -> Daemons:
    daemons = Daemons(folder, conf, plan, libc)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    daemons.start("munged")
    _wait_for("munged", (folder / "munge.socket").exists)
    if plan.accounting:
        _start_accounting(folder, daemons, ports[1:PORTS])
    for name in ("slurmctld", *plan.nodes):
        daemons.start(name)
    _wait_for("the nodes", lambda: _idle_nodes(daemons.env) == len(plan.nodes))
    return daemons


def _start_accounting(folder: Path, daemons: Daemons, ports: Sequence[int]) -> None:
    """A database, slurmdbd and the cluster's name in it; slurmctld needs all three to be there."""
    user = pwd.getpwuid(os.getuid()).pw_name
    dbd, sql = ports
    data, socket_path = folder / "mariadb", folder / "mariadb.socket"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}", "--auth-root-authentication-method=normal"]
    subprocess.run([str(program(install[0])), *install[1:], "--skip-test-db"], check=True, capture_output=True)
    where = [f"--datadir={data}", f"--socket={socket_path}", f"--port={sql}", "--bind-address=127.0.0.1"]
    daemons.argvs["mariadbd"] = ["mariadbd", "--no-defaults", f"--user={user}", f"--pid-file={folder / 'mariadb.pid'}", *where]
    daemons.argvs["slurmdbd"] = ["slurmdbd", "-D"]
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "DbdHost": "localhost",
        "DbdPort": dbd,
        "SlurmUser": user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": sql,
        "StorageUser": "slurm",
        "StoragePass": "slurm",
        "LogFile": folder / "slurmdbd.log",
        "PidFile": folder / "slurmdbd.pid",
    }
    (folder / "slurmdbd.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    (folder / "slurmdbd.conf").chmod(0o600)
    with (folder / "slurm.conf").open("a") as conf:
        conf.write(f"AccountingStoragePort={dbd}\nAccountingStorageHost=localhost\nAccountingStoragePass={folder}/munge.socket\n")
    daemons.start("mariadbd")
    grant = "create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct_db.* to slurm@'127.0.0.1';"
    client = [str(program("mariadb")), "--no-defaults", f"--socket={socket_path}", "-u", "root", "-e", grant]
    _wait_for("MariaDB", lambda: subprocess.run(client, check=False, capture_output=True).returncode == 0)
    daemons.start("slurmdbd")
    add = ["sacctmgr", "-i", "add", "cluster", "ftsup"]
    _wait_for("slurmdbd", lambda: subprocess.run(add, env=daemons.env, check=False, capture_output=True, timeout=30).returncode == 0)


def _idle_nodes(env: dict[str, str]) -> int:
    try:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %T"], env=env, timeout=10, check=False, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return 0
    return len({line for line in done.stdout.splitlines() if line.endswith(" idle")})  # once a partition


def _wait_for(what: str, there: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not there():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come up in {START_S:g} s")
        time.sleep(0.1)


@contextlib.contextmanager
def _ports(count: int) -> Iterator[list[int]]:
    """Nobody else gets them, also while a daemon is stopped: we have bound them, and only who reuses addresses (daemons do) may as well."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        for one in sockets:  # not before they are ours alone
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield [one.getsockname()[1] for one in sockets]


def _write_configuration(folder: Path, plan: Plan, ports: Sequence[int]) -> Path:
    user = pwd.getpwuid(os.getuid()).pw_name
    cgroup = plan.proctrack == "cgroup"
    settings = {
        "ClusterName": "ftsup",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": ports[0],
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CryptoType": "crypto/munge",
        "AuthInfo": f"socket={folder}/munge.socket,cred_expire={CRED_EXPIRE_S}",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool-%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "ProctrackType": f"proctrack/{plan.proctrack}",
        "TaskPlugin": f"task/{'cgroup' if cgroup else 'none'}",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory" if cgroup else "CR_Core",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 2,
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "AccountingStorageType": f"accounting_storage/{'slurmdbd' if plan.accounting else 'none'}",
        "SlurmdTimeout": 20,
        "KillWait": KILL_WAIT_S,
        # A whole run of the tests: what ended early in it is asked about late.
        "MinJobAge": 7200,
        "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=1",
        # Job ids of two clusters on one machine must differ: both trackings use cgroups named by job id. Slurm's last is 67,043,327.
        "FirstJobId": ports[0] * 1000,
        **{key: str(value).replace("{folder}", str(folder)) for key, value in plan.settings.items()},
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    for node, port in zip(plan.nodes, ports[PORTS:], strict=True):
        line = f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname=localhost Port={port} CPUs={plan.cpus} RealMemory=16000"
        lines.append(f"{line} {plan.each.get(node, '')}")
    lines += [f"PartitionName={each} State=UP DefMemPerCPU=100" for each in plan.partitions]
    for name in ("state", "orders", *(f"spool-{node}" for node in plan.nodes)):
        (folder / name).mkdir()
    (folder / "work").mkdir()
    (folder / "work").chmod(0o1777)
    if cgroup:
        constrain = [
            "ConstrainRAMSpace=yes",
            "ConstrainSwapSpace=yes",
            "AllowedSwapSpace=0",
            *(["ConstrainCores=yes"] if plan.cores else []),
        ]
        (folder / "cgroup.conf").write_text("\n".join(["CgroupPlugin=cgroup/v1", *constrain, ""]))
    for name, text in plan.files.items():
        (folder / name).write_text(text)
    conf = folder / "slurm.conf"
    conf.write_text("\n".join(lines) + "\n")
    return conf
