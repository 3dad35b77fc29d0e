"""The evidence of an attempt on one node, as files in one folder: stacks, beats, processes, last words, the node itself.

Runs as a process of its own (`python -m ftsup.incident`), with a deadline that its starter keeps: reading /proc may hang, and
evidence is never worth a hung supervisor. Everything is capped. Stacks come first: they are what a person asks for.
"""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path

import msgspec

from ftsup.events import Fault, How
from ftsup.incident import stacks
from ftsup.monitors import faults, heartbeat, memory, procs
from ftsup.monitors.exits import records
from ftsup.worker import places
from ftsup.worker.places import STACK_SIGNAL

LOG_CAP = 64 * 1024
STACK_CAP = 1024 * 1024
STACK_ROUNDS = 40
ROUND_S = 0.05
"""A stack is written within milliseconds, on a crowded machine within a second; a process in state T or D is not asked: it never writes."""
CHILDREN = 16
CHILD_ROUNDS = 8
"""Of each rank so many children are asked, one after another, since they write into the rank's own file. Each is waited for so long at
least; what the others do not need of it is for those that are slow."""
FACTS = ("/proc/loadavg", "/proc/meminfo", "/proc/pressure/io", "/proc/pressure/memory")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to collect, and where to."""

    node: str
    epoch: str
    beats: str
    out: str
    folder: str
    quiet: tuple[int, ...] = ()
    """Ranks that are known to stand still."""


class ChildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One process that a rank forked: a data loader's worker, mostly."""

    pid: int
    process: str
    wchan: str = ""
    where: str = ""
    works: bool = False
    """A data loader's worker, and not because it has nothing to do."""


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in `node.json`."""

    rank: int
    pid: int
    process: str
    phase: str
    beats: int
    step: int | None
    activity: int
    wchan: str
    where: str = ""
    waits: bool = False
    stack: bool = False
    awaits_loader: bool = False
    children: tuple[ChildFacts, ...] = ()


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`node.json`."""

    node: str
    epoch: str
    ranks: tuple[RankFacts, ...]
    facts: dict[str, str]
    disks: dict[str, str]
    missing: tuple[str, ...]


def collect(job: Job) -> list[Fault]:
    """Write the folder; what it adds to what is known of the ranks."""
    folder, beats = Path(job.folder), Path(job.beats)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing: list[str] = []
    sights = heartbeat.sights(beats)
    texts = _stacks(beats, sights, missing)
    ended = {rank: faults.of_record(record, job.node) for rank, record in records(beats).items()}
    children = _children(beats, sights, texts, folder)
    ranks = tuple(_rank(sight, texts.get(rank, ""), children.get(rank, ())) for rank, sight in sights.items())
    for rank, text in texts.items():
        (folder / f"stacks.{rank}.txt").write_text(text)
    for rank, sight in sights.items():
        _copy(Path("/proc") / str(sight.pid) / "status", folder / f"status.{rank}.txt", LOG_CAP)
        _copy(places.out_path(Path(job.out), rank), folder / f"log.{rank}.txt", LOG_CAP)
        _copy(places.nccl_path(Path(job.out), rank), folder / f"nccl.{rank}.txt", LOG_CAP)
        _copy(places.exit_path(beats, rank), folder / f"exit.{rank}.json", LOG_CAP)
    for name in ("torchrun.out", "torchrun.err"):
        _copy(Path(job.out) / name, folder / f"{name}.txt", LOG_CAP)
    told = NodeFacts(
        node=job.node,
        epoch=job.epoch,
        ranks=ranks,
        facts={path: _text(path) for path in FACTS} | memory.facts(),
        disks=_disks(job),
        missing=tuple(missing),
    )
    (folder / "node.json").write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1))
    alive = [_fault(facts, job.node) for facts in ranks if facts.rank not in ended and _tells(facts)]
    return [fault for fault in ended.values() if fault.how is not How.RETURNED] + alive


def _tells(facts: RankFacts) -> bool:
    return facts.process == procs.State.DISK.value or (facts.process != procs.State.GONE.value and facts.where != "")


def _fault(facts: RankFacts, node: str) -> Fault:
    if facts.process == procs.State.DISK.value:
        how, error = How.STORAGE, _in_kernel(facts.wchan)
    else:
        how, error = How.WAITING if facts.waits else How.QUIET, _awaited(facts)
    return Fault(how=how, node=node, rank=facts.rank, step=facts.step, phase=facts.phase, error=error, where=facts.where)


def _in_kernel(wchan: str) -> str:
    return "in state D" + (f" at {wchan}" if wchan not in ("", "0") else "")


def _awaited(facts: RankFacts) -> str:
    """Where the data loader's worker stands for which the rank waits."""
    if not facts.awaits_loader:
        return ""
    for child in facts.children:
        if child.process == procs.State.DISK.value:
            return f"waits for its data loader's worker {child.pid}, which is {_in_kernel(child.wchan)}"
        if child.process == procs.State.STOPPED.value:
            return f"waits for its data loader's worker {child.pid}, which is stopped"
        if child.works:
            return f"waits for its data loader's worker {child.pid}, which stands at {child.where}"
    return "waits for its data loader"


