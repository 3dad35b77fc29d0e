"""pyslurm: probed in a child that may end or hang, compared with Slurm's version, used for looking only, its errors by number."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from ftsup import proc
from ftsup.config.keys import Client
from ftsup.errors import Refused, Unavailable, Unreadable
from ftsup.ports import JobState, NodeState, Slurm
from ftsup.proc import Done
from ftsup.slurm.fake import FakeSlurm
from ftsup.slurm.pyslurm import PySlurm, choose, unfit
from tests.slurm.pyslurms import JOB, RPCError, StandIn

SCONTROL = "#!/bin/sh\necho 'slurm-wlm {}'\n"
WORKS = "__version__ = '{}'\nclass Partitions(dict):\n    @classmethod\n    def load(cls): return cls()\n"
ENDS = "import os, sys\nsys.stderr.write('fatal: Could not establish a configuration source\\n')\nsys.stderr.flush()\nos._exit(1)\n"
HANGS = "import time\ntime.sleep(60)\n"
FROZEN = (  # a C call that holds the interpreter: no thread and no signal handler runs
    "import ctypes\n__version__ = '22.5.1'\nclass Partitions:\n    @staticmethod\n    def load(): ctypes.PyDLL(None).usleep(60_000_000)\n"
)
OTHER = "raise ImportError('libslurm.so.40: cannot open shared object file')\n"
REFUSED = (
    "__version__ = '22.5.1'\nclass Partitions:\n    @staticmethod\n"
    "    def load(): raise RuntimeError('Unable to contact slurm controller')\n"
)


def site(folder: Path, *, module: str | None, slurm: str = "22.05.8") -> dict[str, str]:
    """A host with these programs and this pyslurm; the environment for it."""
    (folder / "scontrol").write_text(SCONTROL.format(slurm))
    (folder / "scontrol").chmod(0o755)
    if module is not None:
        (folder / "pyslurm.py").write_text(module)
    return {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": f"{folder}:{Path.cwd()}"}


@pytest.mark.parametrize("version, slurm", [("22.5.1", "22.05.8"), ("24.11.0", "24.11.5"), ("25.11.2", "25.11.2")])
def test_one_that_fits_is_used(tmp_path, version, slurm):
    environ = site(tmp_path, module=WORKS.format(version), slurm=slurm)
    assert unfit(environ=environ) == ""
    assert choose(Client.AUTO, environ=environ, installed=True).client is Client.PYSLURM


@pytest.mark.parametrize("version", ["25.11.2", "22.11.0", "23.5.1", "nonsense"])
def test_one_of_another_version_is_not(tmp_path, version):
    environ = site(tmp_path, module=WORKS.format(version))
    assert "does not fit Slurm 22.05.8" in unfit(environ=environ)


@pytest.mark.parametrize(
    "module, why",
    [
        (ENDS, "importing pyslurm ended the process (exit code 1: fatal: Could not establish a configuration source)"),
        (OTHER, "ImportError: libslurm.so.40"),
        (REFUSED, "Unable to contact slurm controller"),
    ],
)
def test_an_import_that_ends_the_process_ends_a_child_only(tmp_path, module, why):
    assert why in unfit(environ=site(tmp_path, module=module))


@pytest.mark.parametrize("module", [HANGS, FROZEN])
def test_one_that_hangs_is_given_up(tmp_path, module):
    """An import that waits for a configuration for a minute, and a call that never gives the interpreter back."""
    assert "or its library hangs" in unfit(environ=site(tmp_path, module=module), deadline_s=1.5)


def test_without_scontrol_nobody_knows_whether_it_fits(tmp_path):
    environ = site(tmp_path, module=WORKS.format("22.5.1"))
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert "does not say" in unfit(environ=environ)


def test_the_choice_says_why(tmp_path):
    environ = site(tmp_path, module=WORKS.format("25.11.2"))
    assert choose(Client.COMMANDS, environ=environ, run=never).why == "slurm.client: commands"
    assert choose(Client.AUTO, environ=environ, run=never, installed=False).client is Client.COMMANDS
    assert "does not fit" in choose(Client.AUTO, environ=environ, installed=True).why
    with pytest.raises(Unavailable, match=r"slurm\.client is pyslurm, and pyslurm is not installed"):
        choose(Client.PYSLURM, environ=environ, run=never, installed=False)
    with pytest.raises(Unavailable, match="does not fit") as caught:
        choose(Client.PYSLURM, environ=environ, installed=True)
    assert "slurm.client: commands" in caught.value.hint


def never(argv, **_: object) -> Done:
    raise AssertionError(f"nothing needs to be run, and this was: {argv}")


def test_a_probe_whose_answer_is_cut_is_no_answer():
    cut = Done(argv=("python",), code=0, out='{"version": "22')
    assert "ended the process" in unfit(environ={}, run=lambda *_, **__: cut)


# Looking ------------------------------------------------------------------------------------------------------------------------


def port(answer, **fields: object) -> tuple[StandIn, FakeSlurm, PySlurm]:
    module = StandIn({**answer, **fields} if isinstance(answer, dict) else answer)
    fake = FakeSlurm()
    return module, fake, PySlurm(module, commands=fake)


def test_a_running_job_is_read():
    _, _, slurm = port(JOB)
    job = slurm.show("12")
    assert (job.state, job.completing, job.restarts, job.nodes, job.excluded) == (JobState.RUNNING, False, 1, ("n1", "n2"), ("n4",))
    assert (job.limit_s, job.run_s, job.reason, job.name, job.job_id) == (3600.0, 30.0, "", "two words", "12")


START = 1_800_000_000


@pytest.mark.parametrize(
    "fields, left_s, preempted",
    [
        ({}, 3570.0, False),
        ({"end_time": START + 50, "preempt_time": START + 30}, 20.0, True),
        ({"end_time": START + 3700, "suspend_time": START + 110, "pre_suspension_time": 10, "run_time": 40}, 3560.0, False),
        ({"end_time": START + 10}, 0.0, False),
        ({"end_time": START + 365 * 86400, "time_limit": "UNLIMITED"}, None, False),
        ({"end_time": START + 50, "preempt_time": START + 30, "time_limit": "UNLIMITED"}, 20.0, True),
        ({"end_time": None}, None, False),
        ({"state": "COMPLETING", "end_time": START + 30, "preempt_time": START + 30}, None, True),
        ({"state": "PREEMPTED", "end_time": START + 30, "preempt_time": START + 30}, None, True),
    ],
)
def test_when_it_ends_and_whether_for_another_job(fields, left_s, preempted):
    """PreemptTime, and EndTime: a preemption's grace moves it, a suspension as well."""
    job = port(JOB, **fields)[2].show("12")
    assert (job.ends_in_s, job.preempted) == (left_s, preempted)


