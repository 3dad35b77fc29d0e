"""Stories in the fake world: a fault strikes, and the run goes on as it should."""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How, VerdictKind
from ftsup.policy import machine, nodestate
from ftsup.policy.judge import root
from ftsup.policy.rules import Budgets, HangMode
from ftsup.policy.state import Stage, State
from ftsup.policy.watch import Process
from tests.world import RULES, World

RESTART, REQUEUE, STOP = VerdictKind.RESTART, VerdictKind.REQUEUE, VerdictKind.STOP


def finished(world: World) -> bool:
    return world.quit == 0 and world.over is not None and world.over.kind is VerdictKind.FINISHED


def test_undisturbed_run_finishes_in_one_attempt() -> None:
    world = World().run()
    assert finished(world)
    assert len(world.launches) == 1
    assert world.verdicts() == []


def test_rank_hangs_and_the_attempt_is_restarted_in_place() -> None:
    world = World().strike("hang", rank=3, step=25).run()
    assert finished(world)
    assert world.verdicts() == [(RESTART, "otherwise")]
    (root,) = world.roots()
    assert (root.how, root.rank, root.step) == (How.QUIET, 3, 25)
    assert world.requeues == []


def test_rank_is_killed() -> None:
    world = World().strike("kill", rank=1, step=25).run()
    assert finished(world)
    assert world.roots()[0].signal == "SIGKILL"
    assert world.verdicts() == [(RESTART, "otherwise")]


def test_rank_is_stopped_and_found_before_the_step_limit() -> None:
    world = World().strike("stop", rank=2, step=25)
    world.run()
    assert finished(world)
    assert world.roots()[0].how is How.STOPPED
    assert world.roots()[0].rank == 2


def test_rank_that_hangs_is_to_blame_and_not_those_that_train_on() -> None:
    world = World()
    world.apart = True
    world.strike("hang", rank=3, step=25).run()
    assert finished(world)
    (root,) = world.roots()
    assert (root.how, root.rank, root.signal) == (How.QUIET, 3, "")


def test_torchrun_is_killed_and_its_ranks_are_not_to_blame() -> None:
    world = World().start()
    world.at(20, lambda: world.kill_torchrun("n2")).run()
    assert finished(world)
    (root,) = world.roots()
    assert (root.how, root.node, root.signal) == (How.TORCHRUN, "n2", "SIGKILL")
    assert "the launcher on n2 was ended by SIGKILL" in world.news[0]


def test_torchrun_that_hangs_when_training_is_done_is_ended_and_finished() -> None:
    world = World(steps=30).start()
    world.at(10, lambda: setattr(world.nodes["n2"], "torchrun_hangs", True)).run()
    assert finished(world)
    assert world.verdicts() == [(VerdictKind.FINISHED, "finished")]
    assert world.roots()[0].how is How.TORCHRUN


def test_rank_exits_with_a_code() -> None:
    world = World().strike("exit", rank=0, step=5).run()
    assert finished(world)
    assert world.roots()[0].code == 3


def test_same_error_twice_stops_and_says_so() -> None:
    world = World().strike("error", rank=0, step=25, times=9).run()
    assert world.quit == 1
    assert world.verdicts() == [(RESTART, "otherwise"), (STOP, "same error")]
    assert "ValueError: no" in world.news[-1]


def test_same_error_with_progress_between_goes_on() -> None:
    world = World().strike("error", rank=0, step=15).strike("error", rank=0, step=35).run()
    assert finished(world)


def test_hang_twice_at_one_step_goes_elsewhere_then_stops() -> None:
    world = World().strike("hang", rank=2, step=25, times=9).run()
    assert world.verdicts() == [(RESTART, "otherwise"), (REQUEUE, "same step"), (STOP, "same step")]
    assert world.excluded == {"n2"}
    assert world.quit == 1


def test_hangs_at_different_steps_on_one_node_avoid_it() -> None:
    world = World()
    for step in (15, 25, 35):
        world.strike("hang", rank=2, step=step)
    world.run()
    assert finished(world)
    assert world.verdicts()[-1] == (REQUEUE, "bad node")
    assert world.excluded == {"n2"}


def test_leader_is_killed_and_training_goes_on() -> None:
    world = World().start()
    world.at(20, world.kill_leader).at(40, world.start_leader)
    world.run()
    assert finished(world)
    assert len(world.launches) == 1


def test_leader_is_killed_in_every_second_of_an_incident() -> None:
    for second in range(15, 70):
        world = World().strike("hang", rank=3, step=12).start()
        world.at(second, world.kill_leader).at(second + 5, world.start_leader)
        world.run()
        assert finished(world), second
        assert len(world.launches) == 2, second


