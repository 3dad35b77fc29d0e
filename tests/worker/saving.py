"""Saves on request, with the rank's own code, the node's and the leader's: ranks are processes, a shared memory stands for their
collectives, and words between leader and nodes take time. A program: `python saving.py '{...}' 30` prints what came of it with each of 30
seeds, a line of JSON each.

A collective is entered with its kind. If ranks enter one with different kinds (one saves, another trains), that is a mismatch; if one
never comes, a deadlock: both end the program, and are told.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from ftsup import events as ev
from ftsup.policy import save as policy
from ftsup.policy import votes as voting
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State
from ftsup.policy.votes import View, Votes
from ftsup.worker import beatfile
from ftsup.worker.beatfile import Word
from ftsup.worker.rank import Rank

LOST_S = 45.0
PR_SET_PDEATHSIG = 1
RING = 4
STEP, SAVE, LAST = 1, 2, 3
EPOCH = ev.Epoch(1, 1)
WORDS = {ev.Ask.PROPOSE: Word.PROPOSED, ev.Ask.COMMIT: Word.COMMIT}


@dataclass(frozen=True)
class Plan:
    ranks: int = 4
    step_s: float = 0.014
    delay_s: float = 0.0
    """What a message to or from the second half of the nodes takes..."""
    jitter: bool = False
    """...or anything from nothing to twice that: what was measured says little about the next one."""
    saves: int = 3
    seed: int = 0
    by: str = "asked"
    """asked, handler, or signal: a plain one to every rank, as it would be without us."""
    lead: int = 0
    """So many beats ahead of the ranks instead of what the leader would choose: too few, so that ranks miss it or hold."""
    every: int = 1
    """asked() is called at each so manyth step."""


@dataclass
class Came:
    """What came of it."""

    trouble: str = ""
    beats: list[list[int]] = field(default_factory=list)
    """Rank -> at which beats it saved."""
    proposals: list[int] = field(default_factory=list)
    given_up: int = 0
    partial: int = 0
    last_in_ms: list[float] = field(default_factory=list)
    """From the wish to the last rank in the save."""
    held_ms: list[float] = field(default_factory=list)
    """The longest hold of each rank."""
    steps: int = 0


class Meeting:
    """The collective of all ranks, in memory that they share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.memory = memoryview(mmap.mmap(-1, 8 * ranks * (RING + 1) + 8)).cast("Q")
        self.numbers = 0

    @property
    def stop(self) -> bool:
        return bool(self.memory[-1])

    def end(self) -> None:
        self.memory[-1] = 1

    def meet(self, me: int, kind: int) -> int:
        """Come together; the kind that rank 0 came with."""
        self.numbers += 1
        row = self.ranks * (1 + self.numbers % RING)
        self.memory[row + me] = kind
        self.memory[me] = self.numbers
        until = time.monotonic() + LOST_S
        while min(self.memory[: self.ranks]) < self.numbers:
            if time.monotonic() > until:
                raise RuntimeError(f"deadlock: rank {me} waits in {kind}, others are at {list(self.memory[: self.ranks])}")
            time.sleep(0.0003)
        kinds = set(self.memory[row : row + self.ranks])
        if kinds not in ({kind}, {STEP, LAST}):
            raise RuntimeError(f"mismatch: {list(self.memory[row : row + self.ranks])}")
        return self.memory[row]


class Optimizer:
    pass


def train(me: int, plan: Plan, meeting: Meeting, file: Path, out: Path) -> None:
    """A training script on one rank."""
    luck, rank, optimizer = random.Random(f"{plan.seed} {me}"), Rank(), Optimizer()
    saved: list[tuple[int, float]] = []
    held, trouble, step = 0.0, "", 0

    def save(*_: object) -> None:
        saved.append((step, time.monotonic()))
        if plan.by != "signal":
            meeting.meet(me, SAVE)
        rank.saved(step)

    rank.join(file, pid=os.getpid(), started=1, base_step=0)
    if plan.by == "handler":
        rank.handler = save
        rank.writer.flag(beatfile.Flag.HANDLES)
    if plan.by == "signal":
        signal.signal(signal.SIGUSR1, save)
    try:
        while True:
            time.sleep(plan.step_s * luck.uniform(0.5, 1.5))
            kind = meeting.meet(me, LAST if me == 0 and meeting.stop else STEP)
            if kind == LAST:
                break
            step += 1
            began, saves = time.monotonic(), len(saved)
            rank.optimizer_stepped(optimizer)
            if len(saved) == saves:
                held = max(held, time.monotonic() - began)
            if plan.by == "asked" and step % plan.every == 0 and rank.asked():
                save()
    except RuntimeError as error:
        trouble = str(error)
    out.write_text(json.dumps({"trouble": trouble, "saved": saved, "held": held, "steps": step}))


