"""What people ask of a run, and what it answers: stories in the fake world, and the corners by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, Request, VerdictKind
from ftsup.policy.rules import Budgets, Rules
from ftsup.policy.state import Stage
from tests.policy.steering import ASKS, ONE, Desk, answers, asked, attempts, ended
from tests.world import RULES, World


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
