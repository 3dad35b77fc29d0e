"""What ranks are started with: environments, commands of one's own; and what cannot be started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ftsup.events import How, VerdictKind
from ftsup.ports import JobState
from tests.e2e.harness import seen_below, words

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SECRET = "s3cr3t with 'quotes' $HOME and a\nnew line"


def test_command_of_ones_own_gets_its_placeholders_and_environments_and_nobody_reads_the_secret(site) -> None:
    where = ["{FTSUP_NODE_RANK}", "{FTSUP_NNODES}", "{MASTER_ADDR}:{MASTER_PORT}", "{ours}"]
    run = site.submit(
        launch="command",
        command=[sys.executable, str(Path(__file__).parent / "tell.py"), *where],
        resume_args=[],
        slurm={"nodes": 2},
        setup="export FROM_SCRIPT='of the batch script'",
        node_setup='greet() { :; }\nexport FROM_SETUP="$FROM_SCRIPT, then of $SLURMD_NODENAME"\nunset HOME',
        env={"TOKEN": SECRET, "FROM_ENV": "yes"},
    )
    files = [run.work / "control" / f"told.{rank}" for rank in range(2)]
    run.until(lambda: all(file.exists() for file in files))
    told = [json.loads(file.read_text()) for file in files]
    for rank, one in enumerate(told):
        environ = one["environ"]
        assert one["argv"] == [str(rank), "2", f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}", "{ours}"]
        assert environ["FROM_SETUP"] == f"of the batch script, then of mock{rank + 1}"
        assert (environ["TOKEN"], environ["FROM_ENV"]) == (SECRET, "yes")
        assert environ["FTSUP_MARK"] == f"{run.place.id}/{run.job}/mock{rank + 1}/1.1"
        assert environ.keys().isdisjoint({"HOME", "FTSUP_LEADER", "SLURM_PROCID", "SLURM_STEP_ID", "RANK"})
    assert told[0]["environ"]["MASTER_PORT"] == told[1]["environ"]["MASTER_PORT"]

    word = SECRET[:6]
    assert word not in run.place.script.read_text()
    assert word not in site.run("scontrol", "show", "job", run.job)
    assert word not in (site.folder / "mock" / "state.json").read_text()
    assert not [process for process in site.processes() if any(word in argument for argument in words(process))]
    has_it = seen_below(run.place.root, lambda path: path.is_file() and word.encode() in path.read_bytes())
    holding = [path for path, has in has_it.items() if has]
    assert {path.name for path in holding} == {"config.yaml", "env.json"}
    assert not any(path.stat().st_mode & 0o077 for path in holding)
    run.finish()
    assert run.until_over().exit_code == 0


@pytest.mark.parametrize(
    "config,said",
    [
        ({"node_setup": "echo 'no such module: cuda' >&2\nfalse"}, "no such module: cuda"),
        ({"launch": "command", "command": ["no-such-program"], "resume_args": []}, "no-such-program"),
    ],
    ids=["node_setup", "program"],
)
def test_what_cannot_be_started_is_tried_twice_and_said(site, config, said) -> None:
    run = site.submit(**config)
    assert run.until_over(state=JobState.FAILED).exit_code == 1
    assert [incident.root.how for incident in run.incidents()] == [How.SETUP, How.SETUP]
    assert run.incidents()[-1].verdict.kind is VerdictKind.STOP
    assert said in run.decision()["reason"]
    assert said in run.output()
