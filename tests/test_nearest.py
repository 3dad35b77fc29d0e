"""One table: what people type, what there is, and what they are asked whether they meant."""

from __future__ import annotations

import pytest

from ftsup.nearest import did_you_mean, nearest

COMMANDS = ("submit", "render", "status", "logs", "list", "stop", "cancel", "checkpoints", "config", "rules", "replay")


@pytest.mark.parametrize(
    "word, known, meant",
    [
        ("confg", COMMANDS, ["config"]),
        ("statsu", COMMANDS, ["status"]),
        ("sttop", COMMANDS, ["stop"]),
        ("lgos", COMMANDS, ["logs"]),
        ("checkpoint", COMMANDS, ["checkpoints"]),
        ("check", COMMANDS, ["checkpoints"]),
        ("SUBMIT", COMMANDS, ["submit"]),
        ("xyzzy", COMMANDS, []),
        ("start", COMMANDS, []),
        ("", COMMANDS, []),
        ("x", ("a", "b"), []),
        ("of", ("requeue", "chain", "off"), ["off"]),
        ("at-beat", ("at_beat", "plain"), ["at_beat"]),
        ("SIGUSR3", ("SIGUSR1", "SIGUSR2"), ["SIGUSR1"]),
        ("gpus-per-node", ("nodes", "gpus_per_node"), ["gpus_per_node"]),
        ("traing", ("demo", "training", "training-2"), ["training"]),
        ("gpu12", ("gpu1", "gpu012", "gpu3"), ["gpu1"]),
        ("step-100.pt", ("step-2000.pt", "step-1000.pt"), ["step-1000.pt"]),
        ("nodes", ("nodes",), ["nodes"]),
    ],
)
def test_what_was_meant(word, known, meant):
    assert nearest(word, known) == meant


def test_several_the_nearest_first_and_as_words_for_people():
    known = ("step-10.pt", "step-11.pt", "step-111.pt", "final.pt")
    assert nearest("step-12.pt", known, most=3) == ["step-10.pt", "step-11.pt", "step-111.pt"]
    assert did_you_mean("step-12.pt", known, most=2) == "did you mean step-10.pt or step-11.pt?"
    assert did_you_mean("confg", COMMANDS, quote="'") == "did you mean 'config'?"
    assert did_you_mean("xyzzy", COMMANDS) == ""
