"""`scontrol`: show, requeue, hold, release, update, ping, hostnames. Each verb a function; each complaint as the real one makes it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from ftsup.errors import FtsupError
from ftsup.mockslurm import arrays, options, rules, show
from ftsup.mockslurm.client import CONNECT, VERSION, Away, controller
from ftsup.mockslurm.model import JobRec, PartitionRec, World
from ftsup.mockslurm.options import Parsed
from ftsup.mockslurm.store import Store
from ftsup.ports import JobState
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import compress, expand

UNEXPECTED = "Unexpected message received"


def main(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    given = options.parse(options.SCONTROL, arguments, mixed=True)
    if given.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    verb, words = (given.rest[0].lower() if given.rest else ""), given.rest[1:]
    verbs: dict[str, Callable[[Store, list[str], Parsed], int]] = {
        "show": _show,
        "requeue": _requeue,
        "requeuehold": _requeue_hold,
        "hold": _hold,
        "release": _release,
        "suspend": _suspend,
        "resume": _resume,
        "update": _update,
        "ping": _ping,
    }
    if verb in {"", "version"}:
        print(f"slurm-wlm {VERSION}")
        return 0
    if verb in {"requeue", "requeuehold", "hold", "release", "suspend", "resume", "update"} and not words:
        return _say(f"too few arguments for keyword:{verb}")
    known = [name for name in verbs if name == verb or (len(verb) > 2 and name.startswith(verb))]  # noqa: PLR2004 - as scontrol does
    if not known:
        return _say(f"invalid keyword: {verb}")
    return verbs[verb if verb in verbs else known[0]](store, words, given)


def _say(line: str) -> int:
    print(line, file=sys.stderr)
    return 1


# --- changes to jobs


def _each(store: Store, words: list[str], change: Callable[[World, JobRec, float], None], *, also: str = "") -> int:
    """Change every job that is named; each failure is told, the others are done."""
    code = 0
    for word in words:
        for text in word.split(","):
            problem = ""
            try:
                with controller(store) as (world, now):
                    try:
                        for job in arrays.named(world, text) or [rules.find(world, _number(text))]:
                            change(world, job, now)
                    except rules.Refusal as refusal:
                        problem = str(refusal)
            except Away:
                problem = UNEXPECTED
            if problem:
                code = _say(f"{problem} for job {text}")
                if also:
                    _say(f"{also}: {problem}")
    return code


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def _requeue(store: Store, words: list[str], _: Parsed) -> int:
    incomplete = bool(words) and words[0].lower() == "incomplete"
    return _each(store, words[incomplete:], lambda world, job, now: rules.requeue(world, job, now=now, incomplete=incomplete))


def _requeue_hold(store: Store, words: list[str], _: Parsed) -> int:
    incomplete = bool(words) and words[0].lower() == "incomplete"
    return _each(store, words[incomplete:], lambda world, job, now: rules.requeue(world, job, now=now, hold=True, incomplete=incomplete))


def _hold(store: Store, words: list[str], _: Parsed) -> int:
    return _each(store, words, lambda _world, job, _now: rules.hold(job), also="slurm_suspend error")


def _release(store: Store, words: list[str], _: Parsed) -> int:
    return _each(store, words, lambda _world, job, _now: rules.release(job), also="slurm_suspend error")


def _suspend(store: Store, words: list[str], _: Parsed) -> int:
    return _each(store, words, lambda _world, job, now: rules.suspend(job, now))


def _resume(store: Store, words: list[str], _: Parsed) -> int:
    return _each(store, words, lambda _world, job, now: rules.resume(job, now))


def _update(store: Store, words: list[str], _: Parsed) -> int:
    changes = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    if "nodename" in changes:
        return _update_nodes(store, changes)
    target = changes.pop("jobid", "") or changes.pop("job", "")
    for word in words:
        if word.partition("=")[0].lower() not in {"jobid", "job", *FIELDS}:
            _say(f"Update of this parameter is not supported: {word}")
            return _say("Request aborted")
    if not target:
        return _say("No job ID specified")
    return _each(store, [target], lambda world, job, now: _change(world, job, changes, now))


def _change(world: World, job: JobRec, changes: dict[str, str], now: float) -> None:
    for key, value in changes.items():
        FIELDS[key](world, job, value, now)


def _set_excluded(world: World, job: JobRec, value: str, _: float) -> None:
    rules.only_pending(job)
    names = _nodes(world, value)
    job.excluded = names


def _set_required(world: World, job: JobRec, value: str, _: float) -> None:
    rules.only_pending(job)
    job.required = _nodes(world, value)


def _nodes(world: World, text: str) -> list[str]:
    try:
        names = list(expand(text))
    except FtsupError:
        raise rules.Refusal(rules.UNKNOWN_NODE) from None
    rules.check_nodes(world, names)
    return names


def _set_start(_: World, job: JobRec, value: str, now: float) -> None:
    rules.only_pending(job)
    if value.startswith("now"):
        delay = value.removeprefix("now").removeprefix("+")
        job.eligible_at = now + (float(delay) if delay.isdigit() else 0)
    else:
        try:
            job.eligible_at = time.mktime(time.strptime(value, "%Y-%m-%dT%H:%M:%S"))
        except ValueError:
            raise rules.Refusal("Invalid time specification") from None
    job.start_at = job.eligible_at


def _set_limit(_: World, job: JobRec, value: str, _now: float) -> None:
    if job.over:
        raise rules.Refusal(rules.FINISHED)
    sign = value[:1] if value[:1] in "+-" else ""
    try:
        seconds = jobs.duration_s(value.removeprefix(sign))
    except FtsupError:
        raise rules.Refusal("Invalid time limit specification") from None
    if sign and seconds is not None:
        seconds = (job.limit_s or 0) + (seconds if sign == "+" else -seconds)
    job.limit_s = seconds
    if job.state is JobState.RUNNING:
        job.end_at = job.start_at + seconds if seconds else 0.0


def _set_requeue(_: World, job: JobRec, value: str, _now: float) -> None:
    if job.over:
        raise rules.Refusal(rules.FINISHED)
    job.requeue = value != "0"


def _set_priority(_: World, job: JobRec, value: str, _now: float) -> None:
    if value == "0":
        rules.hold(job)
    else:
        rules.release(job)


def _set_name(_: World, job: JobRec, value: str, _now: float) -> None:
    job.name = value


def _set_comment(_: World, job: JobRec, value: str, _now: float) -> None:
    job.options["comment"] = value


FIELDS: dict[str, Callable[[World, JobRec, str, float], None]] = {
    "excnodelist": _set_excluded,
    "reqnodelist": _set_required,
    "nodelist": _set_required,
    "starttime": _set_start,
    "eligibletime": _set_start,
    "timelimit": _set_limit,
    "requeue": _set_requeue,
    "priority": _set_priority,
    "jobname": _set_name,
    "name": _set_name,
    "comment": _set_comment,
}


def _update_nodes(store: Store, changes: dict[str, str]) -> int:
    """What an admin does to nodes."""
    state, reason = changes.get("state", "").lower(), changes.get("reason", "").strip("'\"")
    if state in {"down", "drain", "fail"} and not reason:
        return _say("You must specify a reason when DOWNING a node. Request denied")
    try:
        with controller(store) as (world, now):
            for name in expand(changes["nodename"]):
                if name not in world.nodes:
                    return _say("slurm_update error: Invalid node name specified")
                node = world.nodes[name]
                if state == "down":
                    rules.node_down(world, node, reason=reason, now=now)
                elif state in {"drain", "fail"}:
                    node.drain, node.reason, node.reason_at = True, reason, now
                elif state in {"resume", "idle", "undrain"}:
                    node.down = node.drain = False
                    node.reason = ""
                else:
                    return _say(f"Invalid input: state={state}\nRequest aborted")
    except Away:
        return _say(f"slurm_update error: {CONNECT}")
    return 0


# --- show


def _show(store: Store, words: list[str], given: Parsed) -> int:
    kind = words[0].lower() if words else ""
    name = words[1] if len(words) > 1 else ""
    if "=" in kind:
        kind, _, name = kind.partition("=")
    if kind.startswith("hostn"):
        print("\n".join(expand(name or os.environ.get("SLURM_JOB_NODELIST", ""))))
        return 0
    if kind.startswith("hostl"):
        print(compress(name.split(",")))
        return 0
    kinds = {"job": _show_jobs, "jobs": _show_jobs, "jobid": _show_jobs, "node": _show_nodes, "nodes": _show_nodes, "nodename": _show_nodes}
    if kind.startswith("conf"):
        return _show_config(store)
    if kind.startswith("part"):
        return _show_partition(store)
    if kind not in kinds:
        return _say(f"invalid entity:{kind} for keyword:show")
    return kinds[kind](store, name, given)


def _block(lines: list[str], given: Parsed) -> str:
    return " ".join(lines) if given.has("oneliner") else "\n".join([lines[0], *(f"   {line}" for line in lines[1:])]) + "\n"


def _show_jobs(store: Store, name: str, given: Parsed) -> int:
    try:
        with controller(store) as (world, now):
            wanted = arrays.named(world, name) if name else list(world.jobs.values())
            if name and not wanted:
                return _say("slurm_load_jobs error: Invalid job id specified")
            blocks = [_block(show.show_job(world, job, now=now, details=given.has("details")), given) for job in wanted]
    except Away:
        return _say(f"slurm_load_jobs error: {CONNECT}")
    print("\n".join(blocks) if blocks else "No jobs in the system")
    return 0


def _show_nodes(store: Store, name: str, given: Parsed) -> int:
    try:
        with controller(store) as (world, now):
            code, blocks = 0, []
            for node in expand(name) if name else world.nodes:
                if node not in world.nodes:
                    print(f"Node {node} not found")
                    code = 1
                else:
                    blocks.append(_block(show.show_node(world, world.nodes[node], now=now), given))
    except Away:
        return _say(f"slurm_load_node error: {CONNECT}")
    if blocks:
        print("\n".join(blocks))
    return code


def _show_config(store: Store) -> int:
    try:
        with controller(store) as (world, now):
            print(show.show_config(world, now=now, root=str(store.root)))
    except Away:
        return _say(f"slurm_load_ctl_conf error: {CONNECT}")
    return 0


def _show_partition(store: Store) -> int:
    try:
        with controller(store) as (world, _):
            parts = {world.settings.partition: PartitionRec(), **world.settings.partitions}
            for name, part in parts.items():
                lines = [
                    f"PartitionName={name}",
                    "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
                    f"Default={'YES' if name == world.settings.partition else 'NO'} GraceTime={part.grace_s:g}",
                    "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0",
                    f"Nodes={compress(world.nodes)}",
                    f"PriorityTier={part.tier} OverTimeLimit=NONE PreemptMode={part.preempt.value}",
                    f"State=UP TotalNodes={len(world.nodes)}",
                ]
                print("\n   ".join(lines) + "\n")
    except Away:
        return _say(f"slurm_load_partitions error: {CONNECT}")
    return 0


def _ping(store: Store, _words: list[str], _: Parsed) -> int:
    host = os.uname().nodename
    try:
        with controller(store):
            print(f"Slurmctld(primary) at {host} is UP")
            return 0
    except Away:
        print(f"Slurmctld(primary) at {host} is DOWN\n{'*' * 41}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n{'*' * 41}")
        return 1
