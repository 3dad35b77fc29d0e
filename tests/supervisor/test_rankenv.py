"""What ranks get: Slurm's and MPI's words for another task taken away, the user's own left alone, the gaps of a bare login filled."""

from __future__ import annotations

import os
import pwd
import re
import signal
from pathlib import Path

import pytest

from ftsup.config import Config, Handlers, Launch, SlurmOptions
from ftsup.events import Epoch
from ftsup.events import Launch as Order
from ftsup.supervisor import launch, rankenv

ORDER = Order(node="n2", epoch=Epoch(1, 2), node_rank=1, nodes=2, address="10.0.0.1", port=2950, path="/c/step5.pt", base_step=5)
AT = {"worker": Path("/run/worker"), "beats": Path("/b"), "out": Path("/o")}


def words(text: str) -> list[str]:
    return text.split()


OF_THE_JOB = words("""
    SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_MAX SLURM_CLUSTER_NAME SLURM_CONF SLURM_CPUS_ON_NODE
    SLURM_CPUS_PER_TASK SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_JOBID SLURM_JOB_ACCOUNT SLURM_JOB_CPUS_PER_NODE
    SLURM_JOB_END_TIME SLURM_JOB_GPUS SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_JOB_PARTITION SLURM_JOB_QOS
    SLURM_JOB_START_TIME SLURM_JOB_UID SLURM_JOB_USER SLURM_NNODES SLURM_NODELIST SLURM_RESTART_COUNT SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST
    SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN SLURM_WORKING_CLUSTER SLURMD_NODENAME
    """)
OF_THE_STEP = words("""
    SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_VERBOSE SLURM_CPU_FREQ_REQ SLURM_DISTRIBUTION SLURM_EXPORT_ENV
    SLURM_GPU_BIND SLURM_GTIDS SLURM_HINT SLURM_LAUNCH_NODE_IPADDR SLURM_LOCALID SLURM_MEM_BIND SLURM_MEM_BIND_LIST SLURM_MEM_PER_CPU
    SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_MPI_TYPE SLURM_NODEID SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_NODE
    SLURM_NTASKS_PER_SOCKET SLURM_OVERLAP SLURM_PRIO_PROCESS SLURM_PROCID SLURM_RLIMIT_NOFILE SLURM_SRUN_COMM_HOST SLURM_SRUN_COMM_PORT
    SLURM_STEPID SLURM_STEP_GPUS SLURM_STEP_ID SLURM_STEP_LAUNCHER_PORT SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS
    SLURM_STEP_RESV_PORTS SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_TASK_PID SLURM_UMASK
    SALLOC_PARTITION SBATCH_ACCOUNT SRUN_DEBUG MPI_LOCALRANKID MPI_LOCALNRANKS MV2_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK
    OMPI_MCA_ess PALS_RANKID PET_NNODES PMI2_SIZE PMIX_RANK PMI_FD PMI_RANK TORCHELASTIC_RUN_ID BASH_FUNC_module%%
    FTSUP_GUARD FTSUP_LEADER FTSUP_MARK FTSUP_NODES FTSUP_RUN FTSUP_SUPERVISOR
    """)
HIS = words("PATH HOME NCCL_IB_HCA UCX_TLS I_MPI_FABRICS MV2_USE_CUDA CUDA_VISIBLE_DEVICES OMP_NUM_THREADS WANDB_API_KEY SLURMISH")


def config(**changes: object) -> Config:
    return Config(name="x", command=("train.py",), **changes)  # type: ignore[arg-type]


def made(base: dict[str, str], own: dict[str, str] | None = None, order: Order = ORDER, **changes: object) -> dict[str, str]:
    return rankenv.environment(base, config(**changes), order, own=own or {}, at=AT)


def test_what_is_of_the_job_stays_and_what_is_of_the_step_goes() -> None:
    base = dict.fromkeys([*OF_THE_JOB, *OF_THE_STEP, *HIS], "x")
    env = made(base)
    assert {name for name in base if env.get(name) == "x"} == {*OF_THE_JOB, *HIS}
    assert not set(env) & set(OF_THE_STEP)


def test_every_row_of_the_tables_is_needed() -> None:
    for pattern in (*rankenv.STAYS, *rankenv.GOES):
        assert any(re.fullmatch(pattern.replace("*", ".*"), name) for name in (*OF_THE_JOB, *OF_THE_STEP)), pattern


def test_the_users_own_env_comes_last() -> None:
    env = made({"SLURM_NTASKS": "1", "PYTHONPATH": "/mine"}, {"SLURM_NTASKS": "mine", "NCCL_DEBUG": "TRACE", "PYTHONUNBUFFERED": ""})
    assert (env["SLURM_NTASKS"], env["NCCL_DEBUG"], env["PYTHONUNBUFFERED"]) == ("mine", "TRACE", "")
    assert env["PYTHONPATH"] == f"/run/worker{os.pathsep}/mine"
    assert made({"PYTHONPATH": "/mine"}, {"PYTHONPATH": "/chosen"})["PYTHONPATH"] == f"/run/worker{os.pathsep}/chosen"
    assert made({}, {})["PYTHONPATH"] == "/run/worker"
    assert (env["FTSUP_RESUME_FROM"], env["FTSUP_BASE_STEP"]) == ("/c/step5.pt", "5")


