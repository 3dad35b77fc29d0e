"""The leader's side of the checkpoints: when to pick, to seal and to let it be, and what the keeper's answers mean as events.

The work is done by the keeper (keeper.py), a process of its own that may hang with its disk: nothing here touches one. Sealing goes on
beside training only; an incident ends it, and whoever picks then is a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec

from ftsup import events as ev
from ftsup.config import Config
from ftsup.events import LeaderEvent
from ftsup.policy.state import Stage, State
from ftsup.supervisor.clerk import Clerk, ClerkFailed
from ftsup.supervisor.keepwords import Chosen, Me, Pass, PickAsk, SealAsk
from ftsup.supervisor.loop import soonest
from ftsup.worker.beatfile import Phase

TOLD = 5
"""Progress of a pick is told so often within its limit."""
TWO_LOOKS = 0.9
"""Of the time between two of them: what cannot say itself that it is whole has to be as the look before saw it."""
STILL_S = 30.0
"""The end of a run waits so long for its last checkpoints (`checkpoint.keep` of them) to be sealed, and for each further sign that they
are being read."""
LAST_S = 120.0
"""The most that it waits: the allocation is held for nothing else."""
AWAY_S = 5.0


class Checkpoints:
    """Everything that a leader does about the directory of the checkpoints."""

    def __init__(self, config: Config, me: Me, *, now: float) -> None:
        self._config, self._me = config, me
        self._folder = str(Path(config.workdir) / config.checkpoint.dir) if config.checkpoint.dir else ""
        self._limit_s = config.rules().pick_s * 0.9
        self._keeper: Clerk[list[LeaderEvent]] | None = Clerk(now=now, module="ftsup.supervisor.keeper") if self._folder else None
        self._now = now
        self._epoch = ev.Epoch(0, 0)
        self._busy = False
        """A pass of sealing is under way."""
        self._sealed = False
        """This keeper has been asked to seal: it is nice for good."""
        self._due_t = now
        self._saving = False
        self._reached = False
        """A pick has read there."""
        self._found: tuple[str, ...] | None = None
        self._verified: set[str] = set()
        self._damaged: set[str] = set()
        self._said: dict[str, str] = {}
        self._told_t = now
        self._told_bytes = 0
        self._last = False
        """The run is over: one more seal, then the directory is anybody's."""
        self._last_sealed = 0
        """How many were sealed since then."""
        self._last_t = self._moved_t = now
        """Since when, and when the keeper last gave a sign."""
        self.over = not self._folder
        """Nothing is left to do."""

    # For the loop ---------------------------------------------------------------------------------------------------------

    def sources(self) -> list[int]:
        """What to poll for reading."""
        return self._keeper.sources() if self._keeper else []

    def deadline_t(self) -> float | None:
        """When `take` has to look even if nothing comes."""
        given_up_t = self._given_up_t() if self._last and not self.over else None
        return soonest(self._keeper.deadline_t() if self._keeper else None, given_up_t)

    def take(self, now: float) -> list[list[LeaderEvent]]:
        """What the keeper answered."""
        if now - self._now > AWAY_S:  # we were stopped, and so may the keeper have been
            self._last_t, self._moved_t = self._last_t + now - self._now, now
        self._now = now
        found = self._keeper.take(now) if self._keeper else []
        if found:
            self._moved_t = now
        if self._last and not self.over and now >= self._given_up_t():
            found.append(self._give_up())
        return found

    def notes(self) -> list[ev.Noted]:
        """What people should know."""
        return self._keeper.notes() if self._keeper else []

    def close(self) -> None:
        """No more work."""
        if self._keeper:
            self._keeper.close()

    # Picking --------------------------------------------------------------------------------------------------------------

    def pick(self, order: ev.PickCheckpoint, now: float) -> list[LeaderEvent]:
        """Ask for the next attempt's checkpoint; the answer, where there is nothing to ask."""
        if self._keeper is None:
            return [ev.CheckpointPicked(epoch=order.epoch, why="checkpoint.dir is not set: from the beginning")]
        self.hush()
        self._epoch, self._told_t, self._told_bytes = order.epoch, now, 0
        checkpoint = self._config.checkpoint
        ask = PickAsk(
            folder=self._folder,
            pattern=checkpoint.pattern,
            complete=checkpoint.complete,
            epoch=order.epoch,
            me=self._me,
            suspects=order.suspects,
            sealed=order.sealed,
            left=order.left,
            from_step=order.from_step,
            ended=order.ended,
            files_s=self._config.waits.files_s,
            worked=self._reached or bool(order.sealed),
        )
        self._ask("pick", lambda answer: self._picked(order, answer), each=self._goes_on, ask=msgspec.to_builtins(ask))
        return []

    def _goes_on(self, size_bytes: int) -> list[LeaderEvent]:
        """Logged now and then: so that the wait for a big one does not end."""
        if self._now - self._told_t < self._limit_s / TOLD:
            return []
        new, self._told_t, self._told_bytes = size_bytes - self._told_bytes, self._now, size_bytes
        return [ev.Picking(epoch=self._epoch, size_bytes=new)]

    def _picked(self, order: ev.PickCheckpoint, answer: object) -> list[LeaderEvent]:
        if isinstance(answer, ClerkFailed):
            return [ev.PickFailed(epoch=order.epoch, why=str(answer))]
        chosen = msgspec.convert(answer, Chosen)
        if chosen.taken:
            return [ev.CheckpointsTaken(why=chosen.taken)]
        if chosen.broken:
            return [ev.PickFailed(epoch=order.epoch, why=chosen.broken, final=True)]
        self._reached = True
        if self._found is None:
            self._found = chosen.found
        notes = [ev.Noted(text=chosen.note)] if chosen.note else []
        aside = [ev.Quarantined(name=one.name, why=one.why, path=one.path) for one in chosen.aside]
        self._verified -= {one.name for one in chosen.aside} | {one.name for one in chosen.sealed}
        sealed = [
            ev.Sealed(epoch=order.epoch, name=one.name, step=one.step, size_bytes=one.size_bytes, took_s=one.took_s)
            for one in chosen.sealed
        ]
        picked = ev.CheckpointPicked(
            epoch=order.epoch,
            path=chosen.path,
            step=chosen.step,
            why=chosen.why,
            name=chosen.name,
            files=chosen.files,
            took_s=chosen.took_s,
            left=chosen.left,
            refused=chosen.refused,
        )
        return [*notes, *aside, *sealed, picked]

    # Sealing --------------------------------------------------------------------------------------------------------------

    def hush(self) -> None:
        """Something is wrong, or begins: whatever is being sealed waits, and what comes next has a process that is not nice."""
        if self._keeper and self._sealed:
            self._busy = self._sealed = False
            self._keeper.renew()

    def saved(self) -> None:
        """The training has saved: look at once."""
        self._due_t = self._now

    def saving(self, phases: AbstractSet[str]) -> None:
        """What the ranks are in now: when none saves any more, there may be a new one, said or not."""
        was, self._saving = self._saving, Phase.CHECKPOINT.name.lower() in phases
        if was and not self._saving:
            self.saved()

    def look(self, state: State, now: float) -> None:
        """Seal what is whole by now, while it trains."""
        trains = state.stage is Stage.RUN and state.launched_t is None
        if self._keeper is None or not trains or self._busy or self._last or now < self._due_t:
            return
        self._seal(state, now)

    def finish(self, state: State, now: float) -> None:
        """The run is over: seal what it wrote last, and let go of the directory."""
        if self._keeper is None or self._last:
            return
        self.hush()
        self._last, self._last_t, self._moved_t = True, now, now
        self._seal(state, now)

    def _given_up_t(self) -> float:
        return min(self._moved_t + STILL_S, self._last_t + LAST_S)

    def _give_up(self) -> list[LeaderEvent]:
        self.over = True
        self.close()
        self._keeper = None
        still = self._moved_t + STILL_S <= self._last_t + LAST_S
        why = f"nothing was read for {STILL_S:g} s" if still else f"it takes more than {LAST_S:g} s"
        hint = f"ftsup checkpoints seal {self._folder} does it by hand, and a run that resumes from there does it itself"
        which = "older checkpoints" if self._last_sealed else "the last checkpoint"
        return [ev.Noted(text=f"{which} may not be sealed: {why}, and the nodes are not held for it; {hint}")]

    def _seal(self, state: State, now: float) -> None:
        checkpoint = self._config.checkpoint
        self._due_t = now + checkpoint.poll_s
        self._busy = self._sealed = True
        name = state.checkpoints.name
        ended = self._last and state.verdict is not None and state.verdict.kind is ev.VerdictKind.FINISHED
        ask = SealAsk(
            folder=self._folder,
            pattern=checkpoint.pattern,
            complete=checkpoint.complete,
            epoch=state.epoch,
            me=self._me,
            found=self._found,
            rate_bytes=0 if self._last else checkpoint.seal_rate_bytes,
            keep=checkpoint.keep if checkpoint.prune else 0,
            needed=(name,) if name else (),
            left=state.checkpoints.left,
            verified=tuple(sorted(self._verified)),
            damaged=tuple(sorted(self._damaged)),
            ended=ended,
            worked=bool(state.checkpoints.sealed),
            quiet_s=0 if self._last else checkpoint.poll_s * TWO_LOOKS,
        )
        self._ask("seal", lambda answer: self._passed(state, answer), each=lambda _size: [], ask=msgspec.to_builtins(ask))

    def _passed(self, state: State, answer: object) -> list[LeaderEvent]:
        self._busy = False
        if isinstance(answer, ClerkFailed):
            self._let_go()
            return []
        done = msgspec.convert(answer, Pass)
        if done.taken:
            self._let_go()
            return [ev.CheckpointsTaken(why=done.taken)]
        if done.verified:
            self._verified.add(done.verified)
        found: list[LeaderEvent] = []
        if done.sealed:
            self._verified.discard(done.sealed.name)
            self._damaged.discard(done.sealed.name)
            one = done.sealed
            found.append(ev.Sealed(epoch=state.epoch, name=one.name, step=one.step, size_bytes=one.size_bytes, took_s=one.took_s))
        if done.damaged:
            name, why = done.damaged
            self._damaged.add(name)
            found.append(ev.Noted(text=f"checkpoint {name} is damaged: {why}; the next pick sets it aside"))
        if done.removed:
            found.append(ev.Pruned(names=done.removed, size_bytes=done.removed_bytes))
        found += [ev.Noted(text=f"checkpoint {name} is not sealed: {why}") for name, why in self._news(done.said)]
        checkpoint = self._config.checkpoint
        self._last_sealed += self._last and done.sealed is not None
        enough = self._last_sealed >= checkpoint.keep and not checkpoint.prune  # the allocation is not held for all that there ever were
        if done.again and self._last and not enough:
            self._seal(state, self._now)
        elif done.again and not self._last:
            self._due_t = self._now
        else:
            self._let_go()
        return found

    def _news(self, said: dict[str, str]) -> list[tuple[str, str]]:
        """Each is said when it changes; why a kind cannot be sealed, once for all of its kind."""
        known, new = {*self._said.values()}, []
        for name, why in said.items():
            if self._said.get(name) != why and why not in known:
                new.append((name, why))
                known.add(why)
        self._said = said
        return new

    def _let_go(self) -> None:
        if not self._last:
            return

        def released(_answer: object) -> list[LeaderEvent]:
            self.over = True
            return []

        self._ask("release", released, folder=self._folder, run=self._me.run)

    def _ask(
        self,
        what: str,
        then: Callable[[object], list[LeaderEvent]],
        *,
        each: Callable[[int], list[LeaderEvent]] | None = None,
        **arguments: Any,  # noqa: ANN401 - JSON
    ) -> None:
        assert self._keeper is not None
        self._keeper.ask(what, now=self._now, limit_s=self._limit_s, then=then, each=each, **arguments)
