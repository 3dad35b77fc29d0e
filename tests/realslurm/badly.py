"""What bad days of a real cluster are made of: a daemon that is away, a script of Slurm's that is ill, what was ordered and failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ftsup import events as ev
from tests.e2e.harness import Run, until
from tests.realslurm.cluster import Cluster, Plan

TWO = Plan(nodes=("n1", "n2"), partitions=("main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10",), users=True)
ONE = Plan(nodes=("n1",), partitions=("main Nodes=n1 Default=YES MaxTime=INFINITE DefaultTime=10",), users=True)
AWAY = r"Slurm does not answer: .*\("


@contextlib.contextmanager
def away(cluster: Cluster, name: str, *, frozen: bool = False) -> Iterator[None]:
    """A daemon does not answer. It is stopped as an administrator stops it: a controller that is killed forgets its last seconds."""
    if frozen:
        cluster.freeze(name)
    else:
        cluster.daemon(name).terminate()
        until(lambda: not cluster.alive(name))
    try:
        yield
    finally:
        cluster.thaw(name) if frozen else cluster.start(name)


def failed(run: Run, op: str) -> int:
    """How often Slurm did not answer this."""
    return len([event for event in run.events(ev.SlurmFailed) if event.op == op and event.kind != "Refused"])


def ordered(run: Run, kind: type, *, after_n: int = 0) -> int:
    """Wait until this is ordered; the number of its line."""

    def found() -> int:
        return next((line.n for line in run.lines() if line.n > after_n and any(isinstance(order, kind) for order in line.orders)), 0)

    return int(run.until(found))


def script(folder: Path, text: str) -> str:
    """Such a script in `open_folder`; in it, ILL is a file that is there as long as something is to be ill."""
    path = folder / "script"
    path.write_text(f"#!/bin/sh\n{text}\n".replace("ILL", str(folder / "ill")))
    path.chmod(0o755)
    return str(path)


def three(**settings: str) -> Plan:
    """A cluster of three nodes, with these lines in its slurm.conf."""
    partition = "main Nodes=n1,n2,n3 Default=YES MaxTime=INFINITE DefaultTime=10"
    return Plan(nodes=("n1", "n2", "n3"), partitions=(partition,), users=True, settings=settings)
