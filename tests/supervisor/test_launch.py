"""What an attempt is started with: a clean environment, torchrun's words, where ranks meet, node_setup."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ftsup import proc
from ftsup.config import PLACEHOLDERS, Config, Launch
from ftsup.events import Epoch, How
from ftsup.events import Launch as Order
from ftsup.supervisor import launch

ORDER = Order(node="n2", epoch=Epoch(1, 2), node_rank=1, nodes=2, address="10.0.0.1", port=2950, path="/c/step5.pt", base_step=5)
AT = {"worker": Path("/run/worker"), "beats": Path("/b"), "out": Path("/o")}


def config(**changes: object) -> Config:
    return Config(name="x", command=("train.py", "--lr", "1"), **changes)  # type: ignore[arg-type]


def test_torchrun_starts_the_shim_with_the_script_and_the_checkpoint() -> None:
    words = launch.argv(config(resume_args=("--resume", "{path}"), workers_per_node=4), ORDER, python="/env/python", at=AT)
    assert words[:3] == ("/env/python", "-m", "torch.distributed.run")
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=4", "--master-addr=10.0.0.1", "--master-port=2950"} < set(words)
    assert words[-6:] == ("/run/worker/ftsup_worker/__main__.py", "train.py", "--lr", "1", "--resume", "/c/step5.pt")


def test_without_a_checkpoint_the_resume_arguments_vanish() -> None:
    first = Order(node="n1", epoch=Epoch(1, 1), node_rank=0, nodes=1, address="127.0.0.1", port=1)
    words = launch.argv(config(resume_args=("--resume", "{path}")), first, python="python", at=AT)
    assert "--resume" not in words


def test_an_own_command_gets_its_placeholders_and_the_prefix() -> None:
    own = Config(
        name="x",
        launch=Launch.COMMAND,
        command=(
            "accelerate",
            "launch",
            "--machine_rank={FTSUP_NODE_RANK}",
            "--main_process_ip={MASTER_ADDR}",
            "{other}",
            "{FTSUP_NPROC_PER_NODE}/{FTSUP_WORLD_SIZE}",
        ),
        workers_per_node=4,
    )
    words = launch.argv(own, ORDER, python="python", at=AT)
    assert words == ("accelerate", "launch", "--machine_rank=1", "--main_process_ip=10.0.0.1", "{other}", "4/8")
    assert set(launch.variables(ORDER, workers=4)) == set(PLACEHOLDERS)


@pytest.mark.parametrize(
    "lines, code, left",
    [
        ("export A='x y'\nexport PATH=/nowhere", 0, {"A": "x y"}),
        ("export A=1; exit 0", 0, {"A": "1"}),
        ("export A=$'a\\nb'\nf() { return 0; }\nf", 0, {"A": "a\nb"}),
        ("echo --ftsup-environment--\nexport A=2", 0, {"A": "2"}),
        ("exit 3", 3, {}),
        ("source /does/not/exist", 1, {}),
    ],
)
def test_node_setup_leaves_its_environment(lines: str, code: int, left: dict[str, str]) -> None:
    done = proc.run(launch.setup_argv(), deadline_s=30, env={**os.environ, "FTSUP_NODE_SETUP": lines})
    assert done.code == code
    found = launch.setup_environment(done.out)
    assert found is not None
    assert {name: value for name, value in found.items() if name == "A"} == left
    assert not [name for name in found if name.lower().startswith("ftsup")]


def test_node_setup_that_is_killed_leaves_nothing() -> None:
    assert launch.setup_environment("half of something") is None


def test_ranks_meet_where_another_node_was_heard() -> None:
    own = ["172.17.0.1", "10.0.0.1", "127.0.0.1"]
    assert launch.meeting_address(own, nodes=2, hint="10.0.0.1") == "10.0.0.1"
    assert launch.meeting_address(own, nodes=2, hint="10.9.9.9") == "172.17.0.1"
    assert launch.meeting_address(own, nodes=1, hint="10.0.0.1") == "127.0.0.1"


def test_a_port_that_was_let_go_can_be_bound() -> None:
    with launch.held_port("127.0.0.1") as holder:
        port = holder.getsockname()[1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_a_port_that_is_held_is_for_who_names_it_and_may_reuse_addresses() -> None:
    with launch.held_port("127.0.0.1") as holder, socket.socket() as other:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="already in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("", port)) as torchs, socket.create_connection(("127.0.0.1", port)):
            assert torchs.getsockname()[1] == port


def test_places_are_private_and_hold_a_beat_file_a_rank(tmp_path: Path) -> None:
    launch.make_places(tmp_path / "beats", tmp_path / "out", (2, 3))
    launch.make_places(tmp_path / "beats", tmp_path / "out", (2, 3))
    assert sorted(path.name for path in (tmp_path / "beats").iterdir()) == ["beat.2", "beat.3"]
    assert (tmp_path / "beats").stat().st_mode & 0o077 == 0


def test_a_command_that_cannot_be_executed_is_said() -> None:
    fault = launch.start_fault("n1", 127, "ftsup: cannot start pythonx: No such file or directory\n")
    assert fault is not None
    assert (fault.how, fault.error) == (How.SETUP, "ftsup: cannot start pythonx: No such file or directory")
    assert launch.start_fault("n1", 1, "Traceback") is None
