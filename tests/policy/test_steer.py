"""What people ask of a run, and what it answers: stories in the fake world, and the corners by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, Request, VerdictKind
from ftsup.policy import machine
from ftsup.policy.rules import Budgets, Rules
from ftsup.policy.state import Checkpoints, Stage, State, Wish
from tests.world import RULES, World

ASKS = "asks"


def asked(script: str = ASKS, **settings: object) -> World:
    return World(script=script, **settings).start()  # type: ignore[arg-type]


def replays(world: World) -> None:
    state = State()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
    assert state == world.state


def answers(world: World) -> list[str]:
    """What people were told at once."""
    return [
        order.text
        for line in world.log
        if isinstance(line.event, ev.Asked)
        for order in line.orders
        if isinstance(order, ev.Notify) and order.kind in {"asked", "refused"}
    ]


def ended(world: World) -> tuple[VerdictKind, str]:
    replays(world)
    assert world.over is not None
    return world.over.kind, world.over.reason


def attempts(world: World) -> list[str]:
    return [str(epoch) for epoch, _ in world.launches]


def twice_killed() -> World:
    """Without progress between: the second restart would wait for minutes."""
    world = asked("deaf").strike("kill", rank=1, step=15)
    world.rules = replace(world.rules, policy=Budgets(back_off_s=300.0, jitter=0.0))
    world.run(until=lambda: world.state.incident == 1)
    return world.strike("kill", rank=1, step=12)


# Restart ------------------------------------------------------------------------------------------------------------------


def test_a_restart_saves_first_and_is_no_incident() -> None:
    world = asked(save_every=1000).ask("restart", seconds=20).run()
    assert ended(world) == (VerdictKind.FINISHED, "training finished")
    assert (world.state.incident, world.verdicts(), world.requeues) == (0, [], [])
    assert attempts(world) == ["1.1", "1.2"]
    ((_, saved),) = world.saves
    assert world.picks == [0, saved]
    assert world.state.history.attempts == 2
    assert (world.state.history.past, world.state.history.requeues) == ((), 0)
    assert answers(world) == [
        "ada asked for a restart: the ranks save first, where the script can, then the next attempt begins from the newest checkpoint"
    ]
    assert f"a restart for ada, saved at step {saved}: this attempt is ended" in world.news


@pytest.mark.parametrize("script", ["goes on", "exits"])
def test_a_handler_saves_for_a_restart_and_may_leave(script: str) -> None:
    world = asked(script, save_every=1000).ask("restart", seconds=20).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    ((_, saved),) = world.saves
    assert (world.picks, world.verdicts()) == ([0, saved], [])


def test_a_deaf_script_is_restarted_from_its_own_newest_checkpoint() -> None:
    world = asked("deaf").ask("restart", seconds=20).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (world.picks, world.saves, world.verdicts()) == ([0, 10], {}, [])
    assert any("a restart for ada, nothing could be saved on request" in text for text in world.news)


def test_a_restart_asked_twice_is_one_and_another_later_is_another() -> None:
    world = asked().ask("restart", seconds=20).ask("restart", seconds=20, who="bob").ask("restart", seconds=45).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "1.2", "1.3"]
    assert answers(world)[1] == "bob asked for a restart: ada asked for it before, and it is under way"


@pytest.mark.parametrize("seconds", range(1, 8))
def test_a_restart_while_an_attempt_begins(seconds: int) -> None:
    """Nothing is begun twice; what had begun is ended, and begins again."""
    world = asked().ask("restart", seconds=seconds).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.state.incident == 0
    assert attempts(world) in (["1.1"], ["1.1", "1.2"], ["1.2"])


@pytest.mark.parametrize("seconds", range(20, 36))
def test_a_leader_that_dies_on_the_way_does_it_once(seconds: int) -> None:
    world = asked().ask("restart", seconds=20)
    world.at(seconds, world.kill_leader).at(seconds + 6, world.start_leader).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "1.2"]
    assert (world.state.incident, len(answers(world))) == (0, 1)


def test_a_leader_that_logs_the_request_and_dies_before_it_acts() -> None:
    world = asked().ask("restart", seconds=20)
    world.die_after = lambda line: isinstance(line.event, ev.Asked)
    assert ended(world.run())[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "1.2"]
    assert len(answers(world)) == 1


def test_a_restart_during_a_recovery_begins_at_once_after_it() -> None:
    world = twice_killed()
    world.run(until=lambda: world.state.stage is Stage.BACK_OFF)
    began_t = world.t
    world.ask("restart").run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.t - began_t < 200
    assert answers(world)[0].startswith("ada asked for a restart: at once, then the next attempt")


def test_a_restart_while_evidence_is_collected_is_the_verdicts_own_without_its_wait() -> None:
    world = twice_killed()
    world.run(until=lambda: world.state.incident == 2)
    world.ask("restart").run(limit_s=200)
    assert ended(world)[0] is VerdictKind.FINISHED
    reason = next(o.verdict.reason for line in world.log for o in line.orders if isinstance(o, ev.Incident) and o.verdict and o.number == 2)
    assert reason.endswith("restart here, at once, since ada asked for one")


def test_a_restart_does_not_undo_a_verdict_to_stop() -> None:
    world = asked("deaf").strike("error", rank=1, step=12, times=5)
    world.run(until=lambda: world.state.incident == 2)
    world.ask("restart").run()
    assert ended(world)[0] is VerdictKind.STOP


def test_the_hard_cap_counts_restarts_and_refuses_one_more() -> None:
    world = World(script=ASKS, rules=replace(RULES, policy=Budgets(hard_cap=2))).start()
    world.ask("restart", seconds=15).ask("restart", seconds=40).ask("requeue", seconds=42).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "1.2"]
    for text in answers(world)[1:]:
        assert text.endswith("refused: 2 attempts in this run (policy.hard_cap); ftsup submit --continue counts anew")


def test_a_restart_of_ranks_that_are_not_watched_asks_nobody() -> None:
    world = World(script=ASKS, rules=replace(RULES, watched=False)).start().ask("restart", seconds=20).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (attempts(world), world.saves) == (["1.1", "1.2"], {})


def test_what_cannot_be_killed_at_a_restart_is_an_incident_of_its_own() -> None:
    desk = Desk().running().ask(Request.RESTART)
    desk.save_fails()
    assert desk.state.stage is Stage.STOP
    desk.tell(ev.Stalled(node="n1", epoch=ONE, faults=(Fault(how=How.QUIET, node="n1", rank=0),)))  # in flight: it means nothing now
    desk.tell(ev.AttemptOver(node="n1", epoch=ONE, code=-15))
    desk.tell(ev.AttemptOver(node="n2", epoch=ONE, code=-15, left=("python (7)",)))
    assert desk.state.incident == 1
    assert desk.incidents()[-1].verdict.kind is VerdictKind.REQUEUE
    assert desk.incidents()[-1].verdict.avoid == ("n2",)


def test_a_supervisor_that_dies_while_the_attempt_is_ended_is_nobodys_fault() -> None:
    desk = Desk().running().ask(Request.RESTART)
    desk.save_fails()
    desk.tell(ev.AttemptOver(node="n1", epoch=ONE, code=-15), ev.NodeUp(node="n2", instance="n2:2"))
    assert (desk.state.stage, desk.state.incident) == (Stage.BACK_OFF, 0)
    desk.tell(ev.Tick())
    assert (desk.state.stage, desk.state.epoch) == (Stage.PICK, Epoch(1, 2))


# From an earlier step -----------------------------------------------------------------------------------------------------


def test_from_an_earlier_step_and_a_fault_afterwards_goes_on_with_the_new_branch() -> None:
    """Steps 20 and 30 of the abandoned branch stay where they are, and nothing resumes from them until they are written anew."""
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.strike("kill", rank=0, step=18).strike("kill", rank=0, step=24).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 10, 20]
    assert world.verdicts() == [(VerdictKind.RESTART, "otherwise")] * 2
    assert (
        "ada asked for a restart from step 15: from step10.pt, of step 10; left behind until they are written anew: step20.pt, step30.pt"
        in (world.news)
    )
    assert world.saves == {}


def test_progress_counts_from_where_a_person_went_back_to() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    assert world.state.best_step == 10


def test_what_is_left_behind_stays_so_over_requeues_and_continuations() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.requeue_job()
    world.run(until=lambda: len(world.launches) == 3)
    world.ask("stop").run()
    world.continued().run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 10, 10]


def test_from_a_step_that_was_left_behind_it_may_be_chosen_again() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.ask("restart", seconds=3, from_step=25).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 20]


def test_without_such_a_checkpoint_it_is_refused_and_goes_on_from_the_newest() -> None:
    world = asked("deaf").ask("restart", seconds=30, from_step=5).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 20]
    refused = "ada asked for a restart from step 5: refused: no checkpoint of step 5 at most; it goes on from step20.pt"
    assert refused in world.news


def test_before_any_checkpoint_it_begins_from_the_beginning() -> None:
    world = asked("deaf").ask("restart", seconds=8, from_step=5).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert any(text.endswith("no checkpoint of step 5 at most; it begins from the beginning") for text in world.news)


def test_when_only_what_was_left_behind_is_there_a_person_decides() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.stored.remove(10)
    world.strike("kill", rank=0, step=12).run()
    kind, reason = ended(world)
    assert kind is VerdictKind.STOP
    assert reason.startswith("there is no checkpoint but those that a restart from an earlier step left behind (step20.pt, step30.pt)")


@pytest.mark.parametrize("seconds", range(1, 8))
def test_from_an_earlier_step_while_an_attempt_begins(seconds: int) -> None:
    world = World(script="deaf").start()
    world.stored, world.stamps = [10, 20], {10: 1, 20: 2}
    world.ask("restart", seconds=seconds, from_step=10).ask("restart", seconds=seconds, from_step=10, who="bob").run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks[-1] == 10
    assert world.state.incident == 0


def test_what_is_being_chosen_is_chosen_again_when_another_step_is_wanted() -> None:
    desk = Desk().until_pick().ask(Request.RESTART).ask(Request.RESTART, from_step=7).tell(ev.Tick())
    assert "an attempt is about to begin anyway" in desk.told()[0]
    picks = [order for order in desk.orders if isinstance(order, ev.PickCheckpoint)]
    assert [(str(order.epoch), order.from_step) for order in picks] == [("1.1", None), ("1.2", 7)]
    assert "ada asked for it before" in desk.ask(Request.RESTART, from_step=7).told()[-1]


@pytest.mark.parametrize("seconds", range(19, 36))
def test_a_requeue_by_somebody_else_does_not_lose_the_step(seconds: int) -> None:
    world = asked("deaf").ask("restart", seconds=35, from_step=15)
    world.at(seconds, world.requeue_job).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks[-1] == 10


def test_a_checkpoint_that_was_left_behind_and_is_sealed_removed_or_quarantined_is_none_any_more() -> None:
    left = tuple(ev.Left(name=name, stamp="1") for name in ("a", "b", "c", "d"))
    desk = Desk().running()
    desk.state = replace(desk.state, checkpoints=Checkpoints(left=left))
    desk.tell(ev.Sealed(epoch=ONE, name="a"), ev.Quarantined(name="b", why="x", path="y"), ev.Pruned(names=("c",)))
    assert [one.name for one in desk.state.checkpoints.left] == ["d"]


def test_many_that_are_left_behind_are_told_in_few_words() -> None:
    desk = Desk()
    desk.state = replace(desk.state, checkpoints=Checkpoints(wish=Wish(request=Request.RESTART, who="ada", from_step=7)))
    left = tuple(ev.Left(name=f"step{n}", stamp="1") for n in range(8, 13))
    desk.until_pick().tell(ev.CheckpointPicked(epoch=ONE, path="/c/step7", name="step7", step=7, left=left))
    assert desk.told()[-1].endswith("from step7, of step 7; left behind until they are written anew: step8, step9, step10 and 2 more")
    desk = Desk()
    desk.state = replace(desk.state, checkpoints=Checkpoints(wish=Wish(request=Request.RESTART, who="ada", from_step=7)))
    desk.until_pick().tell(ev.CheckpointPicked(epoch=ONE, path="/c/step7", name="step7", step=7, left=()))
    assert desk.told()[-1] == "ada asked for a restart from step 7: from step7, of step 7"


# Requeue ------------------------------------------------------------------------------------------------------------------


def test_a_requeue_saves_and_keeps_a_node_out() -> None:
    world = asked(save_every=1000).ask("requeue", seconds=20, avoid=("n2",)).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    ((_, saved),) = world.saves
    assert world.picks == [0, saved]
    assert (len(world.requeues), world.excluded, world.names) == (1, {"n2"}, ("n1", "n3"))
    assert (world.state.history.avoided, world.state.history.requeues, world.state.incident) == (("n2",), 0, 0)
    decide = next(order for line in world.log for order in line.orders if isinstance(order, ev.Decide))
    assert (decide.verdict.reason, decide.verdict.avoid, decide.code) == (f"requeued for ada without n2, saved at step {saved}", ("n2",), 0)


@pytest.mark.parametrize("seconds", [1, 2, 4, 5, 6, 7])
def test_a_requeue_when_nothing_trains_is_done_at_once(seconds: int) -> None:
    world = asked().ask("requeue", seconds=seconds).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert len(world.requeues) == 1


def test_a_requeue_during_a_recovery_takes_the_place_of_the_restart_and_keeps_both_nodes_out() -> None:
    desk = Desk().running(nodes=("n1", "n2", "n3"))
    desk.tell(ev.RankEnded(node="n3", epoch=ONE, fault=Fault(how=How.SIGNAL, node="n3", rank=4, signal="SIGKILL")))
    desk.ask(Request.REQUEUE, avoid=("n1",))
    assert "once nothing of this attempt is left" in desk.told()[-1]
    for node in desk.state.nodes:
        desk.tell(ev.Collected(node=node, epoch=ONE, incident=1))
    for node in desk.state.nodes:
        desk.tell(ev.AttemptOver(node=node, epoch=ONE, code=-15, left=("python",) if node == "n3" else ()))
    verdict = desk.incidents()[-1].verdict
    assert (verdict.kind, verdict.avoid, verdict.rule) == (VerdictKind.REQUEUE, ("n1", "n3"), "requeue asked")
    assert desk.state.history.avoided == ("n1", "n3")


def test_a_time_limit_does_what_a_requeue_wanted() -> None:
    desk = Desk().running().ask(Request.REQUEUE, avoid=("n2",))
    desk.tell(ev.SlurmSaid(state="RUNNING", left_s=1.0), after=1.0)
    desk.tell(ev.Tick(), after=10.0).tell(ev.Tick(), after=10.0)
    verdict = desk.state.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rule, verdict.avoid) == (VerdictKind.REQUEUE, "time limit", ("n2",))
    assert verdict.reason.startswith("requeued for ada without n2, the time limit is near")
    assert (desk.state.wish, desk.state.history.avoided) == (None, ("n2",))


@pytest.mark.parametrize(
    "rules, avoid, said",
    [
        (replace(RULES, can_requeue=False), (), "slurm.requeue is off"),
        (RULES, ("n1", "n9"), "n9: not among the nodes of this job: n1, n2"),
        (replace(RULES, policy=Budgets(avoid_max=1)), ("n1", "n2"), "2 nodes would be kept out: n1, n2 (policy.avoid_max is 1)"),
    ],
)
def test_a_requeue_that_is_refused_leaves_training_alone(rules: Rules, avoid: tuple[str, ...], said: str) -> None:
    world = World(script=ASKS, rules=rules).start().ask("requeue", seconds=20, avoid=avoid).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (attempts(world), world.requeues, world.saves) == (["1.1"], [], {})
    assert answers(world)[0].endswith(f": refused: {said}")


def test_a_requeue_by_somebody_else_fulfils_the_wish_unless_the_node_is_back() -> None:
    world = asked().ask("requeue", seconds=20)
    world.at(21, world.requeue_job).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (world.requeues, world.restarts) == ([], 1)
    world = asked().ask("requeue", seconds=20, avoid=("n2",))
    world.at(21, world.requeue_job).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (len(world.requeues), world.restarts, world.excluded) == (1, 2, {"n2"})


def test_what_is_being_requeued_is_not_requeued_again() -> None:
    desk = Desk().running().ask(Request.REQUEUE)
    desk.save_fails()
    assert desk.state.stage is Stage.CLOSE
    for request, taken in ((Request.REQUEUE, False), (Request.RESTART, False), (Request.PAUSE, True)):
        desk.ask(request)
        end = "the leader of the next grant does it" if taken else "refused: the job is being requeued already"
        assert end in desk.told()[-1]
    desk.tell(ev.Decided(mirrored=True)).ask(Request.RESTART, from_step=7)
    assert "refused: ada asked for a pause before, and that comes first" in desk.told()[-1]
    assert desk.kinds(ev.Requeue) == 1


# Pause, stop, cancel ------------------------------------------------------------------------------------------------------


def test_a_pause_saves_and_releases_the_job_and_a_continuation_goes_on() -> None:
    world = asked(save_every=1000).ask("pause", seconds=20).run()
    ((_, saved),) = world.saves
    assert ended(world) == (VerdictKind.PAUSED, f"paused by ada, saved at step {saved}")
    assert (world.quit, world.requeues) == (0, [])
    decide = next(order for line in world.log for order in line.orders if isinstance(order, ev.Decide))
    assert (decide.code, decide.done) == (0, True)
    spent = world.state.history.attempts
    world.continued().run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "2.1"]
    assert world.picks == [0, saved]
    assert (spent, world.state.history.attempts) == (1, 1)


def test_a_leader_that_begins_again_for_a_paused_run_ends_at_once_with_success() -> None:
    world = asked().ask("pause", seconds=20).run()
    world.quit = None
    world.start_leader()
    assert (world.quit, world.over and world.over.kind) == (0, VerdictKind.PAUSED)


@pytest.mark.parametrize("seconds", range(1, 8))
def test_a_pause_when_nothing_trains(seconds: int) -> None:
    world = asked().ask("pause", seconds=seconds).run()
    assert ended(world)[0] is VerdictKind.PAUSED


def test_a_pause_in_an_incident_ends_it_there() -> None:
    world = asked("deaf").strike("kill", rank=1, step=12)
    world.run(until=lambda: world.state.stage is Stage.COLLECT)
    world.ask("pause").run()
    kind, reason = ended(world)
    assert kind is VerdictKind.PAUSED
    assert reason.startswith("paused by ada, the newest checkpoint stands; last: rank 1 on n1 was ended by SIGKILL")


def test_a_job_that_is_paused_in_the_queue_is_cancelled_there_and_paused_here() -> None:
    world = asked().ask("pause", seconds=2)
    for seconds in (3, 4):
        world.at(seconds, world.cancel_job)
    assert ended(world.run())[0] is VerdictKind.PAUSED
    desk = Desk().running()
    desk.tell(ev.Signalled(signal="SIGTERM")).ask(Request.PAUSE).tell(ev.SlurmSaid(state="CANCELLED", completing=True))
    assert desk.state.verdict is not None
    assert desk.state.verdict.reason == "paused by ada, its job was cancelled in Slurm"


@pytest.mark.parametrize("request_, kind", [("stop", VerdictKind.STOP), ("pause", VerdictKind.PAUSED)])
def test_what_the_end_of_a_grant_cut_short_the_next_leader_does(request_: str, kind: VerdictKind) -> None:
    world = asked().ask(request_, seconds=20)
    world.at(21, world.requeue_job).run()
    assert ended(world)[0] is kind
    assert world.restarts == 1


def test_the_time_limit_ends_a_pause_that_was_not_through() -> None:
    desk = Desk().running().ask(Request.PAUSE)
    desk.tell(ev.SlurmSaid(state="RUNNING", left_s=1.0), after=1.0).tell(ev.Tick(), after=10.0).tell(ev.Tick(), after=10.0)
    assert desk.state.verdict is not None
    assert desk.state.verdict.reason == "paused by ada, the time limit came before the save was through"


def test_a_stronger_wish_takes_the_place_of_a_weaker_one_and_not_the_other_way_round() -> None:
    world = asked().ask("restart", seconds=20).ask("pause", seconds=20, who="bob").ask("restart", seconds=20, who="eve").run()
    assert ended(world)[0] is VerdictKind.PAUSED
    assert attempts(world) == ["1.1"]
    assert answers(world)[1].endswith(", instead of a restart for ada")
    assert answers(world)[2] == "eve asked for a restart: refused: bob asked for a pause before, and that comes first"


def test_a_stop_while_an_attempt_is_ended_for_a_restart_ends_the_run_there() -> None:
    world = asked("deaf").ask("restart", seconds=30)
    world.run(until=lambda: world.state.stage is Stage.STOP)
    world.ask("stop").run()
    assert ended(world)[0] is VerdictKind.STOP
    assert attempts(world) == ["1.1"]


def test_cancel_is_stronger_than_everything_and_said_when_it_is_late() -> None:
    world = asked().ask("pause", seconds=20).ask("cancel", seconds=21).run()
    assert ended(world) == (VerdictKind.CANCELLED, "cancelled by ada")
    desk = Desk()
    desk.state = replace(desk.state, stage=Stage.OVER, verdict=None)
    assert "the run is over" in desk.ask(Request.CANCEL).told()[-1]


def test_what_comes_after_the_end_is_answered_with_the_end() -> None:
    desk = Desk().running().ask(Request.STOP)
    desk.save_fails()
    for request in Request:
        if request is not Request.CANCEL:
            desk.ask(request)
            assert "refused: the run has come to its end: stopped by ada" in desk.told()[-1]


def test_told_to_end_a_wish_waits_for_the_next_grant() -> None:
    desk = Desk().running().tell(ev.Signalled(signal="SIGTERM")).ask(Request.RESTART, from_step=7)
    assert "the leader of the next grant does it" in desk.told()[-1]
    desk.tell(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=1, nodes=("n1", "n2")))
    assert desk.state.wish is not None


def test_ranks_that_wait_for_storage_are_not_asked_to_save() -> None:
    desk = Desk().running()
    stored = Fault(how=How.STORAGE, node="n1", rank=0, phase="step", quiet_s=30.0, limit_s=20.0)
    desk.tell(ev.Stalled(node="n1", epoch=ONE, faults=(stored,))).ask(Request.PAUSE)
    assert desk.state.verdict is not None
    assert desk.state.verdict.reason == "paused by ada, its ranks wait for storage: the newest checkpoint stands"


@pytest.mark.parametrize("request_, kind", [(Request.PAUSE, VerdictKind.PAUSED), (Request.STOP, VerdictKind.CANCELLED)])
def test_scancel_of_a_job_that_goes_back_to_the_queue_pauses_it_where_that_was_wanted(request_: Request, kind: VerdictKind) -> None:
    desk = Desk().running().ask(Request.REQUEUE)
    desk.save_fails().tell(ev.Decided(mirrored=True)).ask(request_).tell(ev.SlurmSaid(state="CANCELLED", completing=True))
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is kind
    desk = Desk().running().ask(request_).tell(ev.SlurmSaid(state="CANCELLED", completing=True))
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is kind


def test_a_save_that_is_given_up_takes_back_what_was_proposed() -> None:
    desk = Desk().running().ask(Request.PAUSE)
    save = desk.state.save
    assert save is not None
    counted = [ev.Counted(node=node, epoch=ONE, save=save.number, least=9, most=9, ears=ev.Ears.ASKS, step_s=1.0) for node in ("n1", "n2")]
    desk.tell(*counted, after=1.0).ask(Request.RESTART, from_step=3)
    assert "comes first" in desk.told()[-1]
    desk.tell(ev.Tick(), after=601.0)
    assert [order.ask for order in desk.orders if isinstance(order, ev.AskRanks)][-2:] == [ev.Ask.ABORT] * 2
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is VerdictKind.PAUSED


# Continued ----------------------------------------------------------------------------------------------------------------


def test_a_continuation_forgets_what_was_spent_and_keeps_what_is_known() -> None:
    world = asked("deaf").strike("error", rank=1, step=12, times=2).run()
    assert ended(world)[0] is VerdictKind.STOP
    incidents, best = world.state.incident, world.state.best_step
    world.continued().run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (world.state.incident, world.state.history.past, world.state.epoch) == (incidents, (), Epoch(2, 1))
    assert best == 11
    assert world.picks[-1] == 10


def test_a_suspect_is_tried_again_and_another_directory_has_none_of_the_old_names() -> None:
    state = State(checkpoints=Checkpoints(sealed=("a",), suspects=("b",), left=(ev.Left(name="c", stamp="1"),), loaded="d"))
    known = machine.step(state, ev.Continued(n=1, who="ada"), RULES).state.checkpoints
    assert known == Checkpoints(sealed=("a",), left=(ev.Left(name="c", stamp="1"),))
    for key in ("workdir", "checkpoint.dir", "checkpoint.pattern"):
        assert machine.step(state, ev.Continued(n=1, who="ada", changed=(key,)), RULES).state.checkpoints == Checkpoints()


def test_a_leader_that_takes_over_after_a_continuation_does_not_begin_it_again() -> None:
    world = asked().ask("pause", seconds=20).run()
    world.continued()
    world.at(20, world.kill_leader).at(25, world.start_leader).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "2.1"]


# By hand ------------------------------------------------------------------------------------------------------------------

ONE = Epoch(1, 1)


class Desk:
    """The leader's machine, and events by hand."""

    def __init__(self) -> None:
        self.state, self.t, self.orders = State(), 0.0, []

    def tell(self, *events: ev.Event, after: float = 0.0) -> Desk:
        self.t += after
        for event in events:
            out = machine.step(self.state, replace(event, t=self.t), RULES)  # type: ignore[arg-type]
            self.state = out.state
            self.orders += out.orders
        return self

    def ask(self, request: Request, *, from_step: int | None = None, avoid: tuple[str, ...] = ()) -> Desk:
        return self.tell(ev.Asked(request=request, who="ada", from_step=from_step, avoid=avoid))

    def until_pick(self, nodes: tuple[str, ...] = ("n1", "n2")) -> Desk:
        self.tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=nodes))
        return self.tell(*(ev.NodeUp(node=node, instance=f"{node}:1") for node in nodes))

    def running(self, nodes: tuple[str, ...] = ("n1", "n2")) -> Desk:
        self.until_pick(nodes).tell(ev.CheckpointPicked(epoch=ONE))
        self.tell(*(ev.Prepared(node=node, epoch=ONE, port=1) for node in nodes))
        self.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in nodes))
        return self.tell(ev.Progressed(node="n1", epoch=ONE, phase="step", step=1, beats=1, by=ev.WatchedBy.STEPS))

    def save_fails(self) -> Desk:
        """No node answers the question how far its ranks are."""
        assert self.state.save is not None
        return self.tell(ev.Tick(), after=31.0)

    def told(self) -> list[str]:
        return [order.text for order in self.orders if isinstance(order, ev.Notify)]

    def incidents(self) -> list[ev.Incident]:
        return [order for order in self.orders if isinstance(order, ev.Incident)]

    def kinds(self, kind: type) -> int:
        return sum(isinstance(order, kind) for order in self.orders)