def test_a_version_without_these_fields_says_nothing_of_them():
    old = {name: value for name, value in JOB.items() if not name.endswith(("end_time", "suspend_time", "preempt_time", "suspension_time"))}
    job = port(old)[2].show("12")
    assert (job.ends_in_s, job.preempted, job.run_s) == (None, False, 30.0)


@pytest.mark.parametrize("excluded", [["n[3-4]"], ["n3", "n4"], "n[3-4]"])
def test_host_lists_are_texts_in_one_version_and_lists_in_another(excluded):
    assert port(JOB, excluded_nodes=excluded)[2].show("12").excluded == ("n3", "n4")
    assert port(JOB, excluded_nodes=None, time_limit="UNLIMITED")[2].show("12").limit_s is None


def test_completing_is_what_it_is_for_the_commands():
    job = port(JOB, state="COMPLETING")[2].show("12")
    assert (job.state, job.completing) == (JobState.UNKNOWN, True)
    task = port(JOB, array_id=9, array_task_id=3)[2].show("12")
    assert task.job_id == "9_3"


def script(folder: Path) -> Path:
    (folder / "job.sh").write_text("#!/bin/sh\n")
    return folder / "job.sh"


def test_what_the_library_cannot_tell_is_asked_by_command(tmp_path):
    module, fake, slurm = port(JOB, state="PENDING")
    job = fake.submit(script(tmp_path), args=["--hold"])
    assert slurm.show(job).held
    module, _, slurm = port(RPCError(2017, "Invalid job id specified"))
    assert slurm.show("4000000").state is JobState.GONE
    module, _, slurm = port(JOB)
    assert slurm.show("12_3").state is JobState.GONE
    assert module.calls == []


