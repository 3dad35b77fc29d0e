"""How ranks ended, in the words of `ftsup.events`: from their exit records, and from what torchrun says of those without one.

One table says which errors are another rank's death as seen from here. It decides nothing: which fault is the root is the policy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from ftsup.events import Fault, How, Kind
from ftsup.monitors import procs, signatures
from ftsup.monitors.exits import Ended, ExitRecord, RankExit, Unreadable

_PEER_TYPES = re.compile(
    r"^(torch\.distributed\.)?(DistBackendError|DistNetworkError|DistStoreError)$|^Connection(Reset|Refused|Aborted)?Error$|^BrokenPipeError$"
)
_PEER_TEXTS = re.compile(
    r"gloo.*(Connection (closed|reset|refused)|Broken pipe|timed out|Timed out)"
    r"|Connection closed by peer|Connection reset by peer|recvValue failed|Broken pipe"
    r"|NCCL (error|communicator was aborted)|ncclRemoteError|ncclSystemError"
    r"|store.*(timed out|timeout|is closed)",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that a RuntimeError of torch.distributed carries when a peer went away; read from torch 2.13 with gloo, and from public reports."""


VANISH_S = 5.0
"""torchrun says at once which of its ranks failed. One without a record, of which it says nothing for so long, ended with os._exit(0)."""


class Unsaid(msgspec.Struct, frozen=True, kw_only=True):
    """Of a rank that is gone without a word: how long torchrun could have said why, and for how long it cannot speak itself now."""

    able_s: float = 0.0
    mute_s: float = 0.0

    def later(self, seconds: float, *, torchrun: procs.State) -> Unsaid:
        """After a while in which torchrun said nothing, being in this state at its end."""
        if torchrun is procs.State.RUNNING:
            return Unsaid(able_s=self.able_s + seconds)
        return Unsaid(able_s=self.able_s, mute_s=self.mute_s + seconds)

    def how(self) -> How | None:
        """How it ended; None: it is too early to say. One look at torchrun proves nothing: it may just wait for a disk."""
        if self.able_s >= VANISH_S:
            return How.RETURNED
        return How.SIGNAL if self.mute_s >= VANISH_S else None


def of_record(record: ExitRecord | Unreadable, node: str) -> Fault:
    """An exit record as a fault (RETURNED when the script says that it is done)."""
    if isinstance(record, Unreadable):
        return Fault(how=How.EXIT, node=node, rank=record.rank, error=f"its exit record is unreadable: {record.why}")
    how = {Ended.RETURNED: How.RETURNED, Ended.EXIT: How.EXIT, Ended.EXCEPTION: How.EXCEPTION, Ended.INTERRUPTED: How.SIGNAL}[record.how]
    kind, error = None, record.error[:500]
    if record.finished:
        how = How.RETURNED
    elif how is How.EXCEPTION:
        how, kind, error = classify(f"{record.type}: {record.message}", error)
    return Fault(
        how=how,
        node=node,
        rank=record.rank,
        step=record.step if record.step >= 0 else None,
        code=record.code,
        signal="SIGINT" if record.how is Ended.INTERRUPTED else "",
        error=error,
        kind=kind,
        where=record.where,
        fingerprint=record.fingerprint,
        order_ns=record.monotonic_ns,
    )


def classify(message: str, error: str) -> tuple[How, Kind, str]:
    """Whose fault an exception (`type: message`) is, what sort of error, and the sentence to tell (`error`, if there is no better)."""
    found = signatures.find(signatures.ERRORS, message)
    if found:
        row, said = found
        return row.how, row.kind, row.says.format(**said)[:500] if row.says else error
    kind, _, text = message.partition(": ")
    if is_peer_error(kind, text):
        return How.PEER, Kind.NCCL_ERROR if "NCCL" in text else Kind.NETWORK, error
    return How.EXCEPTION, Kind.USER, error


def is_peer_error(kind: str, message: str) -> bool:
    """Whether an exception tells of another rank's death, or the network's, rather than of this rank's own fault."""
    if _PEER_TYPES.match(kind):
        return True
    return kind.rpartition(".")[2] == "RuntimeError" and _PEER_TEXTS.search(message) is not None


def of_exit(told: RankExit, node: str, rank: int) -> Fault:
    """What torchrun says of a rank that left no record."""
    if told.code < 0:
        signal = "SIGTERM" if told.closed else told.signal
        return Fault(how=How.SIGNAL, node=node, rank=rank, signal=signal)
    how = How.RETURNED if told.code == 0 else How.EXIT
    return Fault(how=how, node=node, rank=rank, code=told.code, error="" if told.code == 0 else "os._exit, or the interpreter's own end")


def ends(
    records: Mapping[int, ExitRecord | Unreadable], told: Iterable[RankExit], *, node: str, ranks: tuple[int, ...]
) -> tuple[Fault, ...]:
    """All that is known of the ends of a node's ranks (`ranks`: by local rank), a fault each."""
    found = {rank: of_record(record, node) for rank, record in records.items()}
    for exit_ in told:
        if exit_.local_rank < len(ranks) and ranks[exit_.local_rank] not in found:
            rank = ranks[exit_.local_rank]
            found[rank] = of_exit(exit_, node, rank)
    return tuple(found.values())
