"""Reports in the fake world: what is fatal is acted on at once, what may not be waits for the rank, and neither takes the blame."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How, Kind, Line, VerdictKind
from ftsup.policy import nodestate
from ftsup.policy.judge import Case, History, Past, describe, judge, root
from ftsup.policy.reports import Acts, Report, explained
from ftsup.policy.rules import Budgets, HangMode, Rules
from ftsup.policy.watch import Process
from ftsup.worker.beatfile import Phase
from tests.world import RULES, World

PATIENT = replace(RULES, hang=replace(RULES.hang, step_s=2000.0))
"""Hangs alone would be found after 2,000 s."""
TIMEOUT = Fault(
    how=How.PEER,
    node="",
    kind=Kind.NCCL_TIMEOUT,
    error="NCCL timeout in ALLREDUCE (SeqNum 7)",
    line="[rank0]:[E ...",
    quiet_s=600.0,
    limit_s=600.0,
)
CLOSED = Fault(how=How.PEER, node="", kind=Kind.NCCL_ERROR, error="NCCL: Connection closed", line="n1:1:2 [0] misc/socket.cc ...")
ECC = Fault(how=How.DEVICE, node="", kind=Kind.CUDA, error="CUDA error: uncorrectable ECC error encountered", line="[rank0]:[E ...")


def say(world: World, rank: int, fault: Fault, acts: Acts = Acts.AT_ONCE, *, name: str = "x") -> None:
    """A rank's file says it now."""
    node = world.nodes[world.names[rank // world.per_node]]
    report = Report(fault=replace(fault, node=node.name, rank=rank, alive=True), acts=acts, name=name)
    world._happen(node, nodestate.Heard(t=world.t, reports=(report,)))  # noqa: SLF001 - the world's way into a node's machine


def until_step(world: World, step: int) -> World:
    def there() -> bool:
        ranks = [rank for node in world.nodes.values() for rank in node.ranks]
        return bool(ranks) and all(world.base + rank.beats >= step or rank.hangs for rank in ranks)

    return world.run(until=there)


def seconds(world: World, count: int) -> World:
    for _ in range(count):
        world.second()
    return world


def reported(world: World, *, fatal: bool) -> list[Fault]:
    return [line.event.fault for line in world.log if isinstance(line.event, ev.Reported) and line.event.fatal is fatal]


def test_a_timeout_is_acted_on_at_once_and_names_the_one_that_was_waited_for() -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 600)
    assert world.roots() == []
    said_t = world.t
    say(world, 0, TIMEOUT)
    say(world, 1, TIMEOUT)
    world.run(until=lambda: bool(world.roots()))
    assert world.t - said_t < 15
    (found,) = world.roots()
    assert (found.how, found.rank, found.step) == (How.QUIET, 3, 25)
    world.run()
    assert world.verdicts() == [(VerdictKind.RESTART, "otherwise")]


def test_where_stacks_leave_a_doubt_nobody_is_accused() -> None:
    world = World(rules=PATIENT)
    world.strike("hang", rank=2, step=25).strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 600)
    say(world, 0, TIMEOUT)
    world.run(until=lambda: bool(world.roots()))
    (found,) = world.roots()
    assert (found.how, found.rank) == (How.PEER, 0)
    assert describe(found) == "rank 0 on n1 lost its peers at step 25: NCCL timeout in ALLREDUCE (SeqNum 7)"


def test_a_rank_that_has_only_just_stopped_is_not_what_was_waited_for() -> None:
    world = World(rules=PATIENT)
    world.strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 10)
    say(world, 0, TIMEOUT)
    world.run(until=lambda: bool(world.roots()))
    assert world.roots()[0].rank == 0


def test_a_timeout_that_does_not_say_how_long_accuses_nobody() -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 10)
    say(world, 0, replace(TIMEOUT, quiet_s=0.0, limit_s=0.0))
    world.run(until=lambda: bool(world.roots()))
    assert world.roots()[0].rank == 0


