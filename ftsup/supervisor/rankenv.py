"""The environment of ranks: what of Slurm's, MPI's and the submitting shell's stays, what goes, and what is set where the user has not.

Values in, values out. Three tables say all of it; README shows them, and a test compares. The user's `env` is laid over everything.
"""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ftsup.config import Config, Handlers, Launch
from ftsup.events import Launch as LaunchOrder
from ftsup.supervisor import launch
from ftsup.worker import places

STAYS = (
    "SLURM_ARRAY_*", "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE", "SLURM_JOBID", "SLURM_JOB_*", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_RESTART_COUNT", "SLURM_SUBMIT_*",
    "SLURM_TOPOLOGY_*", "SLURM_WORKING_CLUSTER",
)  # fmt: skip
"""Of Slurm's variables: those of the job. All others are about *our* step of one task a node, and no rank is that task."""
GOES = {
    "SLURM_*": "of the step, but for those above (PROCID, LOCALID, NODEID, NTASKS, STEP_*, CPU_BIND, MEM_*, ...): mpi4py, submitit and "
    "Lightning take them for a rank's own, a nested srun for its options",
    "PMI_*": "MPI starts as one task of srun",
    "PMI2_*": "as PMI_*",
    "PMIX_*": "as PMI_*",
    "PALS_*": "Cray's, as PMI_*",
    "OMPI_*": "Open MPI's; DeepSpeed and others read ranks from it",
    "MPI_LOCAL*": "as OMPI_*",
    "MV2_COMM_WORLD_*": "MVAPICH's, as OMPI_*",
    "SRUN_*": "options of the srun that started us",
    "SBATCH_*": "options that a script's own sbatch would take over",
    "SALLOC_*": "as SBATCH_*",
    "PET_*": "options of another torchrun",
    "TORCHELASTIC_*": "of a torchrun around `ftsup submit`",
    "BASH_FUNC_*": "functions of the submitting shell",
}
"""What is taken away (unless it stays), and who would misread it in a rank."""
_OURS = (
    "FTSUP_LEADER",
    "FTSUP_NODES",
    "FTSUP_RUN",
    "FTSUP_FOLLOWS",
    "FTSUP_LOCAL",
    "FTSUP_GUARD",
    places.MARK,
    places.SUPERVISOR,
    places.BASE_STEP,
    places.RESUME_FROM,
    places.WARNING,
)
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("3", "a failed or late collective ends the process; 1 would clear away what the recorder saw"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ("1", "a late collective leaves the flight recorder's file"),
    "TORCH_FR_BUFFER_SIZE": ("2000", "collectives that the flight recorder remembers; not every torch does so by itself"),
    "NCCL_DEBUG": ("WARN", "NCCL says what went wrong; a higher level of yours stays in your log"),
}
"""What is set of NCCL's and torch's variables, and why; a name or an old name of it (`OLDER`) in your environment wins."""
USER = {
    "USER, LOGNAME, HOME": "from the password database, where a container or `--export=NONE` left them out",
    "TORCH_EXTENSIONS_DIR": "a folder of the run on the node: a rank killed while it builds leaves a lock there, which is removed before "
    "each launch",
    "XDG_CACHE_HOME, TRITON_CACHE_DIR": "a folder of the run on the node, only where the home directory cannot be written",
    "PYTHONUNBUFFERED": "1: the last lines of a rank that is killed are there",
    "TORCH_FR_DUMP_TEMP_FILE, NCCL_DEBUG_FILE": "a file a rank on the node's disk; NCCL_DEBUG_FILE only at level WARN",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "your `grace`",
}
"""What else is set where the user has not."""
OLDER = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}


def environment(
    base: Mapping[str, str], config: Config, order: LaunchOrder, *, own: Mapping[str, str], at: Mapping[str, Path]
) -> dict[str, str]:
    """What ranks get: `base` (after node_setup) cleaned, ours, and over it the user's `env`. `at`: worker, beats, out."""
    env = {name: value for name, value in base.items() if not goes(name)}
    env |= {
        "PYTHONUNBUFFERED": "1",
        places.BEATS: str(at["beats"]),
        places.OUT_DIR: str(at["out"]),
    }
    if config.slurm.handlers is Handlers.AT_BEAT:
        env[places.WARNING] = str(launch.warning(config).value)
    if order.base_step is not None:
        env[places.BASE_STEP] = str(order.base_step)
    wishes = {name: value for name, (value, _) in NCCL.items()}
    wishes["TORCH_FR_DUMP_TEMP_FILE"] = str(places.flight_prefix(at["out"]))
    wishes["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(config.grace_s))  # else torchrun kills what it told to end after its 30 s
    env |= {name: value for name, value in wishes.items() if not {name, OLDER.get(name, name)} & (env.keys() | own.keys())}
    wanted = launch.variables(order, workers=config.workers) if config.launch is Launch.COMMAND else {places.RESUME_FROM: order.path or ""}
    env |= {name: value for name, value in wanted.items() if value}
    env |= dict(own)
    paths = (str(at["worker"]), env.get("PYTHONPATH", ""))  # also before one of the user's own: the shim would not be found
    return env | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def markdown() -> str:
    """The tables, as README shows them."""
    taken = [f"- `{name}`: {why}" for name, why in GOES.items()]
    given = [f"- `{name}={value}`: {why}" for name, (value, why) in NCCL.items()]
    given += [f"- {', '.join(f'`{one}`' for one in names.split(', '))}: {what}" for names, what in USER.items()]
    stays = ", ".join(f"`{name}`" for name in STAYS)
    return "\n".join(
        [f"Of Slurm's variables those of the job stay: {stays}. Taken away:", "", *taken, "", "Set where you have not:", "", *given, ""]
    )


def goes(name: str) -> bool:
    """Whether ranks do not get this variable of ours."""
    return name in _OURS or (_among(name, GOES) and not _among(name, STAYS))


def of_user(environ: Mapping[str, str], *, cache: Path) -> dict[str, str]:
    """`environ` with what a login would have set and a container or `--export=NONE` has not, and with the cache folders.

    Where torch builds extensions moves to the run's own folder on the node, because a rank that is killed meanwhile leaves a lock there
    on which every later start would wait for ever: this one is taken away before each launch. All other caches keep their places, their
    locks end with the process; but where the home directory cannot be written they go there, too.
    """
    env = {"USER": _name(environ), "HOME": _home(cache), "TORCH_EXTENSIONS_DIR": str(cache / "torch_extensions"), **environ}
    env.setdefault("LOGNAME", env["USER"])
    if not os.access(env["HOME"], os.W_OK | os.X_OK):
        env = {"XDG_CACHE_HOME": str(cache), "TRITON_CACHE_DIR": str(cache / "triton"), **env}
    return env


def forget_locks(cache: Path) -> None:
    """Take away what killed ranks left while they built an extension. Only between attempts, when nobody builds."""
    for lock in cache.glob("torch_extensions/*/lock"):
        lock.unlink(missing_ok=True)


def _among(name: str, patterns: Mapping[str, str] | tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _name(environ: Mapping[str, str]) -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container does not know its user
        return environ.get("SLURM_JOB_USER", str(os.getuid()))


def _home(cache: Path) -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return str(cache)
