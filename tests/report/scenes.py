"""A leader's machine that leads, and the view of it that a reader has, for tests of what is shown."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.policy.outlook import outlook
from ftsup.policy.rules import Rules
from ftsup.report.runs import Now, RankNow, View
from tests.report.leader import BEGAN, NODES, Leader

RUN = "demo/20260102-030405-00aa"


def trained(minutes: int = 9) -> Leader:
    """A run that trains since so many minutes, a step a second, with a checkpoint."""
    leader = Leader()
    leader.grant()
    leader.launch()
    leader.after(3).train(1)
    leader.take(ev.SlurmSaid(state="RUNNING", left_s=36000.0, kill_wait_s=30.0))
    for minute in range(1, minutes):
        leader.after(60).train(1 + 60 * minute)
    leader.take(ev.Saved(node="n1", epoch=leader.epoch, step=420))
    leader.take(ev.Sealed(epoch=leader.epoch, name="step420", step=420))
    return leader


def wall(leader: Leader) -> datetime:
    """What the reader's clock shows."""
    return BEGAN + timedelta(seconds=leader.base_t + leader.t)


def seen(leader: Leader, *, nodes: int = 2, per_node: int = 2, phases: dict[int, str] | None = None, blame: int = 3) -> View:
    """The run directory as it is read now; the leader has just told of its ranks. Many nodes are named n0001 and so on.

    `blame`: where there are many, this rank is the one that the newest incident is about.
    """
    names = NODES if nodes == len(NODES) else tuple(f"n{number:04d}" for number in range(1, nodes + 1))
    step = leader.state.best_step + 3
    ranks = {
        str(rank): RankNow(step=step, phase=(phases or {}).get(rank, "step"), node=names[rank // per_node])
        for rank in range(nodes * per_node)
    }
    now = Now(
        wall=wall(leader).isoformat(timespec="milliseconds"),
        stage=leader.state.stage.value,
        epoch=str(leader.epoch),
        ahead=outlook(leader.state, Rules(), now=leader.t, asks=True),
        ranks=ranks,
    )
    story = replace(leader.story, nodes=names)
    if nodes != len(NODES) and story.incidents and story.incidents[-1].root:
        newest = story.incidents[-1]
        root = replace(newest.root, rank=blame, node=names[blame // per_node])
        story = replace(story, incidents=(*story.incidents[:-1], replace(newest, root=root)))
    return View(id=RUN, path=f"/runs/{RUN}", jobs=("7",), story=story, now=now)
