"""What sbatch and salloc ask for: their options as a job, and what the controller looks at before it takes one."""

from __future__ import annotations

import re
from pathlib import Path

from ftsup.errors import FtsupError
from ftsup.mockslurm import options, rules
from ftsup.mockslurm.model import JobRec, World
from ftsup.mockslurm.options import Parsed, fail
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import expand

REFUSED = {"sbatch": "Batch job submission failed", "salloc": "Job submit/allocate failed"}
"""How each of them begins to say no."""


def job(given: Parsed, *, program: str, name: str, script: str = "(null)") -> JobRec:
    """The job that these options describe, not yet numbered; `name`: where they give it none."""
    per_node = _number(given, "ntasks-per-node", 0, program=program)
    tasks = _number(given, "ntasks", 0, program=program)
    nodes = _number(given, "nodes", -(-tasks // per_node) if tasks and per_node else 1, program=program)
    workdir = str(Path.cwd() / given.get("chdir"))
    shown = {key: value for key, value in given.values.items() if key != "wrap"}
    made = JobRec(
        job=0,
        name=given.get("job-name") or name,
        num_nodes=nodes,
        submit_at=0,
        eligible_at=0,
        options=shown | {"submit_dir": str(Path.cwd())},
        script=script,
        words=given.rest,
        workdir=workdir,
        append=given.get("open-mode", "truncate").startswith("a"),
        tasks_per_node=per_node or max(1, -(-tasks // nodes)),
        requeue=not given.has("no-requeue"),
        no_kill=given.has("no-kill") and given.get("no-kill") != "off",
        held=given.has("hold"),
    )
    _set_times(made, given, program=program)
    _set_lists(made, given, program=program)
    return made


def _number(given: Parsed, name: str, default: int, *, program: str) -> int:
    text = given.get(name).split("-")[0]
    if not text:
        return default
    if not text.isdigit() or not int(text):
        fail(
            program,
            f'"{given.get(name)}" is not a valid node count' if name == "nodes" else f'Invalid numeric value "{text}" for --{name}.',
        )
    return int(text)


def _set_times(job: JobRec, given: Parsed, *, program: str) -> None:
    """Time limit and warning signal."""
    if given.has("time"):
        try:
            job.limit_s = jobs.duration_s(given.get("time")) or None
        except FtsupError:
            fail(program, "Invalid --time specification", code=255)
    if given.has("signal"):
        try:
            warning = jobs.warning_signal(given.get("signal"))
        except ValueError:
            fail(program, "Invalid --signal specification", code=255)
        job.warn_signal, job.warn_s, job.warn_batch = warning.number, warning.lead_s, warning.batch


def _set_lists(job: JobRec, given: Parsed, *, program: str) -> None:
    """The nodes that it wants and does not want, the jobs that it waits for."""
    try:
        job.excluded, job.required = list(expand(given.get("exclude"))), list(expand(given.get("nodelist")))
    except FtsupError:
        fail(program, f"{REFUSED[program]}: {rules.UNKNOWN_NODE}")
    for clause in filter(None, given.get("dependency").replace("?", ",").split(",")):
        kind, _, numbers = clause.partition(":")
        if kind not in {"after", "afterany", "afterok", "afternotok"} or not re.fullmatch(r"\d+(_\d+)?(:\d+(_\d+)?)*", numbers):
            fail(program, f"{REFUSED[program]}: Job dependency problem")
        job.after += [(kind, one) for one in numbers.split(":")]


def check(world: World, given: Parsed, job: JobRec, *, program: str) -> None:
    """What the controller looks at before it takes a job."""
    rules.check_nodes(world, [*job.excluded, *job.required])
    job.partition = given.get("partition") or world.settings.partition
    if job.partition not in {world.settings.partition, *world.settings.partitions}:
        options.say(program, f"invalid partition specified: {given.get('partition')}")
        raise rules.Refusal("Invalid partition name specified")
    rules.possible(world, job)
    if job.limit_s:
        job.limit_s = -(-job.limit_s // world.settings.limit_unit_s) * world.settings.limit_unit_s
