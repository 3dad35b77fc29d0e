"""logs as a whole command, on run directories that grow."""

from __future__ import annotations

import pytest

from ftsup.cli.logs import logs
from ftsup.errors import RunError
from ftsup.rundir import RunDir
from tests.cli.living import World, finish
from tests.report.leader import Leader


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    one.after(3).train(100)
    return one


def write_log(run: RunDir, epoch: str, node: str, text: str) -> None:
    path = run.log(epoch, node)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_logs_are_those_of_the_newest_attempt_with_the_node_where_there_are_several(world):
    run = world.run()
    write_log(run, "1.9", "n1", "old\n")
    write_log(run, "1.10", "n1", "[0] a\rb\n[1] c")
    write_log(run, "1.10", "n2", "[2] d\n")
    assert world.type(logs).stdout == "n1: [0] a\rb\nn1: [1] c\nn2: [2] d\n"
    assert world.type(logs, "--epoch", "1.9").stdout == "old\n"
    assert world.type(logs, "--node", "n2").stdout == "[2] d\n"


def test_logs_that_are_not_there(world):
    run = world.run()
    with pytest.raises(RunError, match="printed nothing yet"):
        world.type(logs)
    write_log(run, "1.1", "n1", "a\n")
    for args in (["--node", "../../jobs"], ["--epoch", ".."], ["--node", "n9"]):
        with pytest.raises(RunError, match=r"attempts 1\.1 and nodes n1"):
            world.type(logs, *args)


def test_logs_are_followed_over_attempts_until_the_run_is_over(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "one\ntw")
    acts = iter(
        [
            lambda: write_log(run, "1.1", "n1", "o\n"),
            lambda: write_log(run, "1.2", "n2", "three\n"),
            lambda: (finish(leader), write_log(run, "1.2", "n2", "four"), world.run(leader=leader)),
        ]
    )

    def sleep():
        next(acts)()

    world.asleep = sleep
    result = world.type(logs, "-f")
    assert result.stdout == "n1: one\nn1: two\nn2: three\nn2: four\n"
    assert result.stderr.splitlines()[-1] == "demo/20260102-030405-00aa: finished"


def test_a_log_that_was_cut_to_its_cap_goes_on_from_its_new_end(world, leader):
    run = world.run(leader=leader)
    write_log(run, "1.1", "n1", "a long first line\n")

    def cut():
        run.log("1.1", "n1").write_text("short\n")
        world.asleep = lambda: (write_log(run, "1.1", "n1", "more\n"), finish(leader), world.run(leader=leader))

    world.asleep = cut
    assert world.type(logs, "-f", "--node", "n1").stdout == "a long first line\n[the log was cut here]\nmore\n"