def test_leader_stopped_for_minutes_makes_no_incident() -> None:
    world = World(steps=300).start()

    def stop() -> None:
        world.leader_stopped = True

    def resume() -> None:
        world.leader_stopped = False
        for node in world.nodes.values():
            node.heard_t = world.t
        world.tell(ev.Away(away_s=200.0))

    world.at(20, stop).at(220, resume).run()
    assert finished(world)
    assert world.verdicts() == []


def test_node_supervisor_stopped_for_minutes_makes_no_incident() -> None:
    world = World(steps=300).start()
    world.at(20, lambda: setattr(world.nodes["n2"], "stopped", True))
    world.at(220, lambda: setattr(world.nodes["n2"], "stopped", False))
    world.run()
    assert finished(world)
    assert world.verdicts() == []


def test_node_supervisor_is_killed() -> None:
    world = World().start()
    world.at(20, lambda: world.kill_supervisor("n2"))
    world.run()
    assert finished(world)
    assert [root.how for root in world.roots()] == [How.NODE]


def test_everything_stopped_for_minutes_makes_no_incident() -> None:
    world = World(steps=100).start()
    world.run(until=lambda: world.state.stage is Stage.RUN)
    for _ in range(10):
        world.second()
    world.t += 600
    for node in world.nodes.values():
        node.heard_t = world.t
    world.tell(ev.Away(away_s=600.0))
    world.run()
    assert finished(world)
    assert world.verdicts() == []


def test_requeue_refused_once_then_granted() -> None:
    world = World().strike("hang", rank=2, step=25, times=2).start()
    world.refusals = 1
    world.run()
    assert finished(world)
    assert world.restarts == 1
    assert len(world.requeues) == 2


def test_requeue_while_the_controller_is_away_is_tried_again() -> None:
    world = World().strike("hang", rank=2, step=25, times=2).start()
    world.run(until=lambda: world.state.stage is Stage.CLOSE)
    world.slurm_away = True
    world.at(90, lambda: setattr(world, "slurm_away", False))
    world.run()
    assert finished(world)
    assert world.restarts == 1


def test_requeue_refused_for_good_stops() -> None:
    world = World().strike("hang", rank=2, step=25, times=2).start()
    world.refusals = 99
    world.run(limit_s=600)
    assert world.quit == 1
    assert "refused" in world.news[-1]
    assert len(world.requeues) == RULES.policy.refusals


def test_requeue_by_somebody_else_is_survived() -> None:
    world = World().start()
    world.at(30, world.requeue_job).run()
    assert finished(world)
    assert world.restarts == 1
    assert world.requeues == []


def test_time_limit_is_met_with_a_requeue_before_it() -> None:
    world = World(steps=200).start()
    world.limit_t = world.t + 120

    def second_grant() -> bool:
        return world.restarts == 1 and world.job_state == "RUNNING"

    world.run(until=second_grant)
    world.limit_t = None
    world.run()
    assert finished(world)
    assert len(world.requeues) == 1


def test_cancel_at_any_second_never_comes_back() -> None:
    for second in range(1, 90, 3):
        world = World().strike("hang", rank=2, step=12, times=9).start()
        world.at(second, world.cancel_job)
        for _ in range(second + 120):
            world.second()
        assert world.job_state == "CANCELLED", second
        assert not world.leader_alive, second


def test_finished_run_requeued_by_a_stray_ends_at_once() -> None:
    world = World().run()
    launches = len(world.launches)
    world.leader_alive, world.restarts = False, 1
    world.start()
    assert world.quit == 0
    assert len(world.launches) == launches


def test_finished_training_that_does_not_exit_is_ended_and_finished() -> None:
    world = World(steps=30).strike("stuck-end", rank=1, step=30).run()
    assert finished(world)
    assert world.verdicts() == [(VerdictKind.FINISHED, "finished")]
    assert len(world.launches) == 1


def test_observe_tells_and_does_nothing() -> None:
    rules = replace(RULES, hang=replace(RULES.hang, mode=HangMode.OBSERVE))
    world = World(rules=rules).strike("hang", rank=1, step=10).start()
    for _ in range(120):
        world.second()
    assert world.verdicts() == []
    assert any("observe" in text for text in world.news)


def test_hard_cap_never_refills() -> None:
    rules = replace(RULES, policy=Budgets(hard_cap=3, same_node=99))
    world = World(rules=rules, steps=1000)
    for step in range(15, 900, 10):
        world.strike("kill", rank=step % 4, step=step)
    world.run()
    assert world.quit == 1
    assert world.verdicts()[-1] == (STOP, "hard cap")


def test_node_that_never_says_hello_is_avoided() -> None:
    world = World().start()
    world.nodes["n2"].gone = True
    world.run()
    assert finished(world)
    assert world.excluded == {"n2"}


