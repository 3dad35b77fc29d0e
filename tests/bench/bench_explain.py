"""How long `ftsup explain` and `status` take on the log of a run of months: 100,000 events over 60 grants, made by the leader's machine.

Judged by processor time, start of Python included: both are one process that does not wait, and the bench must hold on a busy machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from ftsup import events as ev
from ftsup.config import Config, to_json
from ftsup.events import Fault, How, WatchedBy
from tests.report.leader import NODES, Leader

ROOT = Path(__file__).parents[2]
EVENTS, GRANTS, ROUNDS = 100_000, 60, 5
EXPLAIN_S, STATUS_S = 2.0, 0.15


def months() -> Leader:
    """A day a grant: a minute's progress after the other, a checkpoint each half hour, a hang and a crash, and a requeue."""
    leader = Leader()
    a_grant = EVENTS // GRANTS
    for grant in range(GRANTS):
        leader.grant(grant, waited_s=3600.0 * (grant > 0))
        leader.after(120).launch(checkpoint=grant * 90000 or None)
        for minute in range(a_grant):
            if minute == a_grant // 3:
                leader.hang(at=grant * 90000 + minute * 60)
                again(leader, grant * 90000 + minute * 60 - 300)
            elif minute == a_grant // 2:
                fault = Fault(how=How.SIGNAL, node="n1", rank=0, step=grant * 90000 + minute * 60, signal="SIGKILL")
                leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=fault))
                again(leader, grant * 90000 + minute * 60 - 600)
            step_now = grant * 90000 + minute * 60
            known = {"phase": "step", "step": step_now, "beats": minute * 60 + 1, "by": WatchedBy.STEPS, "saving_s": 0.5}
            leader.after(60).take(ev.Progressed(node="n1", epoch=leader.epoch, **known))
            if minute % 30 == 29:
                leader.take(ev.Sealed(epoch=leader.epoch, name=f"step{step_now}", step=step_now, size_bytes=1 << 30))
        if grant < GRANTS - 1:
            leader.take(ev.Signalled(signal="SIGTERM"))
            leader.take(ev.SlurmSaid(state="PENDING", restarts=grant + 1))
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    return leader


def again(leader: Leader, checkpoint: int) -> None:
    leader.end_attempt()
    leader.after(60).launch(checkpoint=checkpoint)


def run_of(folder: Path, leader: Leader, *, lines: int | None = None) -> Path:
    run = folder / "months" / "20260102-030405-0001"
    run.mkdir(parents=True)
    (run / "config.json").write_bytes(to_json(Config(name="months", command=("train.py",))))
    (run / "jobs").write_text("7\n")
    (run / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines[:lines]))
    return folder


def took(*words: str, runs: Path) -> tuple[float, float]:
    """Processor and wall seconds of a command, the median of some."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # it would compile us at each start
    found = []
    for _ in range(ROUNDS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "ftsup", *words, "--runs-dir", str(runs)], cwd=ROOT, env=env, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began))
    return statistics.median(cpu for cpu, _ in found), statistics.median(wall for _, wall in found)


def main() -> int:
    leader, missed = months(), 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        long, short = run_of(Path(name) / "long", leader), run_of(Path(name) / "short", leader, lines=200)
        size_mb = (long / "months" / "20260102-030405-0001" / "events.jsonl").stat().st_size / 1e6
        print(f"{len(leader.lines)} events, {size_mb:.0f} MB, {len(leader.story.incidents)} incidents in {leader.story.grants} grants")
        for words, runs, limit_s in (
            (("explain",), long, EXPLAIN_S),
            (("explain", "--json"), long, EXPLAIN_S),
            (("status",), short, STATUS_S),
            (("status",), long, None),
        ):
            cpu_s, wall_s = took(*words, runs=runs)
            missed += limit_s is not None and cpu_s > limit_s
            of = "the long log" if runs is long else "200 events"
            limit = f" (limit {limit_s:g} s)" if limit_s else ""
            print(f"ftsup {' '.join(words):<15} of {of:<12} {cpu_s:6.2f} s of processor, {wall_s:6.2f} s by the clock{limit}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
