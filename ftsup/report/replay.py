"""An old log before today's rules: what the leader's machine remembers at its end, and where it would decide otherwise.

Pure. The machine is fed as a new leader feeds it (`supervisor/lead`), and orders are compared by what they do: words for people
(`Notify.text`, a verdict's sentence and the name of its row) may change from version to version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from ftsup import events
from ftsup.errors import RuleBroken
from ftsup.events import LeaderOrder, Line, Verdict
from ftsup.policy.machine import next_deadline, step
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State
from ftsup.report.words import one_line

LATE_S = 5.0
"""A wish of the machine to be woken that came so long before the next line, and is not in the log, was none of the old rules."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One line on which today's rules do something else."""

    n: int
    wall: str
    event: str
    then: tuple[LeaderOrder, ...]
    now: tuple[LeaderOrder, ...]
    broken: str = ""
    """Today's rules have no answer: why."""
    early_s: float = 0.0
    """They would have acted so long before the line, by themselves."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A whole log, replayed."""

    lines: int = 0
    skipped: int = 0
    """Lines before the first leader: the beginning of the log is missing."""
    differences: tuple[Difference, ...] = ()
    state: State = State()
    """What the machine remembers at the end."""


def remembered(lines: Iterable[Line], rules: Rules) -> State:
    """What today's machine makes of a log: budgets, learned limits. Lines that it cannot take are passed over."""
    state = State()
    for line in lines:
        state = _step(state, line.event, rules)[0] if _begun(state, line) else _grant(state, line)
    return state


def replay(lines: Iterable[Line], rules: Rules, *, before: Mapping[int, Rules] | None = None) -> Outcome:
    """The log under these rules. After the first difference the events are answers to orders that were not given: more may follow.

    `before`: continuation -> the rules until then, where it changed the configuration.
    """
    state, found, seen, skipped = State(), [], 0, 0
    last, until = rules, dict(before or {})
    rules = until.get(1, last)
    for line in lines:
        seen += 1
        if isinstance(line.event, events.Continued):
            rules = until.get(line.event.n + 1, last)
        if not _begun(state, line):
            skipped += 1
            state = _grant(state, line)
            continue
        early = _woken(state, line, rules)
        if early is not None:
            state, difference = early
            found.append(difference)
        state, now, broken = _step(state, line.event, rules)
        if broken or not same(line.orders, now):
            found.append(_difference(line, now, broken=broken))
    return Outcome(lines=seen, skipped=skipped, differences=tuple(found), state=state)


def _begun(state: State, line: Line) -> bool:
    return state.stage is not Stage.NEW or isinstance(line.event, events.LeaderStarted)


def _grant(state: State, line: Line) -> State:
    """The beginning of the log is lost: what is left of the grant before the first leader tells how grants are counted."""
    epochs = [getattr(one, "epoch", None) for one in (line.event, *line.orders)]
    return replace(state, epoch=max([state.epoch, *(epoch for epoch in epochs if epoch is not None)]))


def same(then: tuple[LeaderOrder, ...], now: tuple[LeaderOrder, ...]) -> bool:
    """Whether they do the same."""
    return tuple(map(meaning, then)) == tuple(map(meaning, now))


def meaning(order: LeaderOrder) -> LeaderOrder:
    """The order without its words for people."""
    if isinstance(order, events.Notify):
        return replace(order, text="")
    if isinstance(order, (events.Decide, events.Incident)) and order.verdict is not None:
        return replace(order, verdict=_bare(order.verdict))
    return order


def verdicts(orders: Iterable[LeaderOrder]) -> Iterator[Verdict]:
    """What orders decide."""
    return (order.verdict for order in orders if isinstance(order, (events.Decide, events.Incident)) and order.verdict is not None)


def _bare(verdict: Verdict) -> Verdict:
    return replace(verdict, reason="", rule="")


def _step(state: State, event: events.LeaderEvent, rules: Rules) -> tuple[State, tuple[LeaderOrder, ...], str]:
    try:
        out = step(state, event, rules)
    except RuleBroken as error:
        return state, (), error.message
    return out.state, out.orders, ""


def _woken(state: State, line: Line, rules: Rules) -> tuple[State, Difference] | None:
    """What today's rules would have done of themselves before this line. A leader that was dead or away could do nothing."""
    due_t = next_deadline(state)
    if due_t is None or line.event.t - due_t < LATE_S or isinstance(line.event, (events.LeaderStarted, events.Away)):
        return None
    after, orders, broken = _step(state, events.Tick(t=due_t), rules)
    if not orders and not broken:
        return None
    return after, _difference(replace(line, event=events.Tick(t=due_t), orders=()), orders, broken=broken, early_s=line.event.t - due_t)


def _difference(line: Line, now: tuple[LeaderOrder, ...], *, broken: str, early_s: float = 0.0) -> Difference:
    event = type(line.event).__name__
    return Difference(n=line.n, wall=line.wall, event=event, then=line.orders, now=now, broken=broken, early_s=early_s)


# In words -----------------------------------------------------------------------------------------------------------------


def changes(difference: Difference) -> Iterator[str]:
    """What is otherwise, order by order."""
    then = {_key(order, n): order for n, order in enumerate(difference.then)}
    now = {_key(order, n): order for n, order in enumerate(difference.now)}
    if difference.broken:
        yield difference.broken
    for key in dict.fromkeys([*then, *now]):
        old, new = then.get(key), now.get(key)
        if old is None or new is None:
            yield f"{_name(old or new)}: {'not ordered any more' if new is None else 'ordered now'}"
        elif meaning(old) != meaning(new):
            yield f"{_name(old)}: {', '.join(_fields(meaning(old), meaning(new)))}"


def _key(order: LeaderOrder, n: int) -> tuple[str, str | int]:
    """What an order is compared with: the one of its kind for its node, else of its place."""
    node = getattr(order, "node", "")
    several = isinstance(order, (events.Notify, events.Incident))
    return type(order).__name__, node or (n if several else 0)


def _name(order: LeaderOrder | None) -> str:
    verdict = getattr(order, "verdict", None)
    decided = f" ({verdict.kind.value}: {verdict.reason})" if verdict is not None else ""
    return " ".join(filter(None, [type(order).__name__, getattr(order, "node", "")])) + decided


def _fields(old: msgspec.Struct, new: msgspec.Struct) -> Iterator[str]:
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after and isinstance(before, msgspec.Struct) and type(before) is type(after):
            yield from (f"{field}.{said}" for said in _fields(before, after))
        elif before != after:
            yield f"{field} was {_short(before)}, is {_short(after)}"


def _short(value: object) -> str:
    return one_line(str(getattr(value, "value", value)), width=60)