@pytest.mark.parametrize(
    "number, kind",
    [
        (2018, Refused),
        (2000, Refused),
        (1007, Unavailable),
        (1800, Unavailable),
        (1001, Unavailable),
        (5004, Unavailable),
        (-1, Unavailable),
        (0, Unavailable),
    ],
)
def test_errors_by_number(number, kind):
    _, _, slurm = port(RPCError(number, "its words"))
    for look in (lambda: slurm.show("12"), slurm.nodes):
        with pytest.raises(kind, match="its words") as caught:
            look()
        assert type(caught.value) is kind
        assert bool(caught.value.hint) == (kind is Unavailable)


def test_a_module_of_another_shape_is_unreadable():
    for fields in ({"state": ""}, {"requeue_count": None}, {"allocated_nodes": "n[1-"}):
        with pytest.raises(Unreadable):
            port(JOB, **fields)[2].show("12")
    with pytest.raises(Unreadable):
        PySlurm(StandIn({"id": 12}), commands=FakeSlurm()).show("12")


def test_nodes_are_read():
    _, _, slurm = port(JOB)
    assert [(node.name, node.state, node.gpus, node.reason) for node in slurm.nodes()] == [
        ("n1", NodeState.UP, 4, ""),
        ("n2", NodeState.DRAINED, 0, "fan"),
    ]
    assert [node.name for node in slurm.nodes(["n2"])] == ["n2"]
    with pytest.raises(Refused, match="n9"):
        slurm.nodes(["n2", "n9"])
    with pytest.raises(Unreadable):
        PySlurm(StandIn(JOB, nodes={}), commands=FakeSlurm()).nodes()


def test_whatever_changes_something_goes_by_command(tmp_path):
    """So nobody meets a submission with an empty environment, a requeue of finished jobs, hold(mode="user"), excluded_nodes=[]."""
    module, fake, slurm = port(JOB)
    job = slurm.submit(script(tmp_path), env={"A": "b"})
    assert fake.jobs[job].env == {"A": "b"}
    slurm.avoid(job, ["n3"])
    fake.advance(1)
    slurm.requeue(job)
    fake.advance(2)
    slurm.start_now(job)
    slurm.release(job)
    slurm.cancel(job)
    assert fake.show(job).state is JobState.CANCELLED
    assert (slurm.config(), slurm.partitions()) == (fake.config(), fake.partitions())
    assert module.calls == []


def test_it_has_the_whole_port():
    operations = [name for name, member in inspect.getmembers(Slurm, inspect.isfunction) if not name.startswith("_")]
    assert len(operations) == 12
    for name in operations:
        assert inspect.signature(getattr(PySlurm, name)) == inspect.signature(getattr(Slurm, name)), name


def test_leader_and_node_supervisor_never_import_it():
    """Their helper process neither: a controller that is away would hold it."""
    modules = "sys, ftsup.supervisor.lead, ftsup.supervisor.node, ftsup.slurm.__main__"
    code = f"import {modules}; print([name for name in sys.modules if 'pyslurm' in name])"
    done = proc.run([sys.executable, "-c", code], deadline_s=30)
    assert done.out.strip() == "[]", done
