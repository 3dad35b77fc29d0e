"""Slurm's JSON into the same values as its plain text: jobs and nodes, in the layouts of 22.05 (numbers, words) and of 24.11 and
later (`{set, infinite, number}`, lists of words). What is unknown there is passed over; what is no answer is Unreadable, never an
empty one. It runs nothing.
"""

from __future__ import annotations

import msgspec

from ftsup.errors import Unreadable
from ftsup.ports import Job, JobState, Node
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import NOTHING, expand

Table = dict[str, object]

_ENDLESS = 0xFFFFFFFE
"""Slurm's 32-bit words for "not set" and "infinite" begin here; 22.05 prints them as they are."""
_MINUTE_S = 60.0


def parse_jobs(text: str, *, now_s: int | None = None) -> list[Job]:
    """Every job in what `squeue --json` or `scontrol show job --json` printed. 22.05's squeue prints all jobs, whatever was asked.

    `now_s`: Slurm's own time; without it a running job has run for 0 s, and a waiting one says no start.
    """
    return [_job(each, now_s=now_s) for each in _list(text, "jobs")]


def parse_nodes(text: str) -> list[Node]:
    """Every node in what `scontrol show node --json` printed, and 22.05's `sinfo --json`."""
    return [_node(each) for each in _list(text, "nodes")]


def said_at_s(text: str) -> int | None:
    """When Slurm's controller said this, by its own clock: 24.11 and later tell."""
    return _number(_document(text, "last_update").get("last_update"))


def _document(text: str, key: str) -> Table:
    """The object with this key; a site's wrapper may have printed lines before and after it."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    ends = [number for number, line in enumerate(lines, start=1) if line.rstrip().endswith("}")]
    for start in starts[:8]:
        for end in reversed(ends[-8:]):
            try:
                found = msgspec.json.decode("\n".join(lines[start:end]).encode("utf-8", "replace"))
            except msgspec.DecodeError:
                continue
            if isinstance(found, dict) and key in found:
                return found
    raise Unreadable(f"Slurm was asked for JSON with {key!r}, and printed {jobs.shortened(text)}")


def _list(text: str, key: str) -> list[Table]:
    document = _document(text, key)
    if errors := document.get("errors"):
        raise Unreadable(f"Slurm's JSON brings errors: {jobs.shortened(str(errors))}")
    found = document[key]
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Unreadable(f"{key!r} in Slurm's JSON is no list of objects: {jobs.shortened(str(found))}")
    return found


def _job(one: Table, *, now_s: int | None) -> Job:
    try:
        words = _words(one["job_state"])
        completing = bool(jobs.COMPLETING & set(words))
        state = JobState.UNKNOWN if completing else jobs.JOB_STATES.get(words[0], JobState.UNKNOWN)
        start, limit = _number(one.get("start_time")), _number(one.get("time_limit"))
        code, signal = _exit(one.get("exit_code"))
        reason = str(one.get("state_reason") or "None")
        return Job(
            job_id=_job_id(one),
            state=state,
            completing=completing,
            reason="" if reason in NOTHING else reason,
            restarts=_must(one["restart_cnt"]),
            nodes=expand(str(one.get("nodes") or "")),
            excluded=expand(str(one.get("excluded_nodes") or "")),
            batch_host=str(one.get("batch_host") or ""),
            num_nodes=_must(one["node_count"]),
            run_s=_ran_s(one, state=state, start=start, now_s=now_s),
            limit_s=None if limit is None else limit * _MINUTE_S,
            ends_in_s=_ends_in_s(one, limit=limit, now_s=now_s) if state is JobState.RUNNING else None,
            preempted=bool(_number(one.get("preempt_time"))),
            starts_in_s=max(0.0, float(start - now_s)) if state is JobState.PENDING and start and now_s else None,
            exit_code=code,
            exit_signal=signal,
            requeueable=one.get("requeue", True) is True,
            name=str(one.get("name") or ""),
            partition=str(one.get("partition") or ""),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise Unreadable(f"Slurm's JSON has a job that we cannot read ({error!r}): {jobs.shortened(str(one))}") from error


def _job_id(one: Table) -> str:
    array, task = _number(one.get("array_job_id")), _number(one.get("array_task_id"))
    return jobs.job_id(f"{array}_{task}" if array and task is not None else str(_must(one["job_id"])))


def _ran_s(one: Table, *, state: JobState, start: int | None, now_s: int | None) -> float:
    if not start or state is JobState.PENDING:
        return 0.0
    until = now_s if state in {JobState.RUNNING, JobState.UNKNOWN} else _number(one.get("end_time"))
    return max(0.0, float(until - start)) if until else 0.0


def _ends_in_s(one: Table, *, limit: int | None, now_s: int | None) -> float | None:
    end = _number(one.get("end_time"))
    if not end or now_s is None or (limit is None and end - now_s > jobs.YEAR_S):
        return None
    return max(0.0, float(end - now_s))


def _exit(value: object) -> tuple[int | None, int | None]:
    """Exit code and signal: of a wait status (22.05), or of an object."""
    if isinstance(value, dict):
        signal = value.get("signal")
        number = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else None
        return _number(value.get("return_code")) or 0, _number(number) or None
    status = _number(value)
    return (None, None) if status is None else (status >> 8 & 0xFF, status & 0x7F or None)


def _node(one: Table) -> Node:
    try:
        raw = "+".join([*_words(one["state"]), *(_words(one["state_flags"]) if one.get("state_flags") else [])])
        reason = str(one.get("reason") or "")
        return Node(
            name=str(one["name"]),
            state=jobs.node_state(raw),
            raw=raw,
            reason="" if reason in NOTHING else reason,
            gpus=jobs.gpus_in(str(one.get("gres") or "")),
            cpus=_number(one.get("cpus")) or 0,
        )
    except (KeyError, ValueError) as error:
        raise Unreadable(f"Slurm's JSON has a node that we cannot read ({error!r}): {jobs.shortened(str(one))}") from error


def _words(value: object) -> list[str]:
    """`"mixed"`, or `["MIXED", "DRAIN"]`."""
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"no state: {value!r}")
    return [str(word).upper() for word in words]


def _number(value: object) -> int | None:
    """A number, plain or as `{set, infinite, number}`; None: not set, or endless."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True and value.get("infinite") is not True else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _ENDLESS:
        return None
    return value


def _must(value: object) -> int:
    number = _number(value)
    if number is None:
        raise ValueError(f"no number: {value!r}")
    return number
