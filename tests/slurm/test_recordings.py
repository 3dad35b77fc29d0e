"""Everything in tests/data/slurm is read: jobs in each state, nodes, partitions, settings; whole, cut, and with what sites add."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftsup.errors import Unreadable
from ftsup.ports import JobState, NodeState
from ftsup.slurm import accounting, jobs, jsonjobs
from tests.slurm.recordings import DATA, VERSIONS, text

AS_JSON = {"22.05": "squeue-{}.json", "24.11": "job-{}.json", "26.05": "job-{}.json"}
WRAPPED = "module: slurm/prod loaded {\n*** maintenance on Monday: JobState=FAILED ***\n{}\n"
STATES = {
    "running": (JobState.RUNNING, False, 0, ("n1", "n2")),
    "suspended": (JobState.SUSPENDED, False, 0, ("n1", "n2")),
    "pending": (JobState.PENDING, False, 0, ()),
    "held": (JobState.PENDING, False, 0, ()),
    "array-task": (JobState.RUNNING, False, 0, ("n1",)),
    "completing-cancelled": (JobState.UNKNOWN, True, 0, ("n1",)),
    "completing-requeued": (JobState.UNKNOWN, True, 1, ("n1",)),
    "requeued": (JobState.PENDING, False, 1, ()),
    "cancelled": (JobState.CANCELLED, False, 0, ("n1",)),
    "failed": (JobState.FAILED, False, 0, ("n1",)),
    "timeout": (JobState.TIMEOUT, False, 0, ("n1",)),
}
MISSING = {("24.11", "pending")}  # refused there: the job wanted more nodes than there are
EVERY = [(version, name) for version in VERSIONS for name in STATES if (version, name) not in MISSING]
JSONS = [(version, name) for version, name in EVERY if (DATA / version / AS_JSON[version].format(name)).exists()]


def now(version: str) -> str:
    return jobs.parse_as_of(text(version, "config.txt"))


def shown(version: str, name: str) -> jobs.Job:
    """The job of that name, from the plain text: of an array the task that runs."""
    found = jobs.parse_jobs(text(version, f"job-{name}.txt"), now=now(version))
    return found[0] if len(found) == 1 else next(job for job in found if job.job_id.endswith("_0"))


@pytest.mark.parametrize("version, name", EVERY)
def test_a_job_in_this_state_is_read(version, name):
    job = shown(version, name)
    assert (job.state, job.completing, job.restarts, job.nodes) == STATES[name]
    assert job.held == (name == "held")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_else_a_job_says(version):
    running, failed, task, waits = (shown(version, name) for name in ("running", "failed", "array-task", "requeued"))
    assert (running.limit_s, running.excluded, running.num_nodes, running.batch_host) == (93600.0, ("n4",), 2, "n1")
    assert (failed.exit_code, failed.exit_signal, failed.reason) == (75, None, "NonZeroExitCode")
    assert task.job_id.endswith("_0")
    assert (waits.reason, waits.starts_in_s is not None) == ("BeginTime", True)
    assert shown(version, "timeout").name == "two words"


@pytest.mark.parametrize("version, name", JSONS)
def test_json_says_the_same_as_the_text(version, name):
    plain = shown(version, name)
    found = jsonjobs.parse_jobs(text(version, AS_JSON[version].format(name)), now_s=int(now(version)))
    job = next(each for each in found if each.job_id == plain.job_id)
    same = ("state", "completing", "reason", "restarts", "nodes", "excluded", "batch_host", "num_nodes", "limit_s", "name", "requeueable")
    assert {key: getattr(job, key) for key in same} == {key: getattr(plain, key) for key in same}
    assert (job.exit_code, job.exit_signal) == (plain.exit_code, plain.exit_signal)
    assert (job.starts_in_s is None) == (plain.starts_in_s is None)
    if job.state in jobs.FINISHED | {JobState.RUNNING}:
        assert abs(job.run_s - plain.run_s) <= 30  # "now" is that of config.txt


def test_both_layouts_of_json_are_recorded():
    assert {version for version, _ in JSONS} == set(VERSIONS)
    assert {name for version, name in JSONS if version == "24.11"} == set(STATES) - {"pending"}
    assert {name for version, name in JSONS if version == "26.05"} == set(STATES)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_jobs_at_once(version):
    listed = {job.job_id: job.state for job in jobs.parse_jobs(text(version, "jobs.txt"))}
    as_json = {job.job_id: job.state for job in jsonjobs.parse_jobs(text(version, "squeue.json"))}
    assert len(listed) == 9
    assert as_json == listed


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_drained_and_down(version):
    found = {node.name: node for node in jobs.parse_nodes(text(version, "nodes.txt"))}
    assert {name: node.state for name, node in found.items()} == {
        "n1": NodeState.UP,
        "n2": NodeState.UP,
        "n3": NodeState.DRAINED,
        "n4": NodeState.DOWN,
    }
    assert found["n3"].reason.startswith("fan 2 broken, State=IDLE")
    read = jsonjobs.parse_nodes(text(version, "sinfo.json" if version == "22.05" else "nodes.json"))
    assert [(node.name, node.state, node.cpus) for node in read] == [(node.name, node.state, node.cpus) for node in found.values()]


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_and_settings(version):
    (main,) = jobs.parse_partitions(text(version, "partitions.txt"))
    assert (main.name, main.default, main.up, main.nodes) == ("main", True, True, ("n1", "n2", "n3", "n4"))
    settings = jobs.parse_config(text(version, "config.txt"))
    assert (settings["KillWait"], settings["ProctrackType"]) == ("5 sec", "proctrack/linuxproc")


@pytest.mark.parametrize("name, count, most", [("sample-scontrol-output.txt", 3, 4000), ("sample-scontrol-output-large.txt", 8, 9000)])
def test_partitions_of_a_large_site_one_a_line(name, count, most):
    found = jobs.parse_partitions(text("gcm", name))
    assert len(found) == count
    assert all(partition.nodes and partition.limit_s for partition in found)
    assert 1000 < max(len(partition.nodes) for partition in found) < most


# What sites and bad days add and take away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version, name", EVERY)
def test_lines_of_a_wrapper_change_nothing(version, name):
    said = text(version, f"job-{name}.txt")
    assert jobs.parse_jobs(WRAPPED + said + WRAPPED) == jobs.parse_jobs(said)


@pytest.mark.parametrize("version, name", JSONS)
def test_lines_of_a_wrapper_around_json_change_nothing(version, name):
    said = text(version, AS_JSON[version].format(name))
    assert jsonjobs.parse_jobs(WRAPPED + said + "\n" + WRAPPED) == jsonjobs.parse_jobs(said)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name, parse", [("job-running.txt", jobs.parse_jobs), ("nodes.txt", jobs.parse_nodes), ("partitions.txt", jobs.parse_partitions)]
)
def test_half_an_answer_is_unreadable_or_whole_records(version, name, parse):
    """Cut around every line's end, and elsewhere: never a value that the whole answer does not have."""
    said = text(version, name)
    whole = parse(said)
    lines = [spot + near for spot, letter in enumerate(said) if letter == "\n" for near in (-1, 0, 1, 4)]
    for end in sorted({*lines, *range(0, len(said), 17)}):
        try:
            assert parse(said[:end]) == whole[: len(parse(said[:end]))]
        except Unreadable:
            continue


