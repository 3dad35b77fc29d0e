"""`sbatch`: read the script and its options, make a job of them, copy script and environment."""

from __future__ import annotations

import getpass
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ftsup.mockslurm import arrays, options, request, rules
from ftsup.mockslurm.client import CONNECT, VERSION, Away, controller
from ftsup.mockslurm.model import BATCH, JobRec, Task, World
from ftsup.mockslurm.options import Parsed, fail
from ftsup.mockslurm.store import Store
from ftsup.mockslurm.text import instant
from ftsup.slurm.hostlist import compress

FROM_ENV = {
    "SBATCH_ACCOUNT": "account", "SBATCH_DEBUG": "verbose", "SBATCH_DISTRIBUTION": "distribution", "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export", "SBATCH_JOB_NAME": "job-name", "SBATCH_NO_KILL": "no-kill", "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal", "SBATCH_TIMELIMIT": "time", "SBATCH_GRES": "gres", "SBATCH_GPUS_PER_NODE": "gpus-per-node",
}  # fmt: skip
"""Variables of the submitting shell that override #SBATCH lines, and are overridden by the command line."""


def main(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    typed = options.parse(options.SBATCH, arguments)
    if typed.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    script, path, words = _script(typed)
    inside = options.parse(options.SBATCH, options.sbatch_lines(script))
    env = {name: os.environ[variable] for variable, name in FROM_ENV.items() if variable in os.environ}
    given = Parsed(values=_merge(inside.values, env, typed.values), rest=words)
    name = "wrap" if given.has("wrap") else Path(path).name if path != "(null)" else "sbatch"
    job = request.job(given, program="sbatch", name=name, script=path)
    try:
        tasks = arrays.parse(given.get("array"))[0] if given.has("array") else []
    except ValueError:
        fail("sbatch", "Batch job submission failed: Invalid job array specification")
    try:
        with controller(store) as (world, now):
            request.check(world, given, job, program="sbatch")
            if given.has("test-only"):
                _would_start(world, job, now)
                return 0
            first, spec = world.next_job, given.get("array")
            for number, task in arrays.numbered(spec, first) if tasks else [(first, None)]:
                one = msgspec.convert(msgspec.to_builtins(job), type=JobRec)  # a list of its own each
                one.job, one.array = number, task
                _admit(store, world, one, now, script=script, given=given)
            world.next_job += max(len(tasks), 1)
    except Away:
        if given.has("test-only"):
            print(f"allocation failure: {CONNECT}", file=sys.stderr)
            return 1
        fail("sbatch", f"Batch job submission failed: {CONNECT}")
    except rules.Refusal as refusal:
        if given.has("test-only"):
            print(f"allocation failure: {refusal}", file=sys.stderr)
            return 1
        fail("sbatch", f"Batch job submission failed: {refusal}")
    print(first if given.has("parsable") else f"Submitted batch job {first}")
    return 0


def _merge(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later ones win; of --requeue and --no-requeue the later too."""
    values: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            for pair in (("requeue", "no-requeue"),):
                if name in pair:
                    values = {key: kept for key, kept in values.items() if key not in pair}
            values[name] = value
    return values


def _script(typed: Parsed) -> tuple[str, str, list[str]]:
    """The script's text, its path, and its arguments."""
    if typed.has("wrap"):
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{typed.get('wrap')}\n", "(null)", []
    if typed.rest:
        name = typed.rest[0]
        try:
            data, path = Path(name).read_bytes(), str(Path.cwd() / name)
        except OSError:
            fail("sbatch", f"Unable to open file {name}")
    else:
        data, path = sys.stdin.buffer.read(), "(null)"
    text = data.decode("utf-8", "surrogateescape")
    if not text:
        fail("sbatch", "Batch script is empty!")
    if not text.startswith("#!"):
        fail(
            "sbatch",
            "This does not look like a batch script.  The first",
            "line must start with #! followed by the path to an interpreter.",
            "For instance: #!/bin/sh",
        )
    if "\0" in text:
        fail("sbatch", "The Slurm controller does not allow scripts that", "contain a NULL character '\\0'.")
    if "\r\n" in text:
        fail("sbatch", "Batch script contains DOS line breaks (\\r\\n)", "instead of expected UNIX line breaks (\\n).")
    return text, path, typed.rest[1:]


def _would_start(world: World, job: JobRec, now: float) -> None:
    """`--test-only`: one sentence, and nothing else happens."""
    if job.num_nodes > len(world.nodes):
        raise rules.Refusal(rules.IMPOSSIBLE)
    nodes = (rules.candidates(world, job) + [name for name in world.nodes if name not in job.excluded])[: job.num_nodes]
    cpus = (os.cpu_count() or 1) * job.num_nodes
    where = f"on nodes {compress(nodes)} in partition {job.partition}"
    print(f"sbatch: Job {world.next_job} to start at {instant(now)} using {cpus} processors {where}", file=sys.stderr)


def _admit(store: Store, world: World, job: JobRec, now: float, *, script: str, given: Parsed) -> None:
    """Number the job, copy what it needs, put it into the queue."""
    job.submit_at = job.eligible_at = now
    if given.get("begin").isdigit():
        job.eligible_at = float(given.get("begin"))
    folder = store.job_dir(job.job)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = folder / "slurm_script"
    copy.write_text(script, encoding="utf-8", errors="surrogateescape")
    copy.chmod(0o700)
    job.stdout = _path(given.get("output") or "slurm-%j.out", job)
    job.stderr = _path(given.get("error"), job) if given.has("error") else ""
    store.save_task(
        Task(
            job=job.job,
            step=BATCH,
            argv=[str(copy), *given.rest],
            env=exported(given.get("export"), dict(os.environ), store),
            cwd=job.workdir,
            nodes=[],
            tasks=[1],
            stdout=job.stdout,
            stderr=job.stderr,
            append=job.append,
            umask=umask(),
        )
    )
    world.jobs[job.job] = job


def _path(name: str, job: JobRec) -> str:
    """A log's path with what is known at submission filled in; the rest is filled in on the node."""
    if not name.startswith("/"):
        name = f"{job.workdir}/{name}"
    array, task = (str(job.array.job), str(job.array.task)) if job.array else (str(job.job), "4294967294")
    values = {"j": str(job.job), "J": str(job.job), "A": array, "a": task, "x": job.name, "u": getpass.getuser(), "b": "0"}
    parts = name.split("%%")
    for letter, value in values.items():
        parts = [part.replace(f"%{letter}", value) for part in parts]
    return "%%".join(parts)


def exported(wish: str, env: dict[str, str], store: Store) -> dict[str, str]:
    """The environment that `--export` lets through."""
    names = [part for part in wish.split(",") if part] or ["ALL"]
    slurm = {key: value for key, value in env.items() if key.startswith(("SLURM_", "SLURMD_"))}
    if "ALL" in names:
        result = dict(env)
    elif names in (["NONE"], ["NIL"]):
        result = _login_env() | slurm
    else:
        result = _login_env() | slurm | {name: env[name] for name in names if name in env}
    result |= dict(name.split("=", 1) for name in names if "=" in name)
    if wish:
        result["SLURM_EXPORT_ENV"] = wish
    if not result.get("PATH", "").startswith(f"{store.bin}:"):
        result["PATH"] = f"{store.bin}:{result.get('PATH', os.defpath)}"
    return result


def _login_env() -> dict[str, str]:
    """What a fresh login would have, without asking a login shell."""
    user = pwd.getpwuid(os.getuid())
    path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "PATH": path,
        "SLURM_GET_USER_ENV": "1",
    }


def umask() -> int:
    """Ours."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
