"""What to change: each rule speaks where its facts are, with their numbers, and is silent where one of them is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ftsup.config import Checkpoint, Config, SlurmOptions
from ftsup.config import Requeue as RequeueBy
from ftsup.events import Ears, Epoch, Fault, How, Kind, Quarantined, Verdict, VerdictKind
from ftsup.policy.rules import Hang
from ftsup.report.advice import TABLE, Advice, Facts, advise
from ftsup.report.costs import Cause, Cost, by_cause
from ftsup.report.gauge import Measured
from ftsup.report.ledger import Ledger, Part, Spell
from ftsup.report.story import Incident, Moment, Story

CONFIG = Config(name="t", command=("train.py",), checkpoint=Checkpoint(dir="ckpt"))
MOMENT = Moment(wall="2026-01-02T03:04:05.000+00:00", t=1.0, grant=1)
REQUEUE = Verdict(kind=VerdictKind.REQUEUE, reason="the time limit is near", rule="time limit")


def incident(number: int = 1, root: Fault | None = None, **fields: object) -> Incident:
    return Incident(**{"number": number, "epoch": Epoch(1, number), "found": MOMENT, "root": root, "back": MOMENT, **fields})


def said(
    *incidents: Incident,
    trained_s: float = 36000.0,
    spells: Sequence[Spell] = (),
    measured: Measured = Measured(),  # noqa: B008 - frozen
    costs: Sequence[Cost] | None = None,
    config: Config | None = CONFIG,
    **story: object,
) -> dict[str, Advice]:
    """The advice by its rule."""
    training = Spell(part=Part.TRAINING, spent_s=trained_s, grant=1)
    told = Story(**{"nodes": ("n1", "n2", "n3", "n4"), "job": "7", "incidents": incidents, **story})
    ledger = Ledger(story=told, spells=(training, *spells), measured=measured)
    each = tuple(costs) if costs is not None else tuple(Cost() for _ in incidents)
    found = advise(Facts(ledger=ledger, costs=each, seconds=by_cause(ledger), config=config))
    assert {advice.rule for advice in found} <= {row.name for row in TABLE}
    return {advice.rule: advice for advice in found}


def fault(how: How, **fields: object) -> Fault:
    return Fault(**{"how": how, "node": "n1", "rank": 0, **fields})


def test_a_run_without_trouble_gets_no_advice() -> None:
    assert said() == {}
    assert said(config=None) == {}


# The script ---------------------------------------------------------------------------------------------------------------


def test_the_scripts_own_error_is_named_with_its_line() -> None:
    boom = fault(How.EXCEPTION, error="KeyError: 'x'", where="train.py:9 in load", fingerprint="f")
    found = said(incident(1, boom), incident(2, boom))["own error"].text
    assert found == "look at train.py:9 in load: KeyError: 'x', 2 times. It is the script's own error: no restart mends it"
    assert "the traceback of rank 0 in incident 1" in said(incident(1, replace(boom, where="")))["own error"].text
    assert "own error" not in said(incident(1, replace(boom, kind=Kind.GPU_MEMORY)))
    assert "own error" not in said(incident(1, fault(How.SIGNAL)))


def test_memory_that_ran_out() -> None:
    gpu, host = (fault(How.EXCEPTION, kind=kind) for kind in (Kind.GPU_MEMORY, Kind.HOST_MEMORY))
    assert "rank 0 on n1 ran out of GPU memory (1 incident of memory)" in said(incident(1, gpu))["memory"].text
    assert said(incident(1, host))["memory"].key == "slurm.mem"
    assert "the launcher on n1 ran out of host memory" in said(incident(1, replace(host, rank=None)))["memory"].text
    assert "memory" not in said(incident(1, fault(How.EXCEPTION)))


def test_a_script_that_never_asks_and_makes_steps_again() -> None:
    lost = incident(0, None, verdict=REQUEUE, at_step=300, resumed_step=200)
    measured = Measured(ears=Ears.NONE, step_s=2.0)
    assert "100 steps (3 min 20 s) were made again" in said(lost, measured=measured, costs=[Cost()])["never asks"].text
    assert "never asks" not in said(lost, measured=replace(measured, ears=Ears.ASKS))
    assert "never asks" not in said(lost, measured=replace(measured, ears=None)), "it was never asked: nobody knows"
    assert "never asks" not in said(replace(lost, resumed_step=300), measured=measured)


# Checkpoints --------------------------------------------------------------------------------------------------------------


def test_no_directory_of_checkpoints() -> None:
    nowhere = replace(CONFIG, checkpoint=Checkpoint())
    assert said(incident(1, fault(How.SIGNAL)), config=nowhere)["no directory"].key == "checkpoint.dir"
    assert "no directory" not in said(incident(1, fault(How.SIGNAL)))
    assert "no directory" not in said(config=nowhere)
    assert "no directory" not in said(incident(1, fault(How.SIGNAL)), config=None)


@pytest.fixture
def often() -> tuple[Incident, ...]:
    """Four faults in ten hours of training, each 3,000 steps after a checkpoint."""
    return tuple(incident(n, fault(How.SIGNAL, node=f"n{n}"), at_step=5000, resumed_step=2000) for n in range(1, 5))


def test_saves_that_are_too_far_apart(often) -> None:
    """Ten saves of 20 s in 10 h: every hour. MTBF 2.5 h: sqrt(2 x 20 s x 9000 s) = 600 s."""
    measured = Measured(step_s=1.0, saving_s=200.0, saves=10, ears=Ears.ASKS)
    found = said(*often, measured=measured)["interval"]
    assert (found.key, found.value) == ("checkpoint.every", "10min")
    assert "save more often: about every 10min (600 steps) instead of every 1 h" in found.text
    assert "A save costs 20 s, something broke every 2 h 30 min of training" in found.text
    assert "Young, Daly" in found.text
    assert "14% of the time less" in found.text
    alone = said(*often, measured=replace(measured, ears=Ears.NONE))["interval"]
    assert (alone.key, alone.value) == ("", ""), "the script saves when it likes: no key of ours changes that"


def test_saves_that_are_too_near_to_each_other(often) -> None:
    measured = Measured(step_s=1.0, saving_s=12000.0, saves=200, ears=Ears.ASKS)  # a minute each, every three minutes
    assert "save less often: about every 17min (1039 steps)" in said(*often, measured=measured)["interval"].text


@pytest.mark.parametrize(
    "change",
    [
        {"saving_s": None},
        {"step_s": None},
        {"saves": 1},
        {"saving_s": 1200.0, "saves": 60},  # every 600 s at 20 s: as it should be
    ],
    ids=["older ftsup", "steps unknown", "one save", "right already"],
)
def test_no_interval_without_its_facts(often, change) -> None:
    measured = replace(Measured(step_s=1.0, saving_s=200.0, saves=10, ears=Ears.ASKS), **change)
    assert "interval" not in said(*often, measured=measured)


def test_saves_too_short_to_be_measured_are_never_called_too_many(often) -> None:
    """Looked for once a second: 0.1 s may be less, and is not more than 1 s."""
    short = Measured(step_s=1.0, saving_s=60.0, saves=600)
    assert "interval" not in said(*often, measured=short), "at 1 s a save every minute would be too many"
    rare = Measured(step_s=1.0, saving_s=0.5, saves=5)
    assert "save more often: about every 2min10s" in said(*often, measured=rare)["interval"].text


def test_a_run_of_minutes_is_not_tuned(often) -> None:
    assert "interval" not in said(*often, trained_s=1200.0, measured=Measured(step_s=1.0, saving_s=200.0, saves=2))


def test_one_fault_makes_no_rate(often) -> None:
    assert "interval" not in said(*often[:1], measured=Measured(step_s=1.0, saving_s=200.0, saves=10))


def test_damaged_checkpoints() -> None:
    aside = (Quarantined(name="step60", why="damaged", path="/c/.ftsup/quarantine/step60.1/step60"),)
    assert "step60 came back from the disk other than written (now in /c/.ftsup/quarantine/step60.1)" in said(aside=aside)["damaged"].text


def test_a_disk_that_is_full_and_one_that_is_ill() -> None:
    full = fault(How.DISK, error="OSError: [Errno 28] No space left on device: '/c/x'")
    found = said(incident(1, full))["disk"]
    assert (found.key, found.value) == ("checkpoint.prune", "true")
    assert "make room, or let ftsup remove old checkpoints" in found.text
    pruned = replace(CONFIG, checkpoint=Checkpoint(dir="c", prune=True))
    assert said(incident(1, full), config=pruned)["disk"].key == ""
    ill = fault(How.DISK, error="OSError: [Errno 116] Stale file handle: '/c/x'")
    assert said(incident(1, ill))["disk"].text.endswith("look at that disk")


def test_a_warning_that_comes_too_late_for_a_save() -> None:
    found = said(measured=Measured(asked_s=100.0, kill_wait_s=30.0))["warning"]  # 100 + 30 + 15 > 120
    assert (found.key, found.value) == ("slurm.signal", "SIGUSR1@270")
    assert "the warning comes 2 min before the time limit; a save on request takes 1 min 40 s" in found.text
    late = said(measured=Measured(late_saves=2))["warning"]
    assert "and 2 requeues did not wait for it" in late.text
    assert late.value == "SIGUSR1@240"
    assert "warning" not in said(measured=Measured(asked_s=60.0, kill_wait_s=30.0))
    assert "warning" not in said(measured=Measured(asked_s=100.0), config=None)


# Limits, nodes, grants ----------------------------------------------------------------------------------------------------


def test_hangs_that_were_waited_for_longer_than_needed() -> None:
    hang = fault(How.QUIET, phase="step", quiet_s=601.0, limit_s=600.0)
    cost = Cost(quiet_s=601.0, stop_s=10.0, restart_s=80.0)
    measured = Measured(median_s=0.5, restart_s=90.0)
    found = said(incident(1, hang), costs=[cost], measured=measured)["hang limit"]
    assert (found.key, found.value) == ("hang.step", "1min30s")
    assert "1 hang in training stood still for 10 min 1 s of the 11 min 31 s that they cost: the limit was 10 min" in found.text
    assert "A step takes 0.5 s (median), a restart takes 1 min 30 s" in found.text
    assert "hang limit" not in said(incident(1, hang), costs=[cost], measured=Measured()), "no step was measured"
    assert "hang limit" not in said(incident(1, hang), costs=[replace(cost, restart_s=900.0)], measured=measured), "the restart is dearer"
    assert "hang limit" not in said(incident(1, replace(hang, limit_s=100.0)), costs=[cost], measured=measured), "it is low enough"
    assert "hang limit" not in said(incident(1, replace(hang, phase="init")), costs=[cost], measured=measured)
    slow = replace(CONFIG, hang=Hang(step_factor=2000.0))
    assert "hang limit" not in said(incident(1, hang), costs=[cost], measured=measured, config=slow)


def test_a_node_that_breaks_more_often_than_by_luck() -> None:
    def on(*nodes: str) -> list[Incident]:
        return [incident(n, fault(How.SIGNAL, node=node, rank=n)) for n, node in enumerate(nodes, 1)]

    found = said(*on("n3", "n3", "n1", "n3"))["node"]
    assert (found.key, found.value) == ("slurm.exclude", "[n3]")
    assert found.text == "3 of 4 faults that a node can be blamed for were on n3: keep it out"
    assert "node" not in said(*on("n3", "n3")), "one time in four, by luck"
    assert "node" in said(*on("n3", "n3"), nodes=tuple(f"n{i}" for i in range(64)))
    assert "node" not in said(*on("n3", "n1", "n2", "n3")), "half of them"
    assert "node" not in said(*on("n1", "n1", "n1"), nodes=("n1",)), "there is no other"
    kept_out = [replace(one, verdict=Verdict(kind=VerdictKind.REQUEUE, reason="", avoid=("n3",))) for one in on("n3", "n3", "n3")]
    assert "node" not in said(*kept_out), "it is out already"
    errors = [replace(one, root=fault(How.EXCEPTION, node="n3")) for one in on("n3", "n3", "n3")]
    assert "node" not in said(*errors), "the script's own errors blame nobody"


def test_a_rank_that_breaks_wherever_it_is() -> None:
    found = said(*(incident(n, fault(How.SIGNAL, rank=5, node=node)) for n, node in enumerate(("n1", "n2", "n1"), 1)))["rank"]
    assert found.text.startswith("rank 5 broke 3 times, on n1, n2: it follows the rank")
    assert "rank" not in said(*(incident(n, fault(How.SIGNAL, rank=5)) for n in (1, 2)))


def test_grants_that_end_without_a_word() -> None:
    found = said(incident(0, None))["no word"].text
    assert "1 grant ended without a word of the leader, the last about 2026-01-02 03:04:05" in found
    assert "sacct -j 7" in found
    assert "no word" not in said(incident(0, None, verdict=REQUEUE))


def test_grants_that_are_too_short() -> None:
    short = [incident(0, None, verdict=REQUEUE) for _ in range(3)]
    spells = (Spell(part=Part.QUEUE, spent_s=20000.0, grant=1),)
    costs = [Cost(queue_s=6000.0, startup_s=600.0)] * 3
    limited = replace(CONFIG, slurm=SlurmOptions(time_s=3600.0))
    found = said(*short, spells=spells, costs=costs, config=limited)["short grants"]
    assert found.key == "slurm.time"
    assert "3 grants ended by their time limit, and 5 h 30 min went into the queue" in found.text
    assert found.text.endswith("ask for longer ones than 1h")
    assert "short grants" not in said(*short[:1], spells=spells, costs=costs[:1])
    assert "short grants" not in said(*short, spells=spells, costs=[Cost(queue_s=60.0)] * 3)


def test_a_run_that_stopped_since_it_may_not_requeue() -> None:
    off = replace(CONFIG, slurm=SlurmOptions(requeue=RequeueBy.OFF))
    stop = Verdict(kind=VerdictKind.STOP, reason="twice at one step on one node, and requeue is off: x")
    assert said(verdict=stop, config=off)["requeue off"].key == "slurm.requeue"
    assert "requeue off" not in said(verdict=stop)
    assert "requeue off" not in said(config=off)


def test_made_again_is_as_much_as_the_table_has() -> None:
    lost = incident(1, fault(How.SIGNAL), at_step=300, resumed_step=200)
    ledger = Ledger(
        story=Story(incidents=(lost,)), spells=(Spell(part=Part.TRAINING, spent_s=50.0, grant=1),), measured=Measured(step_s=1.0)
    )
    assert by_cause(ledger)[Cause.REPLAYED] == 50.0