def test_replaying_any_log_gives_the_same_state_and_orders() -> None:
    world = World().strike("hang", rank=3, step=25).strike("kill", rank=0, step=45).run()
    state = State()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
    assert state == world.state


def pause_disks(world: World, nodes: tuple[str, ...], process: Process) -> None:
    for name in nodes:
        for rank in world.nodes[name].ranks:
            rank.process = process


def test_storage_pause_of_all_is_told_and_waited_for() -> None:
    world = World(steps=100).start()
    world.at(30, lambda: pause_disks(world, world.names, Process.DISK))
    world.at(330, lambda: pause_disks(world, world.names, Process.RUNNING))
    world.run()
    assert finished(world)
    assert world.verdicts() == []
    assert any("waiting up to 3600 s (hang.storage)" in text for text in world.news)


def test_storage_pause_of_one_node_is_a_hang() -> None:
    world = World(steps=100).start()
    world.at(30, lambda: pause_disks(world, ("n2",), Process.DISK)).run()
    assert finished(world)
    assert world.roots()[0].how in {How.QUIET, How.STORAGE}
    assert world.verdicts() == [(RESTART, "otherwise")]


def test_storage_pause_ends_at_its_own_limit() -> None:
    rules = replace(RULES, hang=replace(RULES.hang, storage_s=200.0))
    world = World(rules=rules).start()
    world.at(30, lambda: pause_disks(world, world.names, Process.DISK)).run()
    assert finished(world)
    assert world.roots()[0].how is How.STORAGE


def test_a_vanished_victim_is_not_the_root() -> None:
    """torchrun ends the others of a node at once; until it tells, a victim's end looks like the culprit's."""
    victim = Fault(how=How.SIGNAL, node="n1", rank=0, step=9)
    culprit = Fault(how=How.SIGNAL, node="n1", rank=1, step=9, signal="SIGKILL")
    assert root((victim, culprit)) is culprit


def test_step_that_ends_before_any_hello_is_said_with_its_words() -> None:
    world = World(nodes=1).start()
    world.nodes["n1"].gone = True
    world.second()
    world.tell(ev.StepEnded(text="srun: error: Unable to create step"))
    root_fault = world.roots()[0]
    assert root_fault.how is How.HELLO
    assert "Unable to create step" in root_fault.error


def test_an_admin_who_shortens_the_limit_is_followed() -> None:
    world = World(steps=2000).start()
    world.limit_t = world.t + 5000
    world.at(100, lambda: setattr(world, "limit_t", world.t + 400)).run(until=lambda: bool(world.requeues), limit_s=600)
    assert world.limit_t is not None
    assert world.t < world.limit_t


def test_a_supervisor_that_alone_is_told_to_end_costs_one_attempt() -> None:
    """A person's kill: the job is not over, and the leader was not told."""
    world = World().start()
    world.at(25, lambda: world._happen(world.nodes["n2"], nodestate.Signal(t=world.t, warning=False)))  # noqa: SLF001 - the world is ours
    world.run()
    assert finished(world)
    assert [fault.how for fault in world.roots()] == [How.NODE]
    assert world.restarts == 0


def test_a_leader_that_outlived_its_job_leads_no_more() -> None:
    """Its batch script was killed: nothing is requeued, nothing is started, and the run is not over."""
    world = World().start()
    world.run(until=lambda: world.state.stage is Stage.RUN)
    world.tell(ev.SlurmSaid(state="FAILED", restarts=0))
    assert world.quit == 1
    assert world.over is None
    assert world.requeues == []


def test_the_culprit_is_named_although_only_those_who_wait_were_told_yet() -> None:
    """Two nodes look a second apart: evidence may be there before the culprit's own node has told that it stands still."""
    world = World().start()
    world.run(until=lambda: world.state.stage is Stage.RUN)
    epoch = world.state.epoch
    waiting = Fault(how=How.QUIET, node="n2", rank=2, step=9, phase="step", quiet_s=20.0, limit_s=20.0)
    world.tell(ev.Stalled(node="n2", epoch=epoch, faults=(waiting,)))
    culprit = Fault(how=How.QUIET, node="n1", rank=1, step=9, phase="step", where="train.py:1 in load")
    world.tell(ev.Collected(node="n1", epoch=epoch, incident=1, faults=(culprit,)))
    world.tell(ev.Collected(node="n2", epoch=epoch, incident=1, faults=(replace(waiting, how=How.WAITING, quiet_s=0.0, limit_s=0.0),)))
    world.run(until=lambda: bool(world.roots()))
    assert (world.roots()[0].rank, world.roots()[0].how, world.roots()[0].quiet_s) == (1, How.QUIET, 20.0)
