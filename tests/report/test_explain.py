"""What a person reads at night: the first lines, each incident, the table of time, and the same for an issue and for programs."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.report import evidence
from ftsup.report.evidence import Evidence
from ftsup.report.explain import Tale, explain
from ftsup.report.explaintext import head, markdown, now, text
from ftsup.report.ledger import keep
from ftsup.report.runs import View
from ftsup.report.story import Stage
from tests.report.leader import BEGAN, NODES, Leader
from tests.report.logs import ALL, hang_and_crash, requeued, stopped

SOON = BEGAN + timedelta(hours=1)


def tale_of(lines, *, now: datetime = SOON, found: dict[int, Evidence] | None = None, **view: object) -> Tale:
    ledger = keep(lines)
    seen = View(**{"id": "demo/1", "path": "/runs/demo/1", "jobs": ("7",), "story": ledger.story, **view})
    return explain(seen, ledger, config=None, evidence=found or {}, now=now)


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.after(10).launch()
    one.after(20).train(1)
    one.after(100).train(101)
    return one


def asked(request: str, *, who: str) -> ev.LeaderEvent:
    """As the log has it."""
    return msgspec.convert({"type": "Asked", "request": request, "who": who}, type=ev.LeaderEvent)


def hang(leader: Leader) -> None:
    """Rank 3 hangs in its own code, the others wait for it."""
    leader.after(10).hang()
    for node, faults in (
        ("n1", (Fault(how=How.WAITING, node="n1", rank=0), Fault(how=How.WAITING, node="n1", rank=1))),
        ("n2", (Fault(how=How.QUIET, node="n2", rank=3, where="train.py:41 in forward"), Fault(how=How.WAITING, node="n2", rank=2))),
    ):
        leader.take(ev.Collected(node=node, epoch=leader.epoch, incident=leader.state.incident, faults=faults))
    leader.after(4)
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=1))


def test_a_page_from_its_first_line_to_its_last(leader) -> None:
    hang(leader)
    leader.after(3).launch(checkpoint=100)
    leader.after(23).train(101)
    leader.after(40).take(ev.Tick())
    found = {1: Evidence(path="/runs/demo/1/incidents/1", files=9, stacks=("n2/stacks.3.txt",))}
    assert text(tale_of(leader.lines, now=BEGAN + timedelta(seconds=230), found=found)).splitlines() == [
        "demo/1: training",
        "  job 7: 2 attempts in 1 grant, 1 incident, at step 101, in 3 min 30 s",
        "  60 % of that time was training; most of the rest: hangs took 35 s (17 %),",
        "    start-up and end took 30 s (14 %)",
        "  now: nothing: it trains",
        "",
        "incident 1, 2026-01-02 03:06:25, attempt 1.1",
        "  what      rank 3 on n2 stood still for 5.2 s (limit 5 s) at step 118",
        "            (train.py:41 in forward)",
        "  waited    ranks 0-2 only waited for others",
        "  evidence  /runs/demo/1/incidents/1 (9 files, 1 stack)",
        "  done      restart here (rule: otherwise, restart in the allocation)",
        "  cost      53 s: 5.2 s until it was found, 4.0 s evidence and stop, 26 s",
        "            restart, 18 steps made again (18 s)",
        "",
        "where the time went",
        "  training                 2 min 7 s     60 %",
        "  hangs                         35 s     17 %   once",
        "  start-up and end              30 s     14 %",
        "  steps made again              18 s    8.6 %",
        "  in all                  3 min 30 s    100 %",
    ]


def test_what_a_crash_broke_and_who_only_followed_is_told_with_its_line_of_code(leader) -> None:
    boom = Fault(how=How.EXCEPTION, node="n1", rank=0, step=101, error="KeyError: 'x'", where="train.py:9 in load", fingerprint="f")
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=boom))
    for node, rank, how in (("n1", 1, How.PEER), ("n2", 2, How.PEER), ("n2", 3, How.SIGNAL)):
        fault = Fault(how=how, node=node, rank=rank, error="gone", signal="SIGTERM" if how is How.SIGNAL else "")
        leader.take(ev.Collected(node=node, epoch=leader.epoch, incident=1, faults=(fault,)))
    leader.end_attempt()
    tale = tale_of(leader.lines)
    (told,) = tale.incidents
    assert (told.rank, told.node, told.where, told.error) == (0, "n1", "train.py:9 in load", "KeyError: 'x'")
    shown = " ".join(text(tale).split())
    assert "rank 0 on n1 failed at step 101: KeyError: 'x' (train.py:9 in load)" in shown
    assert "ended because another one did" in shown
    assert "training has not come back" in shown


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.__name__)
def test_no_line_is_wider_than_80_columns_and_the_first_lines_say_all(made) -> None:
    tale = tale_of(made())
    for line in text(tale).splitlines():
        assert len(line) <= 80, line
    first = text(tale).split("\n\n")[0].splitlines()
    assert 3 <= len(first) <= 6
    assert any(line.startswith("  now: ") for line in first)
    assert sum(row.spent_s for row in tale.time) == pytest.approx(tale.whole_s)
    assert sum(row.share for row in tale.time) == pytest.approx(1.0)


def test_foreign_words_cannot_reach_the_terminal_nor_break_the_page(leader) -> None:
    evil = Fault(how=How.EXCEPTION, node="n1", rank=0, step=101, error="\x1b[31mno\n\n" + "x" * 3000, fingerprint="f")
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=evil))
    leader.end_attempt()
    leader.take(asked("cancel", who="eve\x1b[2J"))
    tale = tale_of(leader.lines, notes=("a\x07b",))
    for shown in (text(tale), markdown(tale)):
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert max(map(len, text(tale).splitlines())) <= 80


def test_a_path_that_is_longer_than_a_line_stays_whole(leader) -> None:
    hang(leader)
    path = "/lustre/project/of/ada/" + "long-name/" * 9 + "incidents/1"
    shown = text(tale_of(leader.lines, found={1: Evidence(path=path, files=1)}))
    assert f"{path}\n" in shown
    assert [line for line in shown.splitlines() if len(line) > 80 and path not in line] == []


def test_a_requeue_tells_the_time_in_the_queue_and_the_start_of_the_next_grant() -> None:
    tale = tale_of(requeued())
    (told,) = tale.incidents
    assert (told.name, told.number, told.rule, told.back) == ("requeue", 0, "time limit", True)
    assert told.cost.queue_s > 10
    shown = " ".join(text(tale).split())
    assert "requeue and queue, 4.0 s start-up" in shown
    assert "the leader died once and was started again, while training went on" in shown


def test_who_asked_what_and_what_was_set_aside(leader) -> None:
    leader.take(ev.Quarantined(name="step60", why="damaged: block 3", path="/c/.ftsup/quarantine/step60.1/step60"))
    leader.take(asked("cancel", who="ada"))
    shown = " ".join(text(tale_of(leader.lines)).split())
    assert "2026-01-02 03:06:15 ada asked for an end: at once" in shown
    assert "checkpoint step60 was set aside, damaged: block 3; it lies in /c/.ftsup/quarantine/step60.1/step60" in shown


def test_a_run_that_was_continued_waits_for_its_next_leader_whatever_its_log_says(leader) -> None:
    leader.take(asked("cancel", who="ada"))
    ledger = keep(leader.lines)
    waiting = msgspec.structs.replace(ledger.story, stage=Stage.WAITING, verdict=None, job="")
    seen = View(id="demo/1", path="/runs/demo/1", jobs=("7", "8"), story=waiting)
    tale = explain(seen, ledger, config=None, evidence={}, now=SOON)
    assert (tale.stage, tale.verdict) == (Stage.WAITING, None)
    assert now(tale) == "ftsup status demo/1 asks Slurm about its job"


def test_who_continued_it_and_with_what(leader) -> None:
    leader.take(ev.Continued(n=1, who="ada", changed=("hang.step", "policy.hangs")))
    assert [wish.answer for wish in tale_of(leader.lines).asked] == ["ada continued the run, with other values of hang.step, policy.hangs"]


# What to do now -----------------------------------------------------------------------------------------------------------


def test_a_run_that_stopped_by_its_own_error_says_where_to_look_and_how_to_go_on() -> None:
    lines = [
        replace(line, event=replace(line.event, fault=replace(line.event.fault, where="train.py:9 in load")))
        if isinstance(line.event, ev.RankEnded) and line.event.fault.how is How.EXCEPTION
        else line
        for line in stopped()
    ]
    tale = tale_of(lines)
    assert tale.stage is Stage.STOPPED
    assert "ftsup submit --continue demo/1" in now(tale)
    assert next(head(tale)).startswith("demo/1: stopped: the same error twice, without progress between: rank 1")


def test_who_stopped_it_is_said_once() -> None:
    tale = msgspec.structs.replace(tale_of(stopped()), stage=Stage.STOPPED, reason="stopped by ada, saved step 80")
    assert next(head(tale)) == "demo/1: stopped by ada, saved step 80"


@pytest.mark.parametrize(
    "change,said",
    [
        ({"stage": Stage.STOPPED, "rule": "stop asked"}, "nothing; ftsup submit --continue demo/1 goes on"),
        ({"stage": Stage.PAUSED}, "ftsup submit --continue demo/1 goes on from the newest checkpoint"),
        ({"stage": Stage.FINISHED}, "nothing is left to do"),
        ({"stage": Stage.CANCELLED}, "nothing is left to do"),
        ({"stage": Stage.WAITING}, "ftsup status demo/1 asks Slurm"),
        ({"stage": Stage.WAITING, "job": ""}, "nothing runs"),
        ({"stage": Stage.REQUEUED, "quiet_s": 7500.0}, "nothing: it has been in the queue for 2 h 5 min, and goes on when"),
        ({"stage": Stage.STOPPED, "rule": "checkpoints taken"}, "mend what it says, then ftsup submit --continue demo/1"),
        ({"stage": Stage.RECOVERING, "quiet_s": 5.0}, "nothing: it is on its way back"),
        ({"stage": Stage.TRAINING, "quiet_s": 5.0}, "nothing: it trains"),
        ({"stage": Stage.TRAINING, "quiet_s": 500.0}, "its leader has said nothing for 8 min 20 s: squeue -j 7"),
    ],
)
def test_every_stage_says_what_to_do_now(leader, change, said) -> None:
    tale = msgspec.structs.replace(tale_of(leader.lines), **change)
    assert now(tale).startswith(said)


def test_a_stopped_run_names_the_line_of_code_first(leader) -> None:
    hang(leader)
    tale = tale_of(leader.lines)
    (told,) = tale.incidents
    ended = msgspec.structs.replace(told, verdict=ev.VerdictKind.STOP)
    tale = msgspec.structs.replace(tale, stage=Stage.STOPPED, rule="budget", incidents=(ended,))
    assert now(tale) == "look at train.py:41 in forward, then ftsup submit --continue demo/1"
    nowhere = msgspec.structs.replace(tale, incidents=(msgspec.structs.replace(ended, where=""),))
    assert now(nowhere) == "look at incident 1, then ftsup submit --continue demo/1"


def test_the_first_line_says_what_is_being_recovered_from_and_that_nobody_speaks(leader) -> None:
    leader.after(10).hang()
    spoke = BEGAN + timedelta(seconds=145)
    assert next(head(tale_of(leader.lines, now=spoke))).startswith("demo/1: recovering: rank 3 on n2 stood still for 5.2 s")
    assert next(head(tale_of(leader.lines))).startswith("demo/1: recovering when its leader last spoke: rank 3")


def test_a_run_that_no_leader_ever_led() -> None:
    tale = tale_of([])
    assert list(head(tale)) == [
        "demo/1: waiting",
        "no leader has written anything yet; its job is 7",
        "now: ftsup status demo/1 asks Slurm about its job",
    ]
    assert text(tale).splitlines()[0] == "demo/1: waiting"
    assert next(head(tale_of([], cancelled=True))) == "demo/1: cancelled"


# For an issue, and for programs -------------------------------------------------------------------------------------------


def test_markdown_has_tables_that_are_tables_and_no_markup_of_strangers(leader) -> None:
    evil = Fault(how=How.EXCEPTION, node="n1", rank=0, step=101, error="a|b `c` <img> *d* [e](f) _g_ # h", fingerprint="f")
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=evil))
    leader.end_attempt()
    shown = markdown(tale_of(leader.lines))
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(rows) >= 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert r"a\|b \`c\` \<img\> \*d\* \[e\](f) \_g\_ \# h" in shown


def test_json_is_read_back_as_it_was() -> None:
    tale = tale_of(hang_and_crash())
    assert msgspec.json.decode(msgspec.json.encode(tale), type=Tale) == tale


def test_hundreds_of_incidents_are_not_all_told(leader) -> None:
    lines = hang_and_crash()
    tale = tale_of(lines)
    many = msgspec.structs.replace(tale, incidents=tuple(replace(tale.incidents[0], number=n) for n in range(1, 41)))
    shown = text(many)
    assert shown.count("\n\nincident ") == 12
    assert "28 older ones are not shown, the dearest of them incident 1" in " ".join(shown.split())


# The folder of evidence ---------------------------------------------------------------------------------------------------


STACK = """Current thread 0x00007f7c95297b80 (most recent call first):
  File "/home/me/train.py", line 41 in forward
  File "/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1500 in _call_impl
  File "/runs/demo/1/worker/ftsup_worker/shim.py", line 145 in _run