def test_a_process_that_then_aborts_is_one_incident_with_the_reports_words() -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 5)
    say(world, 0, CLOSED)
    seconds(world, 1)
    node = world.nodes["n1"]
    node.ranks[0].process = Process.GONE
    node.ranks[0].fault = Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGABRT")
    world.run()
    (found,) = world.roots()
    assert (found.how, found.rank, found.kind) == (How.PEER, 0, Kind.NCCL_ERROR)
    assert len(world.launches) == 2


@pytest.mark.parametrize("first", ["report", "death"])
def test_the_rank_that_died_has_the_blame_and_not_those_who_lost_it(first: str) -> None:
    world = until_step(World(rules=PATIENT), 25)
    if first == "report":
        say(world, 0, CLOSED)
        say(world, 1, TIMEOUT)
    rank = world.nodes["n2"].ranks[1]
    rank.process, rank.fault = Process.GONE, Fault(how=How.SIGNAL, node="n2", rank=3, signal="SIGKILL")
    seconds(world, 1)
    if first == "death":
        say(world, 0, CLOSED)
    world.run()
    (found,) = world.roots()
    assert (found.how, found.rank, found.signal) == (How.SIGNAL, 3, "SIGKILL")


def test_its_own_error_outranks_what_its_files_said_before() -> None:
    world = until_step(World(rules=PATIENT), 25)
    say(world, 1, CLOSED)
    rank = world.nodes["n1"].ranks[1]
    rank.process, rank.fault = Process.GONE, Fault(how=How.EXCEPTION, node="n1", rank=1, code=1, error="ValueError: no", where="train.py:3")
    world.run()
    (found,) = world.roots()
    assert (found.how, found.error, found.where, found.line) == (How.EXCEPTION, "ValueError: no", "train.py:3", "")


def test_how_our_stop_ended_it_is_not_how_it_broke() -> None:
    world = until_step(World(rules=PATIENT), 25)
    say(world, 1, CLOSED)
    world.run()
    (found,) = world.roots()
    assert (found.how, found.rank, found.signal) == (How.PEER, 1, "")


def test_a_doubtful_word_waits_and_a_rank_that_goes_on_is_well() -> None:
    world = World(rules=PATIENT, steps=300)
    for step in range(20, 200, 10):
        until_step(world, step)
        say(world, 0, CLOSED, Acts.WHEN_STILL)
    world.run()
    assert world.verdicts() == []
    assert len(world.launches) == 1
    assert [(fault.rank, fault.step) for fault in reported(world, fatal=False)] == [(0, 20)]
    assert all(not node.state.doubts for node in world.nodes.values() if node.state)


def test_a_doubtful_word_is_fatal_to_a_rank_that_then_stands_still() -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    until_step(world, 25)
    say(world, 0, CLOSED, Acts.WHEN_STILL)
    said_t = world.t
    world.run(until=lambda: bool(world.roots()))
    assert RULES.hang.reported_s <= world.t - said_t < RULES.hang.reported_s + 10
    (fault,) = reported(world, fatal=True)
    assert fault.quiet_s >= RULES.hang.reported_s
    assert world.roots()[0].rank == 0


def test_a_doubtful_word_gives_a_rank_its_time_from_then_on() -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    seconds(until_step(world, 25), 100)
    say(world, 0, CLOSED, Acts.WHEN_STILL)
    assert reported(seconds(world, int(RULES.hang.reported_s) - 2), fatal=True) == []
    assert reported(seconds(world, 4), fatal=True) != []


@pytest.mark.parametrize("report,how", [(TIMEOUT, How.WAITING), (CLOSED, How.QUIET), (ECC, How.QUIET)])
def test_of_a_rank_that_stands_still_only_a_timeout_says_that_it_waits(report: Fault, how: How) -> None:
    world = World(rules=RULES).strike("hang", rank=3, step=25)
    world.run(until=lambda: bool(world.state.faults))
    (quiet,) = [fault for fault in world.state.faults if fault.rank == 0]
    assert quiet.how is How.QUIET
    world.tell(ev.Reported(node="n1", epoch=world.state.epoch, fault=replace(report, node="n1", rank=0, alive=True), fatal=True))
    (told,) = [fault for fault in world.state.faults if fault.rank == 0]
    assert (told.how, told.error) == (how, report.error)