@pytest.mark.parametrize("version", VERSIONS)
def test_half_a_configuration_is_unreadable(version):
    said = text(version, "config.txt")
    for end in range(0, len(said) - 60, 41):
        with pytest.raises(Unreadable):
            jobs.parse_config(said[:end])


@pytest.mark.parametrize("version, name", JSONS)
def test_half_of_the_json_is_unreadable(version, name):
    said = text(version, AS_JSON[version].format(name)).rstrip()
    for end in range(0, len(said), max(1, len(said) // 15)):
        with pytest.raises(Unreadable):
            jsonjobs.parse_jobs(said[:end])


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(st.binary(max_size=6), st.integers(min_value=0))
def test_broken_bytes_are_read_or_unreadable(version, broken, at):
    raw = (DATA / version / "job-running.txt").read_bytes()
    spot = at % len(raw)
    said = (raw[:spot] + broken + raw[spot:]).decode("utf-8", "replace")
    try:
        job = jobs.parse_job(said, wanted=shown(version, "running").job_id)
    except Unreadable:
        return
    assert job.state in {JobState.RUNNING, JobState.UNKNOWN}


# JSON ------------------------------------------------------------------------------------------------------------------------


def altered(**fields: object) -> str:
    document = json.loads(text("24.11", "job-running.json"))
    document["jobs"][0].update(fields)
    return json.dumps(document)


def test_unknown_fields_and_words_of_a_newer_slurm():
    (job,) = jsonjobs.parse_jobs(altered(brand_new={"set": True}, job_state=["RUNNING", "SPARKLING"]))
    assert job.state is JobState.RUNNING
    (job,) = jsonjobs.parse_jobs(altered(job_state=["SPARKLING"]))
    assert job.state is JobState.UNKNOWN


@pytest.mark.parametrize(
    "value, limit_s",
    [
        ({"set": True, "infinite": False, "number": 5}, 300.0),
        ({"set": True, "infinite": True, "number": 0}, None),
        ({"set": False, "infinite": False, "number": 7}, None),
        (5, 300.0),
        (4294967295, None),
        (None, None),
    ],
)
def test_numbers_plain_set_and_endless(value, limit_s):
    (job,) = jsonjobs.parse_jobs(altered(time_limit=value))
    assert job.limit_s == limit_s


@pytest.mark.parametrize(
    "value, code, signal",
    [
        (19200, 75, None),
        (9, 0, 9),
        ({"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": True, "number": 15}}}, 3, 15),
        ({"return_code": {"set": False, "number": 0}, "signal": {"signal_id": 9}}, 0, 9),  # 23.02
        (None, None, None),
    ],
)
def test_exit_codes_in_every_layout(value, code, signal):
    (job,) = jsonjobs.parse_jobs(altered(exit_code=value))
    assert (job.exit_code, job.exit_signal) == (code, signal)


