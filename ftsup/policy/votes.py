"""The node's part in a save on request: counts, passes the word on to its ranks, and tells when all have agreed, and when all are through.

Pure, a part of the node's machine. What a rank does is in `ftsup.worker`: it agrees by its `ack`, waits after beat N, and raises TOOK
when the script got the request. What follows from the answers is the leader's affair (`save`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Ask, Ears, Fault, How
from ftsup.policy.watch import step_of
from ftsup.worker.beatfile import Beat, Flag, Phase

PROPOSED_LOOK_S = 0.01
"""Ranks wait for each other now: every look that comes late is training time."""
SAVING_LOOK_S = 0.1
FLAG_S = 30.0
"""A handler may only set a flag that the loop reads a few steps later. Where no save is seen for so long, none is waited for any more."""
EARS = tuple(Ears)


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose script got the request."""

    beats: int
    """Where that was first seen, or a save of it last."""
    t: float
    """When that was first seen."""
    step: int | None
    on: bool = False
    """It made another step since, and nothing of the save is under way."""
    saves: bool = False
    """A save was seen since, or is what the script does next: it has called asked()."""
    handler: bool = False
    """It got the request by its handler: it may leave, and perhaps some steps later."""
    said: int | None = None
    """The step that it said it has saved, at the first look that showed it: what it says later may be of its next save."""
    before: int | None = None
    """What it had said before; None: nobody looked."""


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    """One save on this node."""

    order: ev.AskRanks
    """The newest."""
    said: ev.NodeEvent | None = None
    """The answer to it; repeated when the order is."""
    late: frozenset[int] = frozenset()
    """Ranks that were at or past N without having agreed, at the last look."""
    passed: frozenset[int] = frozenset()
    """Ranks that were past N, and had not asked yet, at the last look: what they save is of a later step."""
    before: dict[int, int] = {}
    """What ranks said that they had saved, when they were last looked at before COMMIT."""
    taken: dict[int, Taken] = {}
    missed: frozenset[int] = frozenset()
    """Ranks that had agreed, and went on without the others."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the ranks shows."""

    t: float
    beats: Mapping[int, Beat]
    ranks: tuple[int, ...]
    """All that the node has."""
    ended: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    """Those of them that were ended by something else: what they were saving is not whole."""
    base_step: int | None = 0
    step_s: float = 0.0


Change = tuple[Votes, tuple[ev.NodeEvent, ...]]


def look_s(votes: Votes | None) -> float | None:
    """How soon the ranks are to be looked at again; None: nothing is open."""
    if votes is None:
        return None
    ask, said = votes.order.ask, votes.said
    if ask is Ask.COUNT:
        return 0.0 if said is None else None
    if ask is Ask.PROPOSE:
        return None if isinstance(said, ev.Voted) and not said.ready else PROPOSED_LOOK_S
    return SAVING_LOOK_S if ask is Ask.COMMIT and said is None else None


def take(votes: Votes | None, order: ev.AskRanks) -> Votes:
    """Take an order in. What is known keeps its answer, which is told again; of an older save nothing is wanted any more."""
    if votes is None or order.save > votes.order.save:
        return Votes(order=order)
    again = order.ask is not Ask.COUNT and (order.ask, order.beats) == (votes.order.ask, votes.order.beats)
    committed = votes.order.ask is Ask.COMMIT  # there is no way back from it
    if again or committed or order.save < votes.order.save:
        return votes
    return Votes(order=order, before=votes.before if order.ask is Ask.COMMIT else {})


def look(votes: Votes, view: View) -> Change:
    """One look at the ranks; what is to be told."""
    if votes.order.ask is Ask.COUNT and votes.said is None:
        return _say(votes, _count(votes.order, view))
    if votes.order.ask is Ask.PROPOSE:
        return _vote(votes, view)
    if votes.order.ask is Ask.COMMIT and votes.said is None:
        return _follow(votes, view)
    return votes, ()


def nobody(order: ev.AskRanks) -> tuple[ev.NodeEvent, ...]:
    """The answer where nothing of the attempt runs; how that came about is told by its end."""
    return () if order.ask is Ask.COMMIT else look(Votes(order=order), View(t=0.0, beats={}, ranks=()))[1]


def _say(votes: Votes, event: ev.NodeEvent) -> Change:
    return replace(votes, said=event), (event,)


def _count(order: ev.AskRanks, view: View) -> ev.Counted:
    beats = [view.beats[rank].beats if rank in view.beats else 0 for rank in view.ranks] or [0]
    ears = min((_ears(view, rank) for rank in view.ranks), key=EARS.index, default=Ears.ENDED)
    return ev.Counted(
        node=order.node, epoch=order.epoch, save=order.save, least=min(beats), most=max(beats), ears=ears, step_s=round(view.step_s, 6)
    )


def _ears(view: View, rank: int) -> Ears:
    beat = view.beats.get(rank)
    if rank in view.ended or (beat is not None and beat.phase >= Phase.SHUTDOWN):
        return Ears.ENDED
    if beat is None or not beat.flags & (Flag.ASKS | Flag.HANDLES):
        return Ears.NONE
    return Ears.ASKS if beat.flags & Flag.ASKS else Ears.HANDLER