"""


def test_one_incident_alone_has_the_stack_of_its_rank_and_what_is_missing(leader, tmp_path) -> None:
    node = tmp_path / "n2"
    node.mkdir()
    (node / "stacks.3.txt").write_text(STACK)
    (node / "node.json").write_text('{"missing": ["no stack of rank 2: its process is stopped"]}')
    (tmp_path / "outside").symlink_to("/etc/passwd")
    (tmp_path / "incident.json").write_text('{"sentence": "rank 3 hangs"}')
    found = evidence.look(tmp_path)
    assert found
    assert (found.files, found.stacks, found.sentence) == (3, ("n2/stacks.3.txt",), "rank 3 hangs")
    hang(leader)
    shown = text(tale_of(leader.lines, found={1: found}), alone=True)
    assert "    /home/me/train.py:41 in forward" in shown
    assert "module.py:1500 in _call_impl" in shown
    assert "ftsup_worker" not in shown
    assert "not there: no stack of rank 2: its process is stopped" in shown
    assert max(map(len, (line for line in shown.splitlines() if str(tmp_path) not in line))) <= 80


def test_a_folder_that_is_torn_missing_or_no_folder(tmp_path) -> None:
    assert evidence.look(tmp_path / "none") is None
    (tmp_path / "incident.json").write_text('{"sentence')
    assert evidence.look(tmp_path) == Evidence(path=str(tmp_path), files=1)
    (tmp_path / "file").touch()
    assert evidence.look(tmp_path / "file") is None


def test_a_real_run_is_told_in_its_first_lines() -> None:
    """The demo's: times as its supervisors measured them, and the hang's line of code from its ranks' own stacks."""
    log = Path(__file__).parents[1] / "data" / "runs" / "demo" / "events.jsonl"
    tale = tale_of(eventlog.stream(log, []))
    assert list(head(tale))[1:3] == [
        "job 1: 4 attempts in 2 grants, 2 incidents, at step 120, in 2 min 13 s",
        "20 % of that time was training; most of the rest: start-up and end took 46 s (35 %), hangs took 27 s (20 %)",
    ]
    hang, crash, requeue = tale.incidents
    assert (hang.where, hang.waited, hang.replayed) == ("demo_train.py:101 in strike", (0, 1, 3), 0)
    assert (crash.fault, crash.waited, crash.followed, crash.replayed) == (
        "rank 3 on mock2 was ended by SIGKILL at step 58",
        (1,),
        (0, 2),
        8,
    )
    assert (requeue.name, requeue.rule, requeue.replayed) == ("requeue", "elsewhere", 6)
    assert tale.step_s == pytest.approx(0.2177, abs=0.001)