@pytest.mark.parametrize("fields", [{"job_state": []}, {"job_state": None}, {"restart_cnt": "x"}, {"node_count": None}, {"nodes": "n[1-"}])
def test_a_broken_field_of_json_is_unreadable(fields):
    with pytest.raises(Unreadable):
        jsonjobs.parse_jobs(altered(**fields))


@pytest.mark.parametrize(
    "said", ["", "null", "[]", "{}", '{"jobs": null}', '{"jobs": [1]}', '{"jobs": [], "errors": ["no"]}', "slurm is down"]
)
def test_what_is_no_answer_in_json(said):
    with pytest.raises(Unreadable):
        jsonjobs.parse_jobs(said)


def test_an_unknown_job_in_json_is_no_job():
    assert jsonjobs.parse_jobs(text("24.11", "unknown-job.json")) == []
    assert jsonjobs.said_at_s(text("24.11", "nodes.json")) is not None


# sacct -----------------------------------------------------------------------------------------------------------------------


def rows() -> str:
    """Our columns of a large site's sacct, as it answers our question; broken bytes included."""
    head, *lines = text("gcm", "sample-sacct-output-invalid-utf8.txt").splitlines()
    names = head.split("|")
    wanted = accounting.argv("1")[-1].removeprefix("--format=").split(",")
    return "\n".join("|".join(line.split("|")[names.index(name)] for name in wanted) for line in lines)


def test_how_forgotten_jobs_ended():
    timeout = accounting.parse_ended(rows(), wanted="3557892")
    assert (timeout.state, timeout.limit_s, timeout.run_s, timeout.nodes) == (JobState.TIMEOUT, 7200.0, 7212.0, ("learnnode036",))
    failed = accounting.parse_ended(rows(), wanted="3557891")
    assert (failed.state, failed.exit_code, failed.exit_signal) == (JobState.FAILED, 0, 9)
    assert accounting.parse_ended(rows(), wanted="3557893") is None, "only steps of it are there"


@pytest.mark.parametrize(
    "row, state",
    [
        ("9|9|CANCELLED by 1000|0:15|2|5|60|n[1-2]|x", JobState.CANCELLED),
        ("9|9|COMPLETED|0:0|1|5|UNLIMITED|n1|a|b c", JobState.COMPLETED),
        ("8_1|9|NODE_FAIL|1:0|1|5|60|n1|x", JobState.NODE_FAIL),
        ("9|9|RUNNING|0:0|1|5|60|n1|x", None),
        ("9|9|PENDING|0:0|1|0|60|None assigned|x", None),
        ("9|9|REQUEUED|0:0|1|5|60|n1|x", None),
        ("9|9|SPARKLING|0:0|1|5|60|n1|x", None),
        ("99|99|COMPLETED|0:0|1|5|60|n1|x", None),
        ("9|9|COMPL", None),
        ("Slurm accounting storage is disabled", None),
        ("", None),
    ],
)
def test_accounting_is_believed_about_ends_only(row, state):
    found = accounting.parse_ended(f"a wrapper's line\n{row}\nanother\n", wanted="9")
    assert (found and found.state) == state
