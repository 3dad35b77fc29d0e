"""What the leader writes down about a requeue, and what it asks Slurm for: values from the state, and the one question of a job that
follows another. The calls themselves, and when they are made, are the leader's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ftsup import events as ev
from ftsup import proc
from ftsup.errors import SlurmError, Unavailable
from ftsup.events import VerdictKind
from ftsup.policy import exclusion
from ftsup.policy.spool import Spool
from ftsup.policy.state import State
from ftsup.slurm import call
from ftsup.slurm.chain import Standing

SUCCESSOR_S = 120.0
"""Several questions, each with a deadline of its own."""
STANDING_S, TRIES = 60.0, 3


def decision(order: ev.Decide, state: State) -> bytes:
    """`decision.json`. The verdict first: bash reads it by its place. A batch script may be older than we are."""
    verdict = order.verdict
    word = "stop" if verdict.kind is VerdictKind.PAUSED else verdict.kind.value
    if verdict.kind is VerdictKind.REQUEUE:
        word = "requeued" if order.done else "chain" if order.chain else word
    found = {
        "verdict": word,
        "code": order.code,
        "done": order.done,
        "reason": verdict.reason,
        "avoid": verdict.avoid,
        "epoch": str(state.epoch),
    }
    return msgspec.json.encode(found) + b"\n"


def one_too_many(elder: str) -> bytes:
    """`decision.json` of a job that another one of its run makes needless."""
    return msgspec.json.encode({"verdict": "stop", "code": 0, "done": True, "reason": f"job {elder} leads this run"}) + b"\n"


def spool(order: ev.Decide, state: State) -> Spool | None:
    """What others are to carry out where we cannot; None: nothing."""
    verdict = order.verdict
    if verdict.kind is not VerdictKind.REQUEUE or order.done:
        return None
    return Spool(job=state.job, restarts=state.restarts, reason=verdict.reason, chain=order.chain, avoid=state.history.avoided)


def second_chance(order: ev.Decide, state: State) -> bytes:
    """What the batch script hands to `python -m ftsup.slurm keep_out` when it is told to end; empty: nothing."""
    wanted = exclusion.wanted(state)
    if wanted is None or order.done or order.chain or order.verdict.kind is not VerdictKind.REQUEUE:
        return b""
    return msgspec.json.encode(keep_out(wanted, state))


def keep_out(order: ev.Avoid, state: State) -> dict[str, Any]:
    """The arguments of `slurm.keepout.keep_out`."""
    return {"job_id": state.job, "nodes": list(order.nodes), "drop": list(order.drop)}


def requeue_without(state: State) -> dict[str, Any] | None:
    """The arguments of `slurm.keepout.requeue_without`; None: nothing changes about who is kept out."""
    wanted = exclusion.wanted(state)
    return None if wanted is None else {**keep_out(wanted, state), "restarts": state.restarts}


def successor(state: State, *, number: str, script: Path, own: Sequence[str]) -> dict[str, Any]:
    """The arguments of `slurm.chain.successor`."""
    nodes = list(state.history.avoided)
    return {"job_id": state.job, "number": int(number), "script": str(script), "nodes": nodes, "own": list(own)}


def standing(state: State, *, environ: Mapping[str, str], script: Path, cwd: Path) -> Standing:
    """How this job stands to the one before it. Slurm that does not answer says nothing against it."""
    number, follows = int(environ.get("SLURM_JOB_ID", "0")), environ.get("FTSUP_FOLLOWS", "")
    argv = call.argv("standing", before=state.job, number=number, script=str(script), follows=follows)
    for _ in range(TRIES):  # a controller that is away needs seconds to say so
        done = proc.run(argv, deadline_s=STANDING_S, env=environ, cwd=cwd)
        try:
            found: Standing = call.decode(done.out)
        except Unavailable:
            continue
        except SlurmError:
            break
        else:
            return found
    return Standing()
