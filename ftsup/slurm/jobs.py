"""Slurm's plain text into our values: jobs, nodes, settings, durations, signals. 22.05 to 24.11 print alike here.

The foreign words become ours in one table each, with UNKNOWN for what we do not know. Robust against what sites put around
Slurm's commands (banners, warnings); what is not an answer is Unreadable, never an empty one. It runs nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from datetime import datetime

import msgspec

from ftsup.errors import Unreadable
from ftsup.ports import Job, JobState, Node, NodeState, Partition
from ftsup.slurm.hostlist import NOTHING, expand

JOB_STATES = {
    **{state.value: state for state in JobState if state is not JobState.GONE},
    # Flags of a state are printed *instead* of it. Where its base can be only one thing it is said here.
    "CONFIGURING": JobState.RUNNING,  # has its nodes, which are being made ready
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "STOPPED": JobState.SUSPENDED,  # by SIGSTOP; keeps its nodes
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    # COMPLETING hides whether the job ends or is being requeued, and STAGE_OUT likewise: UNKNOWN, and `completing`.
}
COMPLETING = {"COMPLETING", "STAGE_OUT"}
FINISHED = frozenset(JobState) - {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN, JobState.GONE}
"""How a job ends."""

NODE_SUFFIXES = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "%": "POWERING_DOWN", "$": "MAINTENANCE", "@": "REBOOT", "^": "REBOOT"}
"""Letters after a node's state; `#` (powering up), `!` and `-` (planned) change nothing for us."""
NODE_WORDS: tuple[tuple[NodeState, frozenset[str]], ...] = (  # read from the top: the first row with a word of the node's wins
    (
        NodeState.DOWN,
        frozenset({"DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
        | {"INVAL", "INVALID", "INVALID_REG", "FUTURE"},
    ),
    (
        NodeState.DRAINED,
        frozenset({"DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE", "BLOCKED"})
        | {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"},
    ),
    (NodeState.UP, frozenset({"IDLE", "MIXED", "ALLOCATED", "ALLOC", "MIX", "COMPLETING", "COMP", "RESERVED"})),
)

_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w/:&.-]*)=")
_FREE_TEXT = {"JobName", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "SubmitLine", "Comment", "AdminComment", "SystemComment"}
_FREE_TEXT |= {"Extra", "OS"}
"""What people write: the value goes to the end of its line, and no field is looked for in it."""
_ONE_LINE = re.compile(r"\s(?:Job)?State=")
"""In a record's first line: it was printed with `--oneliner`, and no empty line follows."""
_SETTING = re.compile(r"([A-Za-z]\w*(?:\[\d+\])?)\s*= ?(.*)")
_AS_OF = "Configuration data as of"
_LAST_OF_CONFIG = "Slurmctld("
_DURATION = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
YEAR_S = 300 * 86400.0
"""An end farther away than this is the one that Slurm invents."""
_NO_DURATION = {"UNLIMITED", "INFINITE", "INVALID", "N/A", "NONE", "UNKNOWN", "NOT_SET", "PARTITION_LIMIT", ""}
_GPUS = re.compile(r"(?:^|,)gpu(?::[^,:()]+)?:(\d{1,4})(?=[(,]|$)", re.ASCII)
_SECONDS = re.compile(r"(\d+)(?:\s*sec)?", re.ASCII)
_LAST = re.compile(r"   (TresPer(?:Node|Job|Socket|Task))=(\S+)")
"""The only fields below a job's paths that we read: 22.05 to 24.11 print each on a line of its own."""
_UNCLEAR = ("Reservation", "TresPerJob", "TresPerSocket", "TresPerTask", "ClusterFeatures")
_SIGNAL = re.compile(r"(?:([BR]{1,2}):)?(\w+)(?:@(\d{1,5}))?", re.IGNORECASE | re.ASCII)
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?", re.ASCII)
_SUBMITTED = re.compile(r"(\d{1,10})(?:;[\w.-]+)?", re.ASCII)


class WarningSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What `--signal=[B:]USR1[@120]` asks for."""

    number: int
    lead_s: float = 60.0
    batch: bool = False
    """To the batch shell alone; without it to the steps, and not to the batch shell."""


def job_id(text: str) -> str:
    """A job id as scontrol takes it (`123`, `120_7`), or ValueError: it goes into argument lists."""
    if not _JOB_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not a job id; allowed is a number such as 123, or 120_7 for an array task")
    return text


def parse_submitted(text: str) -> str:
    """The job id in what `sbatch --parsable` printed; a site's wrapper may have printed more around it."""
    found = [match[1] for line in text.splitlines() if (match := _SUBMITTED.fullmatch(line.strip()))]
    if not found:
        raise Unreadable(
            f"sbatch took the script and printed no job id, but {shortened(text)}",
            hint="the job may be in the queue: look with squeue before submitting again",
        )
    return found[-1]


def parse_jobs(text: str, *, now: str = "") -> list[Job]:
    """Every job in what `scontrol show job` printed. `now` is Slurm's own time, from `parse_as_of`, written the same way."""
    return [_job(fields, now=now) for fields in _records(text, first="JobId")]


def parse_job(text: str, *, wanted: str, now: str = "") -> Job:
    """The job of this id. An array's bare id prints its tasks: then the first. A task's own number prints it as `120_7`."""
    found = parse_jobs(text, now=now)
    same = [job for job in found if job.job_id == wanted] or [job for job in found if job.job_id.partition("_")[0] == wanted]
    if same or len(found) == 1:
        return (same or found)[0]
    raise Unreadable(f"scontrol show job {wanted} did not print it, but {shortened(text)}")


def parse_nodes(text: str) -> list[Node]:
    """Every node in what `scontrol show node` printed."""
    return [_node(fields) for fields in _records(text, first="NodeName")]


def parse_partitions(text: str) -> list[Partition]:
    """Every partition in what `scontrol show partition` printed."""
    return [_partition(fields) for fields in _records(text, first="PartitionName")]


def parse_config(text: str) -> dict[str, str]:
    """What `scontrol show config` printed, as it is: `KillWait`: `30 sec`."""
    found = {match[1]: match[2].strip() for line in text.splitlines() if (match := _SETTING.fullmatch(line.rstrip()))}
    if "KillWait" not in found or not any(line.startswith(_LAST_OF_CONFIG) for line in text.splitlines()):
        raise Unreadable(f"scontrol show config printed no KillWait, or no end, but {shortened(text)}")
    return found


def parse_as_of(text: str) -> str:
    """Slurm's own time, from the head line of `scontrol show config`; empty where it has none."""
    heads = [line.strip().removeprefix(_AS_OF).strip() for line in text.splitlines() if line.strip().startswith(_AS_OF)]
    return heads[0] if heads else ""


def config_s(value: str) -> float | None:
    """Seconds of a setting such as `30 sec`; None when it is not a number of seconds."""
    found = _SECONDS.fullmatch(value.strip())
    return float(found[1]) if found else None


def duration_s(text: str) -> float | None:
    """Seconds of Slurm's `m`, `m:s`, `h:m:s`, `d-h`, `d-h:m`, `d-h:m:s`; None for its words such as UNLIMITED and INVALID."""
    text = text.strip()
    if text.upper() in _NO_DURATION:
        return None
    found = _DURATION.fullmatch(text)
    if not found:
        raise Unreadable(f"not a duration: {shortened(text)}")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = parts if len(parts) == 3 else (0, *parts, 0)[:3]  # noqa: PLR2004 - h:m:s
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def duration(seconds: float) -> str:
    """The way sbatch and scontrol take a duration, and print it: `1-02:03:04`."""
    days, rest = divmod(round(seconds), 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def signal_number(name: str) -> int:
    """The number of `USR1`, `SIGUSR1` or `10`, as this machine numbers signals; ValueError otherwise."""
    name = name.strip()
    if name.isascii() and name.isdigit() and int(name) in {int(known) for known in signal.valid_signals()}:
        return int(name)
    known = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
    if known is None:
        raise ValueError(f"{name!r} is no signal; allowed is a name such as SIGUSR1 or USR1, or a number")
    return int(known)


def warning_signal(option: str) -> WarningSignal:
    """What a value of `--signal` means; ValueError when it means nothing."""
    found = _SIGNAL.fullmatch(option.strip())
    if not found:
        raise ValueError(f"{option!r} is no --signal; allowed is [B:]<signal>[@<seconds before the end>], such as SIGUSR1@120")
    return WarningSignal(number=signal_number(found[2]), lead_s=float(found[3] or 60), batch="B" in (found[1] or "").upper())


def _records(text: str, *, first: str) -> Iterator[dict[str, str]]:
    """The records of a `scontrol show`: each begins with a line of the field `first`; what comes before is not Slurm's. An empty
    line ends each: one without it was cut, and what it lacks must not be read as "none".
    """
    fields: dict[str, str] | None = None
    whole = True
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            if fields is not None:
                yield _whole(fields, whole=whole)
            fields = {}
        elif not line.strip():
            whole = whole or not line
            continue
        elif not line.startswith(" ") or (first == "JobId" and "UserId" not in (fields or ()) and not line.startswith("   UserId=")):
            continue  # a banner, or the rest of a job name with a line break in it, whatever that spells: Slurm's lines are indented
        if fields is not None:
            whole = line.startswith(first) and bool(_ONE_LINE.search(line))
            if "Command" in fields:  # what follows in a job is paths, and what people wrote, on several lines if they like; and this
                fields |= {found[1]: found[2]} if (found := _LAST.fullmatch(line)) and found[1] not in fields else {}
                continue
            for key, value in _fields(line, free_reason=first == "NodeName"):
                fields.setdefault(key, value)
    if fields is not None:
        yield _whole(fields, whole=whole)


def _whole(fields: dict[str, str], *, whole: bool) -> dict[str, str]:
    if not whole:
        raise Unreadable(f"scontrol's answer ends in the middle: {shortened(str(fields))}")
    return fields


def _fields(line: str, *, free_reason: bool) -> Iterator[tuple[str, str]]:
    at = 0
    while found := _FIELD.search(line, at):
        key, start = found[1], found.end()
        following = _FIELD.search(line, start)
        if key in _FREE_TEXT or (key == "Reason" and free_reason) or not following:
            yield key, line[start:].strip()
            return
        at = following.start()
        yield key, line[start:at].strip()


def _job(fields: dict[str, str], *, now: str) -> Job:
    try:
        word = fields["JobState"].split()[0]
        own_id, array = fields["JobId"], fields.get("ArrayTaskId", "")
        code, _, number = fields.get("ExitCode", "").partition(":")
        start = fields.get("StartTime", "")
        state = JOB_STATES.get(word, JobState.UNKNOWN)
        return Job(
            job_id=f"{fields['ArrayJobId']}_{array}" if array.isdigit() else job_id(own_id),
            state=state,
            completing=word in COMPLETING,
            reason="" if fields.get("Reason", "None") in NOTHING else fields["Reason"],
            restarts=int(fields["Restarts"]),
            nodes=expand(fields.get("NodeList", "")),
            excluded=expand(fields.get("ExcNodeList", "")),
            batch_host=fields.get("BatchHost", ""),
            num_nodes=int(fields["NumNodes"].split("-")[0]),
            run_s=duration_s(fields["RunTime"]) or 0.0,
            limit_s=duration_s(fields["TimeLimit"]),
            ends_in_s=_ends_in_s(fields, now) if state is JobState.RUNNING else None,
            preempted=fields.get("PreemptTime", "None") not in NOTHING,
            starts_in_s=_between(now, start) if state is JobState.PENDING else None,
            exit_code=int(code) if code else None,
            exit_signal=int(number) or None if number else None,
            requeueable=fields.get("Requeue", "1") == "1",
            name=fields.get("JobName", ""),
            partition=fields.get("Partition", ""),
            constraint=_said(fields, "Features"),
            gres=_said(fields, "TresPerNode"),
            required=expand(fields.get("ReqNodeList", "")),
            unclear=next((f"{name}={text}" for name in _UNCLEAR if (text := _said(fields, name))), ""),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise Unreadable(f"scontrol show job printed a job that we cannot read ({error}): {shortened(str(fields))}") from error


def _node(fields: dict[str, str]) -> Node:
    if "State" not in fields:
        raise Unreadable(f"scontrol show node printed a node without its state: {shortened(str(fields))}")
    raw = fields["State"].split()[0] if fields["State"] else ""
    reason = fields.get("Reason", "")
    cpus = fields.get("CPUTot", "")
    return Node(
        name=fields["NodeName"],
        state=node_state(raw),
        raw=raw,
        reason="" if reason in NOTHING else reason,
        gpus=gpus_in(fields.get("Gres", "")),
        cpus=int(cpus) if cpus.isdigit() else 0,
        features=tuple(filter(None, _said(fields, "ActiveFeatures").split(","))),
        gres=_said(fields, "Gres"),
    )


def _said(fields: dict[str, str], name: str) -> str:
    return "" if (text := fields.get(name, "")) in NOTHING else text


def gpus_in(gres: str) -> int:
    """How many GPUs a node's `Gres` names: `gpu:4`, `gpu:a100:4(S:0-1),shard:16`."""
    return sum(int(found[1]) for found in _GPUS.finditer(gres))


def _partition(fields: dict[str, str]) -> Partition:
    accounts = fields.get("AllowAccounts", "ALL")
    try:
        return Partition(
            name=fields["PartitionName"],
            default=fields.get("Default") == "YES",
            up=fields["State"] == "UP",
            nodes=expand(fields.get("Nodes", "")),
            limit_s=duration_s(fields.get("MaxTime", "UNLIMITED")),
            accounts=() if accounts in {"ALL", *NOTHING} else tuple(accounts.split(",")),
            preempt_mode=fields.get("PreemptMode", ""),
            grace_s=config_s(fields.get("GraceTime", "")) or 0.0,
        )
    except (KeyError, ValueError) as error:
        raise Unreadable(f"scontrol show partition printed one that we cannot read ({error}): {shortened(str(fields))}") from error


def node_state(raw: str) -> NodeState:
    """What a node in this state (`IDLE+DRAIN`, `DOWN*`, `mixed-`) can do for us."""
    words: set[str] = set()
    for part in raw.upper().split("+"):
        name = part.rstrip("*~#%$@^!-")
        words |= {name, *(NODE_SUFFIXES.get(letter, "") for letter in part[len(name) :])}
    return next((state for state, known in NODE_WORDS if words & known), NodeState.UNKNOWN)


def _ends_in_s(fields: dict[str, str], now: str) -> float | None:
    """From the controller's own now to EndTime. Without a limit that is a year, and says nothing.

    Where that now is not known it is the run time after the start, by the clock of the host that was asked: scontrol counts it itself.
    """
    start, already_s = fields.get("StartTime", ""), 0.0
    if fields.get("SuspendTime", "None") not in NOTHING:  # resumed then, after having run so long
        start, already_s = fields["SuspendTime"], float(fields.get("SecsPreSuspend", "0"))
    whole_s = _between(start, fields.get("EndTime", ""))
    if whole_s is None or (duration_s(fields["TimeLimit"]) is None and whole_s > YEAR_S):
        return None
    if now and (left_s := _between(now, fields["EndTime"])) is not None:
        return left_s
    return max(whole_s - (duration_s(fields["RunTime"]) or 0.0) + already_s, 0.0)


def _between(now: str, then: str) -> float | None:
    """Seconds from one of Slurm's times to another, both epoch seconds or both ISO; None when one of them says nothing."""
    try:
        gap = int(then) - int(now) if then.isdigit() else (datetime.fromisoformat(then) - datetime.fromisoformat(now)).total_seconds()
    except ValueError:
        return None
    return max(0.0, float(gap))


def shortened(text: str, *, most: int = 200) -> str:
    """A text on one line for a message, cut."""
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    return repr(line if len(line) <= most else line[: most - 3] + "...") if line else "nothing"
