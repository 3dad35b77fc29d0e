"""`squeue`, `sinfo` and `scancel`: the commands that look at many jobs or nodes at once."""

from __future__ import annotations

import getpass
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ftsup.mockslurm import arrays, options, rules, show
from ftsup.mockslurm.client import CONNECT, VERSION, Away, controller
from ftsup.mockslurm.model import JobRec, NodeRec, Signal, World
from ftsup.mockslurm.options import Parsed
from ftsup.mockslurm.store import Store
from ftsup.ports import JobState
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import compress, expand

QUEUE_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
INFO_FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
INFO_NODE_FORMAT = "%N %.6D %.9P %6t"
_FIELD = re.compile(r"%(\.?)(\d*)([A-Za-z]|\{\w+\})")
_LONG = re.compile(r"(\w+)(?::(\.?)(\d*)(.*))?")

Fields = Mapping[str, tuple[str, Callable[[JobRec], str]]]


def _fit(text: str, right: str, width: str) -> str:
    """Pad and cut as Slurm does."""
    if not width:
        return text
    size = int(width)
    return text[:size].rjust(size) if right else text[:size].ljust(size)


def squeue(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    given = options.parse(options.SQUEUE, arguments)
    if given.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    try:
        with controller(store) as (world, now):
            words = [word for word in given.get("jobs").split(",") if word]
            wanted = [job.job for word in words for job in arrays.named(world, word)]
            if words and not wanted:
                print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
                return 1
            rows = [job for job in sorted(world.jobs.values(), key=_order) if _shown(job, given, wanted)]
            fields = show.queue_fields(world, now)
    except Away:
        print(f"slurm_load_jobs error: {CONNECT}", file=sys.stderr)
        return 1
    template = _long_format(given.get("Format")) if given.has("Format") else given.get("format", QUEUE_FORMAT)
    for line in _lines(template, rows, fields, head=not given.has("noheader")):
        print(line)
    return 0


def _order(job: JobRec) -> tuple[int, int]:
    """Pending ones first, held last among them, as squeue sorts."""
    return (0 if job.state is JobState.PENDING and not job.completing else 1, job.job)


def _shown(job: JobRec, given: Parsed, wanted: list[int]) -> bool:
    states = given.get("states").lower()
    word = show.state(job)
    if states and states != "all" and not {word.lower(), show.CODES[word].lower()} & set(states.split(",")):
        return False
    if not states and job.over:
        return False
    if given.has("user") and getpass.getuser() not in given.get("user").split(","):
        return False
    if given.has("name") and job.name not in given.get("name").split(","):
        return False
    return not wanted or job.job in wanted


def _long_format(text: str) -> str:
    """`JobID:.20,State,Reason:|` as letters; what follows the size is printed as it is, and without a size a field is whole."""
    parts = []
    for item in text.split(","):
        found = _LONG.fullmatch(item.strip())
        letter = show.LONG_NAMES.get(found[1].lower()) if found else None
        if found is None or letter is None:
            print(f"squeue: error: Invalid job format specification: {item.strip()}", file=sys.stderr)
            continue
        right, size, suffix = (part or "" for part in found.groups()[1:])
        parts.append(f"%{right}{size or ('' if suffix else '20')}{letter}{suffix}")
    return "".join(parts)


def _lines(template: str, rows: Sequence[JobRec], fields: Fields, *, head: bool) -> Iterator[str]:
    if head:
        yield _FIELD.sub(lambda match: _fit(fields[match[3]][0] if match[3] in fields else "", match[1], match[2]), template)
    for job in rows:
        yield _fill(template, job, fields)


def _fill(template: str, job: JobRec, fields: Fields) -> str:
    return _FIELD.sub(lambda match: _fit(fields[match[3]][1](job) if match[3] in fields else "", match[1], match[2]), template)


# --- sinfo


def sinfo(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    given = options.parse(options.SINFO, arguments)
    if given.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    try:
        with controller(store) as (world, _):
            groups = _groups(world, given)
            partition = world.settings.partition
    except Away:
        print(f"slurm_load_partitions: {CONNECT}", file=sys.stderr)
        return 1
    template = given.get("format") or (INFO_NODE_FORMAT if given.has("Node") else INFO_FORMAT)
    heads = {
        "N": "NODELIST",
        "D": "NODES",
        "P": "PARTITION",
        "t": "STATE",
        "T": "STATE",
        "E": "REASON",
        "a": "AVAIL",
        "l": "TIMELIMIT",
        "R": "PARTITION",
    }
    if not given.has("noheader"):
        print(_FIELD.sub(lambda match: _fit(heads.get(match[3], ""), match[1], match[2]), template))
    for word, nodes in groups:
        values = {
            "N": compress(node.name for node in nodes),
            "D": str(len(nodes)),
            "P": f"{partition}*",
            "R": partition,
            "t": show.SHORT.get(word, word),
            "T": word,
            "E": nodes[0].reason or "none",
            "a": "up",
            "l": "infinite",
        }
        print(_FIELD.sub(lambda match: _fit(values.get(match[3], ""), match[1], match[2]), template))  # noqa: B023 - used at once
    return 0


def _groups(world: World, given: Parsed) -> list[tuple[str, list[NodeRec]]]:
    """Rows: a node each with -N, else the nodes of one state."""
    names = expand(given.get("nodes")) or tuple(world.nodes)
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    if given.has("Node"):
        return [(show.node_word(world, node), [node]) for node in nodes]
    groups: dict[str, list[NodeRec]] = {}
    for node in nodes:
        groups.setdefault(show.node_word(world, node), []).append(node)
    return list(groups.items())


# --- scancel


def scancel(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    given = options.parse(options.SCANCEL, arguments, mixed=True)
    if given.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    for word in given.rest:
        if not re.fullmatch(r"\d+(_\d+)?(\.\d+)?", word):
            print(f"scancel: error: Invalid job id {word}", file=sys.stderr)
            return 1
    if not given.rest and not {"name", "jobname", "user", "me", "state", "partition"} & set(given.values):
        print("scancel: error: No job identification provided", file=sys.stderr)
        return 1
    number = 0
    if given.has("signal"):
        try:
            number = jobs.signal_number(given.get("signal"))
        except ValueError:
            print(f"Unknown job signal: {given.get('signal')}", file=sys.stderr)
            return 1
    try:
        with controller(store) as (world, now):
            for word in given.rest or [arrays.name(job) for job in world.jobs.values()]:
                job_text, _, step = word.partition(".")
                for job in arrays.named(world, job_text):
                    if _meant(job, given):
                        _cancel(job, given, number=number, step=step, now=now)
    except Away:
        for word in given.rest:
            print(f"scancel: error: Kill job error on job id {word}: {CONNECT}", file=sys.stderr)
        return 8
    return 0


def _meant(job: JobRec, given: Parsed) -> bool:
    if given.has("partition") and job.partition not in given.get("partition").split(","):
        return False
    name = given.get("name") or given.get("jobname")
    if name and job.name not in name.split(","):
        return False
    if given.has("user") and given.get("user") != getpass.getuser():
        return False
    state = given.get("state").upper()
    return not state or state in {show.state(job), show.CODES[show.state(job)]}


def _cancel(job: JobRec, given: Parsed, *, number: int, step: str, now: float) -> None:
    if job.over:
        return
    batch, full = given.has("batch"), given.has("full")
    if step:
        job.signals.append(Signal(number=number or signal.SIGKILL, step=int(step)))
    elif not number or (number == signal.SIGKILL and not batch):
        rules.cancel(job, now)
    elif job.state is JobState.RUNNING:
        job.signals.append(Signal(number=number, batch=batch or full, steps=not (batch or full), full=full))
