"""What an attempt is started with: its command line, its places, the port where its ranks meet, node_setup.

Values in, values out; starting and ending are `child`'s, the environment of ranks is `rankenv`'s.
"""

from __future__ import annotations

import shlex
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftsup.config import Config, Launch
from ftsup.events import Fault, How
from ftsup.events import Launch as LaunchOrder
from ftsup.worker import beatfile, places

_SETUP_END = "--ftsup-environment--"


def rank_numbers(order: LaunchOrder, workers: int) -> tuple[int, ...]:
    """The node's ranks, by local rank."""
    return tuple(range(order.node_rank * workers, (order.node_rank + 1) * workers))


def argv(config: Config, order: LaunchOrder, *, python: str, at: Mapping[str, Path]) -> tuple[str, ...]:
    """The command line of an attempt on one node. `at`: worker, where the shim lies; out, where torchrun may keep what it keeps."""
    resume = tuple(word.replace("{path}", order.path) for word in config.resume_args) if order.path else ()
    command = (*config.command, *resume)
    if config.launch is Launch.COMMAND:
        return (*config.launcher.prefix, *(_filled(word, variables(order, workers=config.workers)) for word in command))
    torchrun = (
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={order.nodes}",
        f"--node-rank={order.node_rank}",
        f"--nproc-per-node={config.workers}",
        f"--master-addr={order.address}",
        f"--master-port={order.port}",
        "--rdzv-backend=static",
        "--max-restarts=0",
        f"--log-dir={at['out'] / 'torchelastic'}",
        str(at["worker"] / "ftsup_worker" / "__main__.py"),
    )
    return (*config.launcher.prefix, *torchrun, *command)


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Placeholders of `launch: command`; a brace that is none of them is the user's own."""
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def variables(order: LaunchOrder, *, workers: int) -> dict[str, str]:
    """What a command that is no torchrun needs to know: in its environment, and as placeholders."""
    return {
        "FTSUP_NODE_RANK": str(order.node_rank),
        "FTSUP_NNODES": str(order.nodes),
        "FTSUP_NPROC_PER_NODE": str(workers),
        "FTSUP_WORLD_SIZE": str(order.nodes * workers),
        "MASTER_ADDR": order.address,
        "MASTER_PORT": str(order.port),
        places.RESUME_FROM: order.path or "",
    }


def warning(config: Config) -> signal.Signals:
    """What Slurm sends before the time limit. The supervisor hears it; under proctrack/linuxproc everything of the step gets it too."""
    return signal.Signals[config.slurm.warning.signal]


def make_places(beats: Path, out: Path, ranks: Sequence[int]) -> None:
    """The attempt's folders, 0700, and a beat file a rank; OSError when the memory for them is not there."""
    for folder in (beats, out):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for rank in ranks:  # none for `launch: command`: a beat file that nobody writes would look like a hang
        places.beat_path(beats, rank).unlink(missing_ok=True)
        beatfile.create(places.beat_path(beats, rank))


def held_port(address: str) -> socket.socket:
    """One that nobody who asks for any port is given, as long as this is open; torch's listener, which may reuse addresses, gets it.

    Once it is let go somebody may take it: then the launch is repeated.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    return holder


def meeting_address(addresses: Sequence[str], *, nodes: int, hint: str = "") -> str:
    """Where ranks meet: loopback for one node; else the address of ours by which another node reached the leader beside us.

    A host has many (docker0, a management network); where there is no such proof, the first that is not loopback.
    """
    if nodes == 1:
        return "127.0.0.1"
    return hint if hint in addresses else addresses[0]


# node_setup ---------------------------------------------------------------------------------------------------------------


def setup_argv() -> list[str]:
    """bash runs the lines in FTSUP_NODE_SETUP, which no process list shows, then prints the environment that they leave.

    Also after an `exit` of theirs, and whatever they made of PATH.
    """
    lines = [
        "ftsup_tell() {",
        "    ftsup_code=$?",
        f"    printf '\\n%s\\n' {shlex.quote(_SETUP_END)}",
        "    command -p env -0",
        "    exit $ftsup_code",
        "}",
        "trap ftsup_tell EXIT",
        "ftsup_lines=$FTSUP_NODE_SETUP",
        "unset FTSUP_NODE_SETUP",
        'eval "$ftsup_lines"',
    ]
    return ["bash", "-c", "\n".join(lines)]


def setup_environment(output: str) -> dict[str, str] | None:
    """The environment that node_setup left, from what it printed; None when it never came to its end."""
    _, mark, tail = output.rpartition(f"\n{_SETUP_END}\n")
    if not mark:
        return None
    pairs = (item.partition("=") for item in tail.split("\0") if "=" in item)
    return {name: value for name, _, value in pairs if name not in {"_", "SHLVL", "ftsup_code"}}


def start_fault(node: str, code: int, err: str) -> Fault | None:
    """What a torchrun that ended before any rank began died of, where its own words tell."""
    last = [line for line in err.strip().splitlines() if line.strip()]
    if code in {126, 127} and last:
        return Fault(how=How.SETUP, node=node, code=code, error=last[-1][:500])
    return None