def _late(beat: Beat | None, n: int) -> bool:
    return beat is not None and beat.beats >= n and beat.ack != n


def _vote(votes: Votes, view: View) -> Change:
    """A rank writes its beat and its agreement one after the other: only who is late at two looks is late."""
    n = votes.order.beats
    late = frozenset(rank for rank in view.ranks if _late(view.beats.get(rank), n))
    gone = view.ended.intersection(view.ranks)
    failed = late & votes.late or gone
    votes = replace(votes, late=late, before={rank: beat.saved_step for rank, beat in view.beats.items()})
    ready = all(rank in view.beats and view.beats[rank].ack == n for rank in view.ranks)
    if failed or not view.ranks:
        return _say(votes, _voted(votes.order, ready=False)) if votes.said != _voted(votes.order, ready=False) else (votes, ())
    return _say(votes, _voted(votes.order, ready=True)) if ready and votes.said is None else (votes, ())


def _voted(order: ev.AskRanks, *, ready: bool) -> ev.Voted:
    return ev.Voted(node=order.node, epoch=order.epoch, save=order.save, beats=order.beats, ready=ready)


def _follow(votes: Votes, view: View) -> Change:
    """Over when every rank that takes part has taken it up and gone on, or ended."""
    n = votes.order.beats
    late = frozenset(rank for rank in view.ranks if _late(view.beats.get(rank), n))
    agreed = {rank: beat for rank in view.ranks if (beat := view.beats.get(rank)) is not None and beat.ack == n}
    took = {rank: beat for rank, beat in agreed.items() if beat.flags & Flag.TOOK}
    now = {rank: votes.taken.get(rank) or _taken(beat, n, view, votes, rank) for rank, beat in took.items()}
    taken = {**votes.taken, **{rank: _went_on(one, took[rank]) for rank, one in now.items()}}
    lost = (late & votes.late) | view.ended.intersection(view.ranks)
    cut = {rank for rank in view.cut & taken.keys() if not (taken[rank].on or _told(taken[rank], took.get(rank)))}
    missed = votes.missed | (lost - taken.keys()) | cut
    passed = frozenset(rank for rank, beat in agreed.items() if rank not in taken and beat.beats > n)
    votes = replace(votes, late=late, passed=passed, taken=taken, missed=missed)
    if not all(rank in missed or rank in view.ended or (rank in taken and taken[rank].on) for rank in view.ranks):
        return votes, ()
    stay = [one for rank, one in taken.items() if rank not in view.ended]
    if stay and not any(one.saves for one in stay) and view.t - max(one.t for one in stay) < FLAG_S:
        return votes, ()
    steps: list[int | None] = [one.said for one in taken.values() if one.said is not None]
    steps = steps or [one.step for one in taken.values()]
    known = [step for step in steps if step is not None]
    order = votes.order
    over = ev.SaveOver(
        node=order.node,
        epoch=order.epoch,
        save=order.save,
        step=min(known) if known and len(known) == len(steps) else None,
        missed=tuple(sorted(missed)),
    )
    return _say(votes, over)


def _taken(beat: Beat, n: int, view: View, votes: Votes, rank: int) -> Taken:
    """A rank that was not past N at the last look took it up at N, wherever it is by now."""
    step = step_of(beat, view.base_step)
    at = step if step is None or rank in votes.passed else step - (beat.beats - n)
    asks = bool(beat.flags & Flag.ASKS)
    return Taken(beats=beat.beats, t=view.t, step=at, saves=asks, handler=not asks, before=votes.before.get(rank))


def _went_on(taken: Taken, beat: Beat) -> Taken:
    told = _told(taken, beat)
    saves = beat.phase is Phase.CHECKPOINT or beat.writing or (told and taken.handler)
    said = beat.saved_step if told and taken.said is None else taken.said
    if saves and not (taken.on and taken.saves) and taken.said is None:
        return replace(taken, beats=beat.beats, on=False, saves=True, said=said)
    return replace(taken, on=taken.on or beat.beats > taken.beats, saves=taken.saves or told, said=said)


def _told(taken: Taken, beat: Beat | None) -> bool:
    """It says that it has saved. The script's own count may be one behind: the request comes inside of its optimizer's step."""
    if beat is None or taken.step is None:
        return False
    anew = taken.before is not None and beat.saved_step > taken.before
    return beat.saved_step >= taken.step - anew


def left(votes: Votes | None, fault: Fault) -> Fault:
    """How a rank ended, now that it may have done so because it was asked: not by an exception or a signal, and not after it went on.

    Whose handler only set a flag may go on for a few steps before.
    """
    taken = votes.taken.get(-1 if fault.rank is None else fault.rank) if votes else None
    if votes is None or taken is None or not by_itself(fault):
        return fault
    flagged = taken.handler and votes.said is None
    return fault if taken.on and not flagged else replace(fault, how=How.SAVED, step=taken.step)


def by_itself(fault: Fault) -> bool:
    """It chose to end: not by an exception, not by a signal (os._exit shows as one without a name at first)."""
    return fault.how in {How.RETURNED, How.EXIT} or (fault.how is How.SIGNAL and not fault.signal)