def test_a_doubtful_word_is_forgotten_before_a_later_standstill() -> None:
    world = World(rules=PATIENT, steps=400).strike("hang", rank=3, step=120)
    until_step(world, 20)
    say(world, 0, CLOSED, Acts.WHEN_STILL)
    seconds(until_step(world, 120), 300)
    assert reported(world, fatal=True) == []


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.FIRST_STEP, Phase.EVALUATION, Phase.CHECKPOINT])
def test_a_doubtful_word_is_not_acted_on_where_quiet_is_normal(phase: Phase) -> None:
    world = World(rules=replace(PATIENT, hang=replace(PATIENT.hang, init_s=2000.0, first_step_s=2000.0))).strike("hang", rank=0, step=25)
    until_step(world, 25)
    for node in world.nodes.values():
        for rank in node.ranks:
            rank.phase = phase
    say(world, 0, CLOSED, Acts.WHEN_STILL)
    assert reported(seconds(world, 300), fatal=True) == []


@pytest.mark.parametrize("acts", [Acts.NEVER, Acts.AT_END])
def test_other_words_never_kill(acts: Acts) -> None:
    world = World(rules=PATIENT).strike("hang", rank=3, step=25)
    until_step(world, 25)
    say(world, 0, CLOSED, acts)
    say(world, 0, CLOSED, acts)
    seconds(world, 600)
    assert world.verdicts() == []
    assert len(reported(world, fatal=False)) == (acts is Acts.NEVER)


def test_observing_tells_of_a_fatal_report_and_does_nothing() -> None:
    world = World(rules=replace(PATIENT, hang=replace(PATIENT.hang, mode=HangMode.OBSERVE)))
    until_step(world, 25)
    say(world, 0, TIMEOUT)
    world.run()
    assert world.verdicts() == []
    assert any("NCCL timeout in ALLREDUCE" in text and "observe" in text for text in world.news)


def test_words_of_a_rank_that_is_done_are_nobodys_business() -> None:
    world = World(rules=PATIENT, steps=30).strike("stuck-end", rank=3, step=30)
    world.run(until=lambda: 0 in world.state.returned)
    world.tell(ev.Reported(node="n1", epoch=world.state.epoch, fault=replace(TIMEOUT, node="n1", rank=0), fatal=True))
    assert world.state.incident == 0


def test_a_report_of_an_older_attempt_changes_nothing() -> None:
    world = World(rules=PATIENT).strike("kill", rank=0, step=20)
    world.run(until=lambda: len(world.launches) == 2)
    before = world.state
    world.tell(ev.Reported(node="n1", epoch=ev.Epoch(1, 1), fault=replace(TIMEOUT, node="n1", rank=0), fatal=True))
    assert world.state == before


def test_a_report_goes_to_disk_and_back() -> None:
    line = Line(n=1, event=ev.Reported(node="n1", epoch=ev.Epoch(1, 1), fault=replace(TIMEOUT, node="n1", rank=0), fatal=True))
    assert msgspec.json.decode(msgspec.json.encode(line), type=Line) == line


# Judging ------------------------------------------------------------------------------------------------------------------


def judged(*faults: Fault, nodes: int = 2, rules: Rules = RULES) -> ev.Verdict:
    """The verdict about the last of a row of faults without progress between."""
    history = History()
    for number, fault in enumerate(faults, start=1):
        case = Case(epoch=ev.Epoch(1, number), faults=(fault,), nodes=tuple(f"n{i + 1}" for i in range(nodes)), history=history)
        verdict = judge(case, rules)
        past = Past(epoch=case.epoch, root=fault, rule=verdict.rule)
        history = replace(history, past=(*history.past, past), row=(*history.row, fault.node))
    return verdict


def test_a_broken_gpu_is_its_nodes_fault_the_second_time() -> None:
    ecc = replace(ECC, node="n2", rank=3, step=10)
    assert judged(ecc).kind is VerdictKind.RESTART
    again = judged(ecc, replace(ecc, step=11))
    assert (again.kind, again.rule, again.avoid) == (VerdictKind.REQUEUE, "bad node", ("n2",))
    assert judged(ecc, replace(ecc, node="n1", rank=0)).kind is VerdictKind.RESTART


