"""notify.command before the run: what `config check` and `submit` say of it, and `config notify`, which tries it out."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from ftsup.cli.config import check, notify
from ftsup.cli.warn import hook_warnings
from ftsup.config import Config, Notify
from ftsup.errors import ConfigError, RunError
from tests.cli.living import World


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World(tmp_path)


def config(world: World, *command: str) -> str:
    path = world.home / "config.yaml"
    path.write_text(yaml.safe_dump({"name": "demo", "command": ["train.py"], "notify": {"command": list(command)}}))
    return str(path)


def warned(world: World, *command: str) -> list[str]:
    return hook_warnings(
        Config(name="x", command=("x",), workdir=str(world.home), notify=Notify(command=command)), environ=world.ports().environ
    )


def test_one_that_is_not_there_or_cannot_be_executed_is_said_when_the_file_is_checked(world):
    (world.home / "tell.sh").write_text("#!/bin/sh\n")
    for command, text in (
        (("./tell.sh",), f"{world.home}/tell.sh is not executable; hint: chmod +x"),
        (("./gone.sh", "-v"), f"there is no file {world.home}/gone.sh"),
        (("mail", "me"), "there is no mail on PATH here"),
        ((str(world.home),), "there is no file"),
    ):
        (said,) = warned(world, *command)
        assert text in said
    assert warned(world) == []
    (world.home / "tell.sh").chmod(0o755)
    assert warned(world, "./tell.sh") == warned(world, "/bin/sh") == []
    assert "warning: notify.command: there is no mail on PATH here" in world.type(check, config(world, "mail")).stderr


def test_it_is_tried_out_as_the_leader_will_call_it(world):
    script = "read line; printf '%s' \"$line\" >got; echo fine; echo not so >&2"
    result = world.type(notify, config(world, "/bin/sh", "-c", script))
    assert result.stdout.splitlines()[:2] == ["  out: fine", "  err: not so"]
    assert result.stdout.splitlines()[2].startswith("it ended well, after ")
    got = json.loads((world.home / "got").read_text())
    assert (got["kind"], got["text"]) == ("test", "a test message for demo, sent by me: nothing has happened")
    assert '"kind": "test"' in result.stderr


def test_what_goes_wrong_with_it_is_said_with_its_words(world):
    with pytest.raises(RunError, match="exit code 4: no route") as caught:
        world.type(notify, config(world, "/bin/sh", "-c", "echo no route >&2; exit 4"))
    assert "a run goes on" in caught.value.hint
    with pytest.raises(RunError, match="left 1 process behind: ended"):
        world.type(notify, config(world, "/bin/sh", "-c", "/bin/sleep 60 &"))


def test_without_one_there_is_nothing_to_try(world):
    result = CliRunner().invoke(notify, [config(world)], obj=world.ports())
    assert isinstance(result.exception, ConfigError)
    assert "notify.command is empty" in str(result.exception)
