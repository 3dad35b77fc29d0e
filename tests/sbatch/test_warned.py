"""The warning where it comes to the batch script (B:, or by hand): the leader hears it, and bash does not die of it, whatever it does."""

from __future__ import annotations

import sys

import pytest

from tests.sbatch.test_script import World

HEARS = """
import os, signal, sys, time
heard = []
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
for number in sys.argv[1:]:
    os.kill(os.getppid(), int(number))
    while not heard:
        time.sleep(0.01)
    print(heard.pop(), file=open("calls", "a"))
"""


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def calls(world: World) -> list[str]:
    return (world.home / "calls").read_text().splitlines()


def test_the_leader_hears_each_warning_and_goes_on(world):
    (world.home / "hears.py").write_text(HEARS)
    code = world.job(f"decide finished 0; exec {sys.executable} hears.py 10 12 10")
    assert code == 0
    assert calls(world) == ["start -m ftsup lead " + str(world.run.root), "SIGUSR1", "SIGUSR2", "SIGUSR1"]


def test_a_leader_that_only_begins_does_not_die_of_it(world):
    code = world.job("kill -USR1 $$; kill -USR1 $PPID; kill -USR2 $PPID; decide finished 0; exit 0")
    assert (code, len(calls(world))) == (0, 1)


@pytest.mark.parametrize("setup", ["kill -USR1 $$; kill -USR2 $$", "set -e; (kill -USR1 $BASHPID)"])
def test_it_comes_before_the_leader_begins(world, setup: str):
    assert world.job("decide finished 0; exit 0", setup=setup) == 0


def test_it_comes_while_bash_waits_to_start_a_leader_again(world):
    world.program("sleep", "kill -USR1 $PPID; /bin/sleep 0.2; echo slept >>calls")
    code = world.job('n=$(grep -c "^start" calls); [ "$n" = 3 ] || die; decide finished 0; exit 0')
    assert code == 0


HEARD = "trap '[ -z \"$leader\" ] || kill -USR1 $leader' USR1\n"
OWN = "#!/bin/bash\n{{ options }}\n\n{{ setup }}\n"


@pytest.mark.parametrize(
    "lead, hears, said",
    [
        ("{lead}", "kill -USR1 $PPID; echo lives >>calls", ["lives", "bash lives"]),
        ("exec {lead}", "kill -USR1 $$; echo lives >>calls", ["lives"]),
        (
            HEARD + "{lead} & leader=$!; touch {home}/trap-knows\nwhile wait $leader; kill -0 $leader 2>/dev/null; do :; done",
            f"until [ -e trap-knows ]; do /bin/sleep 0.01; done; exec {sys.executable} hears.py 10",
            ["SIGUSR1", "bash lives"],
        ),
    ],
    ids=["in the foreground", "in place of bash", "with a trap of its own"],
)
def test_a_users_own_template_does_not_die_of_it_either(world, lead: str, hears: str, said: list[str]):
    (world.home / "hears.py").write_text(HEARS)
    own = f"{OWN}{lead.format(lead='{{ python }} -m ftsup lead {{ run }}', home=world.home)}\necho bash lives >>{world.home}/calls\n"
    assert world.job(hears, own=own, setup="kill -USR1 $$; kill -USR2 $$") == 0
    assert calls(world)[1:] == said