def test_a_broken_gpu_of_the_only_node_has_the_budget_of_crashes() -> None:
    ecc = replace(ECC, node="n1", rank=0)
    rules = replace(RULES, policy=Budgets(crashes=2))
    assert [judged(*[ecc] * count, nodes=1, rules=rules).kind for count in (2, 3)] == [VerdictKind.RESTART, VerdictKind.STOP]


def test_a_full_disk_is_not_the_scripts_bug_but_has_an_end() -> None:
    full = Fault(
        how=How.DISK, node="n1", rank=0, error="OSError: [Errno 28] No space left on device", fingerprint="f", where="train.py:9 in save"
    )
    assert judged(full, full).kind is VerdictKind.RESTART
    end = judged(*[full] * 4)
    assert (end.kind, end.rule) == (VerdictKind.STOP, "budget")
    assert "refused by a file system: OSError: [Errno 28] No space left on device (train.py:9 in save)" in end.reason


@pytest.mark.parametrize(
    "other",
    [
        Fault(how=How.SIGNAL, node="n2", rank=3, signal="SIGKILL"),
        Fault(how=How.QUIET, node="n2", rank=3, step=5, quiet_s=20, limit_s=20),
        Fault(how=How.STORAGE, node="n2", rank=3, step=5, quiet_s=20, limit_s=20),
        Fault(how=How.EXCEPTION, node="n2", rank=3, error="ValueError: no"),
        replace(ECC, node="n2", rank=3),
    ],
)
@pytest.mark.parametrize("report", [TIMEOUT, CLOSED])
def test_a_lost_peer_beats_no_cause(report: Fault, other: Fault) -> None:
    assert root([replace(report, node="n1", rank=0, step=4), other]) == other


@pytest.mark.parametrize(
    "end,report,how,sentence",
    [
        (
            {"how": How.SIGNAL, "signal": "SIGABRT"},
            TIMEOUT,
            How.PEER,
            "rank 3 on n1 lost its peers at step 9: NCCL timeout in ALLREDUCE (SeqNum 7)",
        ),
        ({"how": How.SIGNAL, "signal": "SIGTERM"}, CLOSED, How.PEER, "rank 3 on n1 lost its peers at step 9: NCCL: Connection closed"),
        (
            {"how": How.SIGNAL, "signal": "SIGABRT"},
            ECC,
            How.DEVICE,
            "rank 3 on n1 lost its GPU or network card at step 9: CUDA error: uncorrectable ECC error encountered",
        ),
        (
            {"how": How.SIGNAL, "signal": "SIGKILL"},
            Fault(how=How.SIGNAL, node="n1", kind=Kind.HOST_MEMORY, error="out of memory on host", line="x"),
            How.SIGNAL,
            "rank 3 on n1 was ended by SIGKILL at step 9: out of memory on host",
        ),
        (
            {"how": How.EXIT, "code": 1},
            Fault(how=How.EXCEPTION, node="n1", kind=Kind.USER, error="ValueError: no", where="train.py:4 in f", line="x"),
            How.EXCEPTION,
            "rank 3 on n1 failed at step 9: ValueError: no (train.py:4 in f)",
        ),
        ({"how": How.SIGNAL, "signal": "SIGSEGV"}, TIMEOUT, How.SIGNAL, "rank 3 on n1 was ended by SIGSEGV at step 9"),
        ({"how": How.SIGNAL, "signal": "SIGKILL"}, CLOSED, How.SIGNAL, "rank 3 on n1 was ended by SIGKILL at step 9"),
        ({"how": How.EXCEPTION, "error": "ValueError: x"}, CLOSED, How.EXCEPTION, "rank 3 on n1 failed at step 9: ValueError: x"),
    ],
)
def test_words_explain_the_ends_they_lead_to_and_no_others(end: dict[str, object], report: Fault, how: How, sentence: str) -> None:
    told = explained(Fault(node="n1", rank=3, step=9, **end), report)
    assert (told.how, describe(told)) == (how, sentence)
