"""One operation of the Slurm port as a child process: the argv for it, and its answer. Pure.

A supervisor's loop must not wait for Slurm, so it starts `argv(...)` with a deadline of its own and hands what it printed to
`decode`. Values of an environment never travel this way: an argument list is there for everyone to read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ftsup.errors import Refused, SlurmError, Unanswered, Unavailable, Unreadable
from ftsup.ports import Found, Job, Node, Partition
from ftsup.slurm.chain import Standing, Successor, standing, successor
from ftsup.slurm.keepout import KeptOut, Requeued, keep_out, requeue_without

DEADLINE_S = 30.0
"""What a supervisor gives one call; the call has shorter ones inside."""
RESULTS: dict[str, Any] = {
    "submit": str,
    "show": Job,
    "queue": list[Job],
    "requeue": None,
    "cancel": None,
    "nodes": list[Node],
    "partitions": list[Partition],
    "avoid": None,
    "config": dict[str, str],
    "release": None,
    "start_now": None,
    "find": list[Found],
    "keep_out": KeptOut,
    "requeue_without": Requeued,
    "successor": Successor,
    "standing": Standing,
}
"""Every operation, and what it answers."""
COMPOSED: dict[str, Callable[..., object]] = {
    "keep_out": keep_out,
    "requeue_without": requeue_without,
    "successor": successor,
    "standing": standing,
}
"""Those that are built of the port's calls; the port comes first."""
KINDS: dict[str, type[SlurmError]] = {kind.__name__: kind for kind in (Unavailable, Unanswered, Refused, Unreadable)}


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way from the child."""

    kind: str
    message: str
    hint: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The one line that the child prints."""

    op: str
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Failed | None = None


def argv(op: str, **args: object) -> list[str]:
    """The command for one operation, such as `argv("avoid", job_id="12", nodes=["n3"])`; names as in `ports.Slurm`."""
    assert op in RESULTS, op
    assert "env" not in args, "an environment is inherited, never written into an argument list"
    # -P: a module of the user's in the working directory must not stand in for one of Python's.
    safely = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safely, "-m", "ftsup.slurm", op, msgspec.json.encode(args).decode()]


def encode(op: str, outcome: object) -> str:
    """The line for a result or a SlurmError."""
    if isinstance(outcome, SlurmError):
        answer = Answer(op=op, ok=False, error=Failed(kind=type(outcome).__name__, message=outcome.message, hint=outcome.hint))
    else:
        answer = Answer(op=op, ok=True, result=msgspec.Raw(msgspec.json.encode(outcome)))
    return msgspec.json.encode(answer).decode()


def decode(text: str) -> Any:  # noqa: ANN401 - RESULTS says what
    """The result in what the child printed, or its error, raised. A child that was ended early said nothing: Unavailable."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise Unavailable("the helper that asks Slurm ended without an answer")
    try:
        answer = msgspec.json.decode(lines[-1], type=Answer)
        if answer.ok:
            return msgspec.json.decode(answer.result, type=RESULTS[answer.op])
    except (msgspec.MsgspecError, KeyError) as error:
        raise Unreadable(f"the helper that asks Slurm printed {lines[-1][:200]!r} ({error})") from error
    failed = answer.error or Failed(kind="", message="no reason given")
    raise KINDS.get(failed.kind, Unreadable)(failed.message, hint=failed.hint)