def _children(
    beats: Path, sights: dict[int, heartbeat.RankSight], texts: dict[int, str], folder: Path
) -> dict[int, tuple[ChildFacts, ...]]:
    """What the children of those ranks do that do not wait in a collective. Forked ones inherit the rank's handler, and its file."""
    rows = {rank: procs.below(sights[rank].pid)[:CHILDREN] for rank, text in texts.items() if not stacks.waits(stacks.main_thread(text))}
    found: dict[int, list[ChildFacts]] = {rank: [] for rank in rows}
    left, turns = CHILDREN * CHILD_ROUNDS, max(map(len, rows.values()), default=0)
    for turn in range(turns):
        now = {rank: row[turn] for rank, row in rows.items() if turn < len(row)}
        able = {rank: child for rank, child in now.items() if child.state is procs.State.RUNNING and procs.catches(child.pid, STACK_SIGNAL)}
        said, spent = _answers(beats, able, rounds=min(left - CHILD_ROUNDS * (turns - turn - 1), STACK_ROUNDS))
        left -= spent
        for rank, child in now.items():
            frames = stacks.main_thread(said.get(rank, ""))
            if rank in said:
                (folder / f"stacks.{rank}.{child.pid}.txt").write_text(said[rank])
            wchan, works = _text(f"/proc/{child.pid}/wchan"), stacks.works_for_loader(frames)
            facts = ChildFacts(pid=child.pid, process=child.state.value, wchan=wchan, where=stacks.where(frames), works=works)
            found[rank].append(facts)
    return {rank: tuple(children) for rank, children in found.items()}


def _rank(sight: heartbeat.RankSight, text: str, children: tuple[ChildFacts, ...]) -> RankFacts:
    frames = stacks.main_thread(text)
    return RankFacts(
        rank=sight.rank,
        pid=sight.pid,
        process=sight.process.value,
        phase=sight.phase.name.lower(),
        beats=sight.beats,
        step=sight.step,
        activity=sight.activity,
        wchan=_text(f"/proc/{sight.pid}/wchan") if sight.pid else "",
        where=stacks.where(frames),
        waits=stacks.waits(frames),
        stack=bool(frames),
        awaits_loader=stacks.awaits_loader(frames),
        children=children,
    )


def _stacks(beats: Path, sights: dict[int, heartbeat.RankSight], missing: list[str]) -> dict[int, str]:
    """Ask those ranks that catch the signal, and read what they write; a process without the handler would die of it."""
    able: dict[int, procs.Process] = {}
    for rank, sight in sights.items():
        process = procs.look(sight.pid) if sight.pid else None
        if process is None or process.started != sight.started or sight.process is not procs.State.RUNNING:
            missing.append(f"no stack of rank {rank}: its process is {sight.process.value}")
        elif not procs.catches(sight.pid, STACK_SIGNAL):
            missing.append(f"no stack of rank {rank}: it has no handler for it yet")
        else:
            able[rank] = process
    found, _ = _answers(beats, able, rounds=STACK_ROUNDS)
    missing += [f"no stack of rank {rank}: it did not answer" for rank in able if rank not in found]
    return found


def _answers(beats: Path, asked: dict[int, procs.Process], *, rounds: int) -> tuple[dict[int, str], int]:
    """What one process a rank writes into the rank's file when it is asked, and how many rounds that took.

    Those that write nothing in time are left out.
    """
    paths = {rank: places.stacks_path(beats, rank) for rank in asked}
    before = {rank: path.stat().st_size if path.exists() else 0 for rank, path in paths.items()}
    for process in asked.values():
        procs.strike(process, STACK_SIGNAL)
    sizes, spent = dict(before), 0
    while asked and spent < rounds:
        spent += 1
        select.select([], [], [], ROUND_S)
        grown = {rank: path.stat().st_size for rank, path in paths.items()}
        settled = all(size > before[rank] and size == sizes[rank] for rank, size in grown.items())
        sizes = grown
        if settled:
            break
    found = {}
    for rank, path in paths.items():
        with path.open("rb") as file:
            file.seek(before[rank])
            text = file.read(STACK_CAP).decode(errors="replace")
        if text:
            found[rank] = text
    return found, spent


def _disks(job: Job) -> dict[str, str]:
    """Free space where it matters."""
    found = {}
    for path in {job.beats, job.out}:
        try:
            usage = shutil.disk_usage(path)
        except OSError as error:
            found[path] = str(error)
        else:
            found[path] = f"{usage.free} of {usage.total} bytes free"
    return found


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - one read of a /proc file
            return file.read(LOG_CAP).decode(errors="replace").strip()
    except OSError:
        return ""


def _copy(source: Path, target: Path, cap: int) -> None:
    """The last `cap` bytes of a file, if there is one."""
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > cap:
                file.seek(size - cap)
            data = file.read(cap)
    except OSError:
        return
    if data:
        target.write_bytes(data)
