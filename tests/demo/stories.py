"""The demo's run as the leader's own machine tells it, with every fault struck and survived."""

from __future__ import annotations

from datetime import timedelta

from ftsup import events as ev
from ftsup.cli.demo_faults import Struck, choose
from ftsup.events import Ears, Fault, How, Line
from tests.report.leader import BEGAN, NODES, Leader

PLAN = choose(1, steps=120, ranks=4)
SLEEP, KILL, FLIP, LEADER, WARNING = PLAN
OLDER, DAMAGED, SAVED, REACHED = 24, 36, 93, 97
"""Steps: of the checkpoint before the damaged one, of that one, of the save because of the warning, and of the end of that grant."""


class Run(Leader):
    """The leader's machine, and a note of each strike."""

    def __init__(self) -> None:
        super().__init__()
        self.struck: list[Struck] = []

    def strike(self, number: int, **facts) -> None:
        strike = PLAN[number]
        at = (BEGAN + timedelta(seconds=self.base_t + self.t)).isoformat(timespec="milliseconds")
        self.struck.append(Struck(strike=strike, at=at, step=strike.step, epoch=self.epoch, **facts))
        self.after(0.2)

    def pick(self, step: int | None) -> None:
        """The next attempt begins there."""
        name = "" if step is None else f"step-{step:06}.pt"
        path = f"/c/{name}" if name else None
        self.take(ev.CheckpointPicked(epoch=self.epoch, path=path, step=step, name=name))
        for node in NODES:
            self.take(ev.Prepared(node=node, epoch=self.epoch, address="n1", port=1 if node == "n1" else 0))
        for node in NODES:
            self.take(ev.Launched(node=node, epoch=self.epoch, pid=1))
        self.after(6).train((step or 0) + 1)

    def seal(self, *steps: int) -> None:
        for step in steps:
            self.after(1).take(ev.Sealed(epoch=self.epoch, name=f"step-{step:06}.pt", step=step))

    def end_attempt(self) -> None:
        self.after(1)
        super().end_attempt()

    def take_over(self) -> None:
        """A new leader within the grant finds the ranks at work."""
        self.after(1).take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=NODES))
        for node in NODES:
            self.after(1).take(ev.NodeUp(node=node, instance=f"{node}.0", running=self.epoch))

    def save(self, step: int) -> None:
        """All ranks, because of Slurm's warning."""
        for node in NODES:
            self.take(ev.Warned(node=node))
        for node in NODES:
            self.take(ev.Counted(node=node, epoch=self.epoch, save=1, least=60, most=60, ears=Ears.ASKS, step_s=0.2))
        for node in NODES:
            self.take(ev.Voted(node=node, epoch=self.epoch, save=1, beats=self.state.save.beats, ready=True))
        for node in NODES:
            self.after(1).take(ev.SaveOver(node=node, epoch=self.epoch, save=1, step=step))

    def requeue(self, *, reached: int) -> None:
        """Ours, because the limit is near."""
        self.take(ev.SlurmSaid(state="RUNNING", left_s=55.0))
        self.take(ev.Decided(mirrored=True))
        self.take(ev.RequeueAsked())
        self.take(ev.Signalled(signal="SIGTERM"))
        for node in NODES:
            self.take(ev.AttemptOver(node=node, epoch=self.epoch, code=1, step=reached))
        self.after(1).take(ev.SlurmSaid(state="PENDING", restarts=1))


def warned(*, slept: int | None = SLEEP.rank, killed: int | None = KILL.rank, signal_name: str = "SIGKILL") -> Run:
    """The run until the last strike, with all well; or when a rank is taken for another."""
    run = Run()
    run.grant()
    run.pick(None)
    run.seal(12)
    run.strike(0)
    run.after(5).hang(rank=slept, at=SLEEP.step)
    run.end_attempt()
    run.pick(12)
    run.seal(OLDER, DAMAGED)
    run.train(KILL.step)
    run.strike(1)
    run.strike(2, name=f"step-{DAMAGED:06}.pt", offset=5 << 20, older=f"step-{OLDER:06}.pt")
    fault = Fault(how=How.SIGNAL, node="n1", rank=killed, step=KILL.step, phase="step", signal=signal_name)
    run.take(ev.RankEnded(node="n1", epoch=run.epoch, fault=fault))
    run.end_attempt()
    why = "damaged: the file, block 1 (at byte 4194304): other bytes than were sealed, in head.weight"
    run.take(ev.Quarantined(name=f"step-{DAMAGED:06}.pt", why=why, path="/c/.ftsup/quarantine/step-000036.pt.1"))
    run.pick(OLDER)
    run.seal(48, 60)
    run.train(LEADER.step)
    run.strike(3)
    run.take_over()
    run.train(LEADER.step + 8)
    run.train(WARNING.step)
    run.strike(4)
    return run


def survived(**change) -> Run:
    """What the demo's run looks like when all goes well."""
    run = warned(**change)
    run.save(SAVED)
    run.requeue(reached=REACHED)
    run.grant(1, waited_s=2)
    run.pick(SAVED)
    return run


def last(lines: list[Line], kind: type) -> int:
    """Where the last event of that kind is."""
    return max(n for n, line in enumerate(lines) if isinstance(line.event, kind))
