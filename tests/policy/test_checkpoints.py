"""Stories of checkpoints that cannot be resumed from, and what the leader remembers of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, VerdictKind
from ftsup.policy import machine
from ftsup.policy.rules import Budgets
from ftsup.policy.state import Stage, State
from tests.policy.test_invariants import ACTIONS, SCRIPTS, act
from tests.world import RULES, World

RESTART, STOP = VerdictKind.RESTART, VerdictKind.STOP


def resumed(world: World) -> list[str]:
    """From where each attempt began."""
    launches = {order.epoch: order.path or "" for line in world.log for order in line.orders if isinstance(order, ev.Launch)}
    return [path.rpartition("/")[2] for path in launches.values()]


def struck(**broken: str) -> World:
    """Training is at step 25, with checkpoints of steps 10 and 20; then a rank dies, and these cannot be loaded any more."""
    world = World().strike("kill", rank=1, step=25)
    world.broken = {f"{name}.pt": what for name, what in broken.items()}
    return world


def test_first_attempt_begins_without_a_checkpoint() -> None:
    world = World(steps=5).run()
    assert resumed(world) == [""]
    assert not any(isinstance(order, ev.Prepare) and order.files for line in world.log for order in line.orders)


@pytest.mark.parametrize("what", ["error", "exit", "kill"])
def test_checkpoint_before_it_is_tried_when_two_attempts_died_before_their_first_step(what: str) -> None:
    world = struck(step20=what).run()
    assert resumed(world) == ["", "step20.pt", "step20.pt", "step10.pt"]
    assert world.verdicts() == [(RESTART, "otherwise"), (RESTART, "otherwise"), (RESTART, "suspect checkpoint")]
    assert "twice before its first step, resumed from step20.pt" in world.news[-2]
    assert world.over is not None
    assert world.over.kind is VerdictKind.FINISHED


def test_one_before_is_tried_once_then_it_stops_with_both_errors() -> None:
    world = struck(step20="error", step10="exit").run()
    assert resumed(world) == ["", "step20.pt", "step20.pt", "step10.pt"]
    assert world.verdicts()[-1] == (STOP, "suspect checkpoint")
    assert world.over is not None
    assert "/c/step20.pt has no key epoch" in world.over.reason
    assert "exited with 3" in world.over.reason
    assert world.quit == 1


def test_only_checkpoint_that_cannot_be_loaded_is_not_followed_by_the_beginning() -> None:
    world = World().strike("kill", rank=1, step=15)
    world.broken = {"step10.pt": "error"}
    world.run()
    assert resumed(world) == ["", "step10.pt", "step10.pt"]
    assert world.over is not None
    assert (world.over.kind, world.over.rule) == (STOP, "suspect checkpoint")
    assert "there is no checkpoint before it" in world.over.reason


@pytest.mark.parametrize("what", ["port", "hang"])
def test_what_is_not_the_scripts_own_death_makes_no_suspect(what: str) -> None:
    world = struck(step20=what).run()
    assert world.state.checkpoints.suspects == ()
    assert set(resumed(world)) == {"", "step20.pt"}


def test_dead_supervisor_makes_no_suspect() -> None:
    world = struck(step20="hang").start()
    for seconds in (34, 44):
        world.at(seconds, lambda: world.kill_supervisor("n2"))
    world.at(50, world.broken.clear).run()
    assert {"node"} <= {root.how.value for root in world.roots()}
    assert world.state.checkpoints.suspects == ()


@pytest.mark.parametrize("end", ["cancel_job", "requeue_job"])
def test_our_own_stop_makes_no_suspect(end: str) -> None:
    """Attempts that end before their first step because the job is cancelled or requeued say nothing about the checkpoint."""
    world = struck(step20="hang").start()
    for seconds in (34, 70):
        world.at(seconds, getattr(world, end))
    world.at(80, world.broken.clear)
    for _ in range(400):
        world.second()
    assert world.state.checkpoints.suspects == ()


def test_checkpoint_from_which_an_attempt_trained_is_never_a_suspect() -> None:
    """The same error at the first step after it, twice: the script's, and not the checkpoint's."""
    world = World().strike("error", rank=0, step=21, times=9).run()
    assert set(resumed(world)) == {"", "step20.pt"}
    assert world.verdicts()[-1] == (STOP, "same error")
    world = World().strike("kill", rank=1, step=25).strike("kill", rank=1, step=22)
    world.broken = {}
    world.run(until=lambda: len(world.launches) == 3)
    world.broken = {"step20.pt": "error"}
    world.run()
    assert world.verdicts()[-1] == (STOP, "same error")


def test_suspect_that_is_written_anew_is_a_suspect_no_more() -> None:
    world = struck(step20="error").start()
    world.run(until=lambda: world.state.base_step == 10 and world.state.checkpoints.suspects == ("step20.pt",))
    world.broken.clear()
    world.run(until=lambda: world.state.checkpoints.suspects == ())
    assert world.state.checkpoints.sealed[-1] == "step20.pt"
    world.run()
    assert world.over is not None
    assert world.over.kind is VerdictKind.FINISHED


def test_new_leader_and_new_grant_know_the_suspects() -> None:
    world = struck(step20="error").start()
    world.run(until=lambda: bool(world.state.checkpoints.suspects) and world.state.stage is Stage.RUN)
    world.kill_leader()
    world.at(3, world.start_leader).at(6, world.requeue_job).run()
    picks = [order for line in world.log for order in line.orders if isinstance(order, ev.PickCheckpoint)]
    assert picks[-1].suspects == ("step20.pt",)
    assert picks[-1].epoch.grant == 2


def test_bytes_that_come_in_keep_the_pick_from_its_deadline() -> None:
    epoch = Epoch(1, 1)
    state = machine.step(State(), ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=("n1",)), RULES).state
    state = machine.step(state, ev.NodeUp(node="n1", instance="a"), RULES).state
    assert (state.stage, state.deadline_t) == (Stage.PICK, RULES.pick_s)
    state = machine.step(state, ev.Picking(t=250.0, epoch=epoch, size_bytes=1 << 40), RULES).state
    assert state.deadline_t == 250.0 + RULES.pick_s
    state = machine.step(state, ev.Picking(t=260.0, epoch=Epoch(1, 0), size_bytes=1), RULES).state
    assert state.deadline_t == 250.0 + RULES.pick_s
    files = ev.Files(count=2, size_bytes=9, digest="d")
    out = machine.step(state, ev.CheckpointPicked(t=300.0, epoch=epoch, path="/c/a", name="a", step=3, files=files), RULES)
    assert [(order.path, order.files) for order in out.orders if isinstance(order, ev.Prepare)] == [("/c/a", files)]


def test_launch_waits_for_a_node_that_sees_the_checkpoint_later() -> None:
    world = World().strike("kill", rank=1, step=25)
    world.late_s = {"n2": 30.0}
    world.run()
    assert resumed(world) == ["", "step20.pt"]
    picked = next(line.event.t for line in world.log if isinstance(line.event, ev.CheckpointPicked) and line.event.path)
    launched = next(line.event.t for line in world.log if isinstance(line.event, ev.Launched) and line.event.epoch == Epoch(1, 2))
    assert launched - picked >= 30.0


def test_node_that_never_sees_the_checkpoint_is_left_out() -> None:
    world = World().strike("kill", rank=1, step=25)
    world.late_s = {"n2": 1e9}
    world.run()
    assert world.verdicts() == [(RESTART, "otherwise"), (RESTART, "otherwise"), (VerdictKind.REQUEUE, "start errors")]
    assert "0 files here" in world.roots()[1].error
    assert world.excluded == {"n2"}
    assert resumed(world) == ["", "step20.pt"]


def test_last_one_that_can_be_trusted_is_gone() -> None:
    state = machine.step(State(), ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=("n1",)), RULES).state
    state = machine.step(state, ev.NodeUp(node="n1", instance="a"), RULES).state
    out = machine.step(state, ev.PickFailed(epoch=Epoch(1, 1), why="3 of the 3 checkpoints are damaged", final=True), RULES)
    assert out.state.verdict is not None
    assert (out.state.verdict.kind, out.state.verdict.reason) == (STOP, "3 of the 3 checkpoints are damaged")


def test_directory_that_belongs_to_another_live_run_ends_this_one() -> None:
    world = World().start()
    world.at(10, lambda: world.tell(ev.CheckpointsTaken(why="the checkpoints belong to run b/1"))).run()
    assert world.quit == 1
    assert world.over is not None
    assert (world.over.kind, world.over.reason) == (STOP, "the checkpoints belong to run b/1")
    assert len(world.launches) == 1


def test_what_was_set_aside_or_removed_is_not_expected_to_have_a_manifest() -> None:
    world = World(steps=35).start()
    world.run(until=lambda: len(world.state.checkpoints.sealed) == 2)
    assert world.state.checkpoints.sealed == ("step10.pt", "step20.pt")
    world.tell(ev.Quarantined(name="step20.pt", why="block 3: other bytes than were sealed", path="/c/.ftsup/quarantine/x"))
    world.tell(ev.Pruned(names=("step10.pt",), size_bytes=1))
    assert world.state.checkpoints.sealed == ()
    assert "block 3" in world.news[-1]


def test_whole_save_of_ranks_that_leave_says_that_the_attempt_ended_well() -> None:
    """For kinds of checkpoints that cannot say themselves whether they are whole."""
    world = World(script="exits", steps=200).start().limit(130)
    world.run()
    picks = [order for line in world.log for order in line.orders if isinstance(order, ev.PickCheckpoint)]
    assert [pick.ended for pick in picks] == [False, True]
    world = World(script="asks", steps=200).start().limit(130)
    world.run()
    picks = [order for line in world.log for order in line.orders if isinstance(order, ev.PickCheckpoint)]
    assert [pick.ended for pick in picks] == [False, False]


def test_older_logs_stay_readable() -> None:
    old = b'{"n":4,"event":{"type":"CheckpointPicked","t":1.0,"epoch":[1,1],"path":"/c/step9.pt","step":9,"why":"x"},"orders":[{"type":"Prepare","node":"n1","epoch":[1,1],"node_rank":0,"path":"/c/step9.pt"}]}'  # noqa: E501
    line = msgspec.json.decode(old, type=ev.Line)
    state = machine.step(State(), ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=("n1",)), RULES).state
    state = machine.step(state, ev.NodeUp(node="n1", instance="a"), RULES).state
    out = machine.step(state, line.event, RULES)
    assert out.orders == line.orders
    assert out.state.checkpoints.name == ""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["step10.pt", "step20.pt", "step30.pt"]), st.sampled_from(["error", "exit", "kill", "port", "hang"])),
    st.lists(st.integers(11, 39), min_size=1, max_size=3),
    ACTIONS,
    SCRIPTS,
)
def test_broken_checkpoints_never_cost_the_run_and_never_turn_into_the_beginning(
    broken: dict[str, str], kills: list[int], actions: list[tuple[int, str]], script: str
) -> None:
    world = World(rules=replace(RULES, policy=Budgets(hard_cap=12), every_s=15.0), steps=40, script=script).start()
    world.broken = dict(broken)
    for step in kills:
        world.strike("kill", rank=1, step=step)
    for seconds, what in actions:
        world.at(seconds, act(world, what))
    world.run(limit_s=20000)
    assert world.over is not None
    state, suspects = State(), set()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
        suspects |= set(state.checkpoints.suspects)
        for order in line.orders:
            if isinstance(order, ev.Launch):
                name = (order.path or "").rpartition("/")[2]
                assert name not in state.checkpoints.suspects
                assert name or not state.checkpoints.suspects
    assert state == world.state
    assert suspects <= {name for name, what in broken.items() if what in {"error", "exit", "kill"}}
