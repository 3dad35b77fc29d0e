"""What counts as life: beats for ranks that have them, lines of output for those that have nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How, WatchedBy
from ftsup.policy import node as noding
from ftsup.policy import nodestate
from ftsup.policy import watch as watching
from ftsup.policy.judge import describe
from ftsup.policy.rules import Hang, Rules
from ftsup.policy.watch import Process, Sight, Watch
from ftsup.worker.beatfile import Beat, Flag, Phase
from tests.world import RULES as WORLD_RULES
from tests.world import World

RULES = Rules(hang=Hang(output_s=1800.0, step_s=120.0, checkpoint_s=900.0))
RUNS = Beat(pid=7, started=1)
TRAINS = RUNS._replace(activity=9, beats=9, step=9, phase=Phase.STEP)
Look = Callable[[float], Sight]


def found(look: Look, *, until_s: float, rules: Rules = RULES) -> list[tuple[float, Fault]]:
    """When faults were found, looking once a second."""
    watch, faults = Watch(), []
    for second in range(int(until_s) + 1):
        watch, seen = watching.look(watch, float(second), {0: look(float(second))}, rules, node="n1")
        faults += [(float(second), fault) for fault in seen.stalled]
    return faults


def test_a_script_without_torch_lives_by_what_it_prints() -> None:
    assert found(lambda t: Sight(beat=RUNS, output=int(t // 1000)), until_s=6000) == []
    ((at_t, fault),) = found(lambda t: Sight(beat=RUNS, output=int(min(t, 200))), until_s=2100)
    assert at_t == 2000
    assert (fault.how, fault.rank, fault.step, fault.limit_s) == (How.QUIET, 0, None, 1800)
    assert fault.error == "no line of output for 30 min"
    assert describe(fault) == "rank 0 on n1 stood still for 1800 s (limit 1800 s): no line of output for 30 min"


def test_a_script_that_never_prints_is_a_hang_in_the_end() -> None:
    ((at_t, fault),) = found(lambda t: Sight(beat=RUNS, output=0), until_s=1900)
    assert (at_t, fault.error) == (1800, "no line of output for 30 min")


def test_a_script_that_has_not_begun_has_the_limit_of_the_start() -> None:
    ((at_t, fault),) = found(lambda t: Sight(beat=Beat(), output=int(t)), until_s=700)
    assert (at_t, fault.error, fault.phase) == (600, "", "start")


@pytest.mark.parametrize(
    "beat", [TRAINS, RUNS._replace(phase=Phase.IMPORT), RUNS._replace(activity=1)], ids=["trains", "imports torch", "says beat()"]
)
def test_output_is_no_life_for_who_has_another_sign_of_it(beat: Beat) -> None:
    """A thread goes on printing in a rank that hangs."""
    limit_s = RULES.hang.limit_s(beat.phase)
    ((at_t, fault),) = found(lambda t: Sight(beat=beat, output=int(t)), until_s=limit_s + 60)
    assert (at_t, fault.error) == (limit_s, "")


INIT = RUNS._replace(phase=Phase.INIT, activity=2, step=0)


@pytest.mark.parametrize("beat", [RUNS, INIT], ids=["without torch", "no optimizer"])
def test_where_one_rank_prints_the_others_of_its_node_are_as_well(beat: Beat) -> None:
    def seconds_to_fault(last_line_s: float) -> list[float]:
        watch, found = Watch(), []
        for second in range(5000):
            sights = {0: Sight(beat=beat, output=int(min(second, last_line_s) // 1000)), 1: Sight(beat=beat, output=0)}
            watch, seen = watching.look(watch, float(second), sights, RULES)
            found += [float(second) for _ in seen.stalled]
        return found

    assert seconds_to_fault(9000) == []
    assert seconds_to_fault(1000) == [2800, 2800]


def test_a_rank_that_printed_and_then_falls_silent_is_found_although_others_print() -> None:
    watch, faults = Watch(), []
    for second in range(3000):
        sights = {0: Sight(beat=RUNS, output=second), 1: Sight(beat=RUNS, output=min(second, 500))}
        watch, seen = watching.look(watch, float(second), sights, RULES)
        faults += [(second, fault.rank) for fault in seen.stalled]
    assert faults == [(2300, 1)]


def test_before_the_first_optimizer_it_is_said_what_would_have_helped() -> None:
    ((_, fault),) = found(lambda t: Sight(beat=INIT, output=7), until_s=1900)
    assert describe(fault) == (
        "rank 0 on n1 stood still for 1800 s (limit 1800 s) at step 0; "
        "if that was no hang: hang.init is its limit, and beat() or a line of output a sign of life"
    )


def test_once_an_optimizer_is_there_a_line_is_no_life() -> None:
    ((at_t, _),) = found(lambda t: Sight(beat=INIT._replace(phase=Phase.FIRST_STEP), output=int(t)), until_s=1900)
    assert at_t == 1800


def test_who_says_beat_without_a_step_has_the_time_of_a_step_once_it_is_longer() -> None:
    says = RUNS._replace(activity=5)
    ((at_t, _),) = found(lambda t: Sight(beat=says), until_s=2000, rules=Rules())  # the first step's: nothing was measured
    assert at_t == 1800
    ((at_t, _),) = found(lambda t: Sight(beat=says), until_s=2000, rules=Rules(hang=Hang(step_s=900.0)))
    assert at_t == 900


def test_launch_command_is_watched_from_its_first_line_on() -> None:
    rules = replace(RULES, watched=False)
    assert found(lambda t: Sight(beat=RUNS, output=0), until_s=4000, rules=rules) == []
    ((at_t, fault),) = found(lambda t: Sight(beat=RUNS, output=1 if t >= 100 else 0), until_s=2000, rules=rules)
    assert at_t == 1900
    assert (fault.rank, fault.phase) == (None, "")
    assert describe(fault) == "n1 stood still for 1800 s (limit 1800 s): no line of output for 30 min"


def test_a_stopped_command_is_found_as_a_stopped_rank_is() -> None:
    rules = replace(RULES, watched=False)
    ((at_t, fault),) = found(lambda t: Sight(beat=RUNS, process=Process.STOPPED, output=0), until_s=30, rules=rules)
    assert (at_t, fault.how, fault.rank) == (10, How.STOPPED, None)


def test_a_rank_that_is_stopped_for_a_moment_again_and_again_is_well() -> None:
    assert found(lambda t: Sight(beat=TRAINS._replace(beats=9 + int(t) // 8), process=Process.STOPPED), until_s=60) == []
    ((at_t, fault),) = found(lambda t: Sight(beat=TRAINS._replace(beats=9 + min(int(t), 17)), process=Process.STOPPED), until_s=60)
    assert (at_t, fault.how) == (27, How.STOPPED)


def test_who_waits_for_a_save_in_the_background_has_its_time() -> None:
    ((at_t, _),) = found(lambda t: Sight(beat=TRAINS._replace(writing=int(t < 500))), until_s=700)
    assert at_t == 620  # the end of the save is a sign of life
    ((at_t, _),) = found(lambda t: Sight(beat=TRAINS._replace(writing=1)), until_s=1000)
    assert at_t == 900


def test_short_times_are_said_in_seconds() -> None:
    rules = replace(RULES, hang=Hang(output_s=5.0))
    ((_, fault),) = found(lambda t: Sight(beat=RUNS, output=3), until_s=8, rules=rules)
    assert fault.error == "no line of output for 5 s"


@pytest.mark.parametrize(
    "beat,output,by",
    [
        (Beat(), 9, None),
        (RUNS, 0, None),
        (RUNS, 9, WatchedBy.OUTPUT),
        (RUNS._replace(phase=Phase.INIT, activity=3), 9, None),
        (RUNS._replace(phase=Phase.INIT, activity=3, flags=Flag.UNSURE), 9, WatchedBy.BATCHES),
        (RUNS._replace(activity=3), 9, WatchedBy.BEAT),
        (TRAINS, 9, WatchedBy.STEPS),
        (TRAINS._replace(flags=Flag.UNSURE), 9, WatchedBy.STEPS),
        (TRAINS._replace(flags=Flag.COUNTS), 9, WatchedBy.BEAT),
    ],
)
def test_what_shows_that_it_lives(beat: Beat, output: int, by: WatchedBy | None) -> None:
    watch, _ = watching.look(Watch(), 0.0, {0: Sight(beat=beat, output=output)}, RULES)
    assert watching.slowest_by(watch) is by


def test_steps_that_are_not_sure_are_not_told() -> None:
    assert watching.step_of(TRAINS, 0) == 9
    assert watching.step_of(TRAINS._replace(step=-1, flags=Flag.UNSURE), 0) is None
    assert watching.step_of(RUNS._replace(step=100), 100) is None  # no torch, no beat()


# What the node tells of it ------------------------------------------------------------------------------------------------


def told(beats: Callable[[int], Beat], *, seconds: int, node_rank: int = 0, output: int = 0) -> list[tuple[int, str, WatchedBy | None]]:
    """(second, phase, by) of every Progressed."""
    order = ev.Launch(node="n1", epoch=ev.Epoch(1, 1), nodes=1, node_rank=node_rank, address="a", port=1)
    state = nodestate.State(node="n1", stage=nodestate.Stage.READY, epoch=ev.Epoch(1, 1), node_rank=node_rank)
    state, _ = noding.step(state, nodestate.Ordered(t=0.0, order=order), RULES)
    news = []
    for second in range(seconds):
        sights = {0: Sight(beat=beats(second), output=output)}
        state, acts = noding.step(state, nodestate.Looked(t=float(second), sights=sights), RULES)
        events = [act.event for act in acts if isinstance(act, nodestate.Tell)]
        news += [(second, event.phase, event.by) for event in events if isinstance(event, ev.Progressed)]
    return news


def trains_and_saves(second: int) -> Beat:
    """A save every five seconds."""
    saves = second % 5 == 4
    return TRAINS._replace(activity=second + 9, beats=second + 9, phase=Phase.CHECKPOINT if saves else Phase.STEP)


def test_a_save_every_few_seconds_is_not_told_every_time() -> None:
    assert told(trains_and_saves, seconds=130) == [
        (0, "step", WatchedBy.STEPS),
        (4, "checkpoint", WatchedBy.STEPS),
        (64, "checkpoint", WatchedBy.STEPS),
        (124, "checkpoint", WatchedBy.STEPS),
    ]
    assert [second for second, _, _ in told(trains_and_saves, seconds=130, node_rank=1)] == [0, 4, 65, 129]


def test_being_watched_by_output_is_told_with_the_first_line() -> None:
    assert told(lambda _: RUNS, seconds=5) == [(0, "start", None)]
    assert told(lambda _: RUNS, seconds=5, output=3) == [(0, "start", WatchedBy.OUTPUT)]


@pytest.fixture
def world_of_savers() -> World:
    """Every save on request takes two seconds, of which two looks see it."""
    return World(script="asks", steps=100, rules=replace(WORLD_RULES, every_s=40.0, beats_s=10.0))


def test_time_in_which_some_rank_saves_is_added_up() -> None:
    watch, saves = Watch(), TRAINS._replace(phase=Phase.CHECKPOINT)
    for second in range(20):
        beats = {0: saves if 5 <= second < 9 else TRAINS, 1: saves if 7 <= second < 12 else TRAINS}
        sights = {rank: Sight(beat=beat._replace(activity=second)) for rank, beat in beats.items()}
        watch, _ = watching.look(watch, float(second), sights, RULES, node="n1")
    assert watch.saving_s == 7.0
    watch, _ = watching.look(watch, 20.0, {0: Sight(beat=saves)}, RULES, node="n1")
    watch, _ = watching.look(watch, 620.0, {0: Sight(beat=saves)}, RULES, node="n1")
    assert watch.saving_s == 7.0, "while the watcher was away, nobody knows"


def test_what_was_saved_is_told_with_the_steps_and_counted_anew(world_of_savers: World) -> None:
    world_of_savers.run()
    told = [line.event for line in world_of_savers.log if isinstance(line.event, ev.Progressed)]
    saving = {event.saving_s for event in told}
    assert None not in saving
    assert sum(event.saving_s or 0.0 for event in told if event.node == "n1") == 2 * len(world_of_savers.asked(ev.Ask.COMMIT)) > 0