class Node:
    """A node supervisor in small: the policy's votes, real beat files."""

    def __init__(self, name: str, files: dict[int, Path], step_s: float) -> None:
        self.name, self.files, self.step_s = name, files, step_s
        self.votes: Votes | None = None
        self.looked_t = 0.0

    def ordered(self, order: ev.AskRanks) -> None:
        """As the node's machine does it: what is taken back is written, too."""
        self.votes = voting.take(self.votes, order)
        if self.votes.order is order and order.beats:
            for file in self.files.values():
                beatfile.ask(file, beats=order.beats, word=WORDS.get(order.ask, Word.ABORT), handlers=order.handlers)

    def due_t(self) -> float | None:
        soon_s = voting.look_s(self.votes)
        return None if soon_s is None else self.looked_t + soon_s

    def look(self, now: float) -> tuple[ev.NodeEvent, ...]:
        due_t = self.due_t()
        if self.votes is None or due_t is None or now < due_t:
            return ()
        self.looked_t = now
        beats = {rank: beat for rank, file in self.files.items() if (beat := beatfile.read(file))}
        self.votes, told = voting.look(self.votes, View(t=now, beats=beats, ranks=tuple(self.files), step_s=self.step_s))
        return told


class Leader:
    """The leader in small: the policy's save."""

    def __init__(self, nodes: dict[str, Node], lead: int) -> None:
        self.rules, self.lead = Rules(every_s=1e9), lead
        self.state = State(stage=Stage.RUN, epoch=EPOCH, nodes=tuple(nodes))
        self.tries = 0
        self.came = Came()

    def want(self, now: float, *, handlers: bool) -> tuple[ev.Order, ...]:
        self.tries = 0
        wish = {"warned": True, "answered": False} if handlers else {"save_t": now}
        self.state, orders = policy.follow(self.changed(**wish), now, self.rules)
        return self._noted(orders)

    def changed(self, **fields: object) -> State:
        return msgspec.structs.replace(self.state, **fields)

    def hear(self, event: ev.NodeEvent) -> tuple[ev.Order, ...]:
        rule = {ev.Counted: policy.counted, ev.Voted: policy.voted, ev.SaveOver: policy.save_over}[type(event)]
        if isinstance(event, ev.SaveOver):
            self.came.partial += bool(event.missed)
        self.state, orders = rule(self.state, event, self.rules)
        return self._noted(orders)

    def tick(self, now: float) -> tuple[ev.Order, ...]:
        due_t = self.state.save.deadline_t if self.state.save else None
        if due_t is None or now < due_t:
            return ()
        self.state, orders = policy.follow(self.state, now, self.rules)
        return self._noted(orders)

    def _noted(self, orders: tuple[ev.Order, ...]) -> tuple[ev.Order, ...]:
        proposed = any(isinstance(order, ev.AskRanks) and order.ask is ev.Ask.PROPOSE for order in orders)
        save = self.state.save
        if proposed and self.lead and save is not None:
            n = save.most + self.lead * 2**save.tries
            self.state = self.changed(save=msgspec.structs.replace(save, beats=n))
            orders = tuple(msgspec.structs.replace(order, beats=n) if isinstance(order, ev.AskRanks) else order for order in orders)
        self.tries += proposed
        self.came.given_up += any(isinstance(order, ev.Notify) and "nothing can be saved" in order.text for order in orders)
        return orders


