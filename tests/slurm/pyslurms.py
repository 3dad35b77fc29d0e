"""A stand-in for pyslurm, with the behaviour that SLURM_FACTS.md records of 22.5, 24.11 and 25.11: its errors by number, its traps."""

from __future__ import annotations

from types import SimpleNamespace


class RPCError(Exception):
    def __init__(self, errno: int, msg: str = "") -> None:
        super().__init__(msg)
        self.errno = errno


JOB = {
    "id": 12,
    "name": "two words",
    "state": "RUNNING",
    "state_reason": "None",
    "requeue_count": 1,
    "excluded_nodes": ["n4"],
    "allocated_nodes": "n[1-2]",
    "exit_code": 0,
    "exit_code_signal": None,
    "batch_host": "n1",
    "num_nodes": 2,
    "run_time": 30,
    "time_limit": 60,
    "start_time": 1_800_000_000,
    "end_time": 1_800_003_600,
    "suspend_time": None,
    "pre_suspension_time": None,
    "preempt_time": None,
    "is_requeueable": True,
    "array_id": None,
    "array_task_id": None,
}
NODES = {
    "n1": {"name": "n1", "state": "IDLE", "reason": None, "configured_gres": {"gpu:a100": "4(S:0-1)"}, "total_cpus": 16},
    "n2": {"name": "n2", "state": "IDLE+DRAIN", "reason": "fan", "configured_gres": {}, "total_cpus": 16},
}


class StandIn:
    """The module: `answer` is a job, or the RPCError that every call raises. What was called is in `calls`."""

    RPCError = RPCError
    __version__ = "24.11.0"

    def __init__(self, answer: dict | RPCError, nodes: dict | None = None) -> None:
        self.calls: list[str] = []
        self.answer = answer
        self.node_list = NODES if nodes is None else nodes
        self.Nodes = SimpleNamespace(load=self._nodes)
        self.Job = SimpleNamespace(load=self._load)

    def _load(self, job_id: int) -> SimpleNamespace:
        assert type(job_id) is int, "the library takes numbers only"
        self.calls.append(f"Job.load {job_id}")
        self._fail()
        return SimpleNamespace(**self.answer)

    def _nodes(self) -> dict[str, SimpleNamespace]:
        self.calls.append("Nodes.load")
        self._fail()
        return {name: SimpleNamespace(**fields) for name, fields in self.node_list.items()}

    def _fail(self) -> None:
        if isinstance(self.answer, RPCError):
            raise self.answer

    def __getattr__(self, name: str):
        raise AssertionError(f"{name}: a trap (an empty environment, hold, requeue of finished jobs, []) that nobody may step into")
