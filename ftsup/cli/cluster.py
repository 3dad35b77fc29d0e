"""Which Slurm a command talks to: the real one, or the mock on this machine; and how a run remembers it. Wiring."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ftsup.cli.ports import Ports
from ftsup.errors import Unavailable
from ftsup.plain import decode_plain, read_plain
from ftsup.ports import Slurm
from ftsup.rundir import RunDir
from ftsup.supervisor.files import write_whole

MOCK_STATE = "FTSUP_MOCK_STATE"


class Kind(Enum):
    """`--cluster`."""

    AUTO = "auto"
    SLURM = "slurm"
    MOCK = "mock"


class Cluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Slurm of a run. `state`: the mock's directory; empty: the real one."""

    state: str = ""
    name: str = ""
    """ClusterName of the real one, where it was told at submission: another cluster knows nothing of its jobs."""

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment in which its commands are found."""
        if not self.state:
            return dict(environ)
        from ftsup.mockslurm import control as mockslurm  # noqa: PLC0415 - only where there is one

        return {**environ, **mockslurm.environment(Path(self.state))}


def choose(kind: Kind, *, environ: Mapping[str, str], nodes: int) -> tuple[Cluster, str]:
    """The cluster to submit to, and a sentence about the choice. The mock is made, and has nodes enough."""
    if kind is Kind.SLURM or (kind is Kind.AUTO and _sbatch(environ)):
        state = environ.get(MOCK_STATE, "") if _is_mock(environ) else ""
        return Cluster(state=state), ""
    from ftsup.mockslurm import control as mockslurm  # noqa: PLC0415 - as above

    state = str(mock_state(environ))
    mockslurm.create(Path(state), nodes=max(4, nodes))
    said = "" if kind is Kind.MOCK else "there is no sbatch on PATH: this goes to the mock Slurm, whose nodes are all this machine"
    return Cluster(state=state), said


def _sbatch(environ: Mapping[str, str]) -> str | None:
    """Where it is."""
    import shutil  # noqa: PLC0415 - it takes as long to import as a fold of a log, and only submit asks

    return shutil.which("sbatch", path=environ.get("PATH", ""))


def _is_mock(environ: Mapping[str, str]) -> bool:
    """Whether the sbatch on PATH is the mock's (a shell that `ftsup mock env` prepared)."""
    found, state = _sbatch(environ), environ.get(MOCK_STATE)
    return bool(found and state and Path(found).is_relative_to(Path(state)))


def mock_state(environ: Mapping[str, str]) -> Path:
    """The mock's directory, where nobody names another."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache")
    return Path(environ.get(MOCK_STATE) or cache / "ftsup" / "mock")


_COMMANDS, _AUTO, _PYSLURM = "commands", "auto", "pyslurm"


class _Asking(msgspec.Struct, frozen=True, kw_only=True):
    client: str = _COMMANDS


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's configuration says about asking Slurm; runs of before the key have used the commands."""

    slurm: _Asking = _Asking()


def looking(run: RunDir, *, ports: Ports) -> Slurm:
    """The port with which a command looks at a run's jobs, as its `slurm.client` says. Unavailable where that does not work here."""
    cluster = of_run(run)
    environ = cluster.environ(ports.environ)
    try:
        client = decode_plain(read_plain(run.config_json), _Kept).slurm.client
    except (OSError, ValueError):
        client = _COMMANDS
    commands = acting(run, ports=ports)
    if cluster.state or client not in {_AUTO, _PYSLURM} or (client == _AUTO and find_spec("pyslurm") is None):
        return commands
    from ftsup.config.keys import Client  # noqa: PLC0415 - few sites have pyslurm, and this takes its time
    from ftsup.slurm import pyslurm  # noqa: PLC0415 - as above

    if pyslurm.choose(Client(client), environ=environ).client is Client.COMMANDS:
        return commands
    return pyslurm.PySlurm(pyslurm.module(), commands=commands)


def acting(run: RunDir, *, ports: Ports) -> Slurm:
    """The port by commands for a run's jobs, as `port_of`."""
    return port_of(of_run(run), ports=ports)


def port_of(chosen: Cluster, *, ports: Ports) -> Slurm:
    """The port to this cluster. Unavailable where this host's Slurm is another one: it would not know a run's jobs, or know others by
    their numbers.
    """
    slurm = ports.slurm(chosen.environ(ports.environ))
    if chosen.name and (here := slurm.config().get("ClusterName", "")) not in {"", chosen.name}:
        raise Unavailable(
            f"the run is on cluster {chosen.name}, and this host asks cluster {here}", hint=f"type it on a host of {chosen.name}"
        )
    return slurm


def remember(run: RunDir, cluster: Cluster) -> None:
    """Write it down beside the job ids."""
    write_whole(run.root / "cluster.json", msgspec.json.encode(cluster))


def of_run(run: RunDir) -> Cluster:
    """The cluster that a run was submitted to; the real one where nothing is written down."""
    try:
        return decode_plain(read_plain(run.root / "cluster.json"), Cluster)
    except (OSError, ValueError):
        return Cluster()