class Post:
    """Messages on their way."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, object]] = []
        self.number = 0

    def send(self, at: float, what: object) -> None:
        self.number += 1
        heapq.heappush(self.heap, (at, self.number, what))

    def arrived(self, now: float) -> list[object]:
        found = []
        while self.heap and self.heap[0][0] <= now:
            found.append(heapq.heappop(self.heap)[2])
        return found


def lead(plan: Plan, nodes: dict[str, Node], alive: list[int]) -> tuple[Came, list[float]]:
    """Want a save now and then, and see each of them through."""
    luck, post, leader, wishes = random.Random(plan.seed), Post(), Leader(nodes, plan.lead), []
    late = {name: plan.delay_s if number >= len(nodes) / 2 else 0.0 for number, name in enumerate(nodes)}
    last = {(name, out): 0.0 for name in nodes for out in (True, False)}

    def arrives(name: str, now: float, *, out: bool) -> float:
        """A link keeps the order of its messages."""
        takes_s = late[name] * (luck.uniform(0, 2) if plan.jitter else 1)
        last[name, out] = max(last[name, out], now + takes_s)
        return last[name, out]

    def send(orders: tuple[ev.Order, ...], now: float) -> None:
        for order in orders:
            if isinstance(order, ev.AskRanks):
                post.send(arrives(order.node, now, out=True), order)

    while len(wishes) < plan.saves:
        pause_t = time.monotonic() + plan.step_s * luck.uniform(2, 6)
        while time.monotonic() < pause_t:
            time.sleep(0.001)
        now = time.monotonic()
        wishes.append(now)
        send(leader.want(now, handlers=plan.by == "handler"), now)
        while leader.state.save is not None and not any(map(ended, alive)):
            for what in post.arrived(now):
                if isinstance(what, ev.AskRanks):
                    nodes[what.node].ordered(what)
                else:
                    send(leader.hear(at_time(what, now)), now)
            for node in nodes.values():
                for event in node.look(now):
                    post.send(arrives(node.name, now, out=False), event)
            send(leader.tick(now), now)
            time.sleep(0.0005)
            now = time.monotonic()
        leader.came.proposals.append(leader.tries)
        leader.state = leader.changed(look_t=None)
    return leader.came, wishes


def at_time(event: ev.NodeEvent, t: float) -> ev.NodeEvent:
    return msgspec.structs.replace(event, t=t)


def ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signals(plan: Plan, pids: list[int]) -> tuple[Came, list[float]]:
    luck, wishes = random.Random(plan.seed), []
    for _ in range(plan.saves):
        time.sleep(plan.step_s * luck.uniform(5, 10))
        wishes.append(time.monotonic())
        for number, pid in enumerate(pids):
            if number == len(pids) // 2:
                time.sleep(plan.delay_s)
            os.kill(pid, signal.SIGUSR1)
    time.sleep(plan.step_s * 10)
    return Came(), wishes


def run(plan: Plan, folder: Path) -> Came:
    files = {rank: folder / f"beat.{rank}" for rank in range(plan.ranks)}
    for file in files.values():
        beatfile.create(file)
    meeting, pids = Meeting(plan.ranks), []
    for rank, file in files.items():
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # who drives us may itself be killed
            train(rank, plan, meeting, file, folder / f"out.{rank}")
            os._exit(0)
        pids.append(pid)
    half = plan.ranks // 2
    parts = {"n1": dict(list(files.items())[:half]), "n2": dict(list(files.items())[half:])}
    while min(beat.beats if (beat := beatfile.read(file)) else 0 for file in files.values()) < max(2, plan.every + 1):
        time.sleep(0.002)
    came, wishes = signals(plan, pids) if plan.by == "signal" else lead(plan, {n: Node(n, f, plan.step_s) for n, f in parts.items()}, pids)
    meeting.end()
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    outs = [json.loads((folder / f"out.{rank}").read_text()) for rank in files]
    came.trouble = "; ".join(sorted({out["trouble"] for out in outs if out["trouble"]}))
    came.beats = [[step for step, _ in out["saved"]] for out in outs]
    came.held_ms = [round(out["held"] * 1000, 1) for out in outs]
    came.steps = outs[0]["steps"]
    times = list(zip(*([t for _, t in out["saved"]] for out in outs), strict=False))
    if len(times) == len(wishes):
        came.last_in_ms = [round((max(ts) - wish) * 1000, 1) for ts, wish in zip(times, wishes, strict=True)]
    return came


def main(given: str, seeds: int = 1) -> int:
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            print(json.dumps(asdict(run(Plan(**{"seed": seed} | json.loads(given)), Path(name)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