def test_nothing_of_an_outer_run_is_inherited() -> None:
    first = Order(node="n1", epoch=Epoch(1, 1), node_rank=0, nodes=1, address="127.0.0.1", port=1)
    outer = dict.fromkeys(("FTSUP_RESUME_FROM", "FTSUP_BASE_STEP", "FTSUP_BEATS", "FTSUP_OUT_DIR", "FTSUP_WARNING"), "outer")
    assert "outer" not in made(outer, order=first).values()


def test_an_own_command_is_told_where_it_runs() -> None:
    env = made({}, launch=Launch.COMMAND)
    wanted = launch.variables(ORDER, workers=1)
    assert {name: env[name] for name in wanted} == wanted


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_ranks_are_told_which_signal_is_the_warning(name: str) -> None:
    slurm = SlurmOptions(signal=f"{name.removeprefix('SIG')}@60")
    assert made({}, slurm=slurm)["FTSUP_WARNING"] == str(signal.Signals[name].value)
    assert launch.warning(config(slurm=slurm)) is signal.Signals[name]


def test_where_handlers_are_plain_ranks_are_told_of_no_signal() -> None:
    assert "FTSUP_WARNING" not in made({"FTSUP_WARNING": "outer"}, slurm=SlurmOptions(handlers=Handlers.PLAIN))


# NCCL and torch -------------------------------------------------------------------------------------------------------


def test_a_late_collective_leaves_something_to_read() -> None:
    env = made({})
    assert {name: env[name] for name in rankenv.NCCL} == {name: value for name, (value, _) in rankenv.NCCL.items()}
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == "/o/flight."


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", *rankenv.NCCL])
@pytest.mark.parametrize("where", ["base", "own"])
def test_what_the_user_has_set_of_it_is_his_also_by_an_old_name(name: str, where: str) -> None:
    for given in (name, rankenv.OLDER.get(name, name)):
        env = made(**{"base": {}, where: {given: "his"}})
        assert env[given] == "his"
        assert env.get(name) == ("his" if given == name else None)


def test_ranks_have_the_same_grace_from_torchrun_as_from_us() -> None:
    assert made({}, grace_s=90.5)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "91"
    assert made({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, grace_s=90.5)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "7"


# The user -------------------------------------------------------------------------------------------------------------


def test_a_bare_environment_gets_its_user_from_the_password_database(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid())
    env = rankenv.of_user({"PATH": "/bin"}, cache=tmp_path)
    assert (env["USER"], env["LOGNAME"], env["HOME"], env["PATH"]) == (me.pw_name, me.pw_name, me.pw_dir, "/bin")


def test_a_whole_environment_stays_as_it_is(tmp_path: Path) -> None:
    his = {"USER": "ann", "LOGNAME": "bob", "HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": "/his"}
    assert rankenv.of_user(his, cache=Path("/c")) == his


def test_caches_leave_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    env = rankenv.of_user({"HOME": str(tmp_path / "gone"), "XDG_CACHE_HOME": "/his"}, cache=Path("/c"))
    assert (env["XDG_CACHE_HOME"], env["TRITON_CACHE_DIR"]) == ("/his", "/c/triton")
    assert "TRITON_CACHE_DIR" not in rankenv.of_user({"HOME": str(tmp_path)}, cache=Path("/c"))


def test_a_lock_of_a_killed_build_is_taken_away_and_the_build_stays(tmp_path: Path) -> None:
    env = rankenv.of_user({}, cache=tmp_path)
    build = Path(env["TORCH_EXTENSIONS_DIR"], "fused_adam")
    build.mkdir(parents=True)
    for name in ("lock", "fused_adam.so"):
        (build / name).touch()
    rankenv.forget_locks(tmp_path)
    assert [path.name for path in build.iterdir()] == ["fused_adam.so"]
    rankenv.forget_locks(tmp_path / "nothing")


# README ---------------------------------------------------------------------------------------------------------------


def test_readme_shows_the_tables() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert rankenv.markdown() in readme


def test_the_tables_say_what_is_set(tmp_path: Path) -> None:
    said = {name for names in (*rankenv.USER, *rankenv.NCCL) for name in names.split(", ")} | {"PYTHONPATH", "NCCL_DEBUG_FILE"}
    env = made(rankenv.of_user({"HOME": str(tmp_path / "gone")}, cache=tmp_path)) | made(rankenv.of_user({}, cache=tmp_path))
    assert {name for name in env if not name.startswith("FTSUP_")} | {"NCCL_DEBUG_FILE"} == said
    assert all(f"`{name}" in rankenv.markdown() for name in said - {"PYTHONPATH"})
