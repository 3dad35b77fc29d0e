"""What the kernel says of memory, in both versions of control groups; and where it says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftsup.monitors import memory
from ftsup.monitors.memory import Memory

DATA = Path(__file__).parents[1] / "data" / "cgroups"


class Host:
    """The files of one recording, in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.told = folder, json.loads((DATA / f"{name}.json").read_text())

    def at(self, when: str, *, without: str = "") -> dict[str, Path]:
        """Where they lie, as `look` wants it."""
        place = self.folder / when
        for path, text in self.told[when].items():
            if not without or Path(path).name != without:
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_text(text)
        return {"own": place / "cgroup", "root": place, "host": self.folder / "vmstat"}


@pytest.fixture(params=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_a_kill_is_told_with_the_numbers(host: Host) -> None:
    before, after = memory.look(**host.at("before")), memory.look(**host.at("after"))
    assert (before.kills, before.limit_bytes, after.limit_bytes, after.peak_bytes) == (0, 300 << 20, 300 << 20, 300 << 20)
    name, count = {"memory.oom_control": ("memory.oom_control", "1 process"), "memory.events": ("memory.events", "2 processes")}[
        after.counter
    ]
    assert memory.killed(before, after) == (
        f"out of memory on host: the kernel killed {count} of the job here ({name}: oom_kill 0 -> {count[0]}); "
        "limit 300MiB (slurm.mem), peak 300MiB"
    )
    assert memory.killed(after, after) == ""
    assert memory.killed(after, before) == "", "another group's count"


def test_the_files_are_evidence(host: Host) -> None:
    files = memory.facts(**host.at("after"))
    assert any(path.endswith(("/step_0/memory.max", "/step_0/memory.limit_in_bytes")) for path in files), files
    assert any("oom_kill" in text for text in files.values())


def test_a_kernel_that_knows_no_peak_says_what_is_in_use(tmp_path: Path) -> None:
    host = Host(tmp_path, "v2")
    assert memory.look(**host.at("after", without="memory.peak")).peak_bytes == 20 << 20


def test_no_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/a\n")
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "memory" / "a" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    now = memory.look(own=tmp_path / "cgroup", root=tmp_path, host=tmp_path / "vmstat")
    assert now == Memory(kills=3, counter="memory.oom_control")
    assert memory.killed(Memory(kills=2, counter="memory.oom_control"), now) == (
        "out of memory on host: the kernel killed 1 process of the job here (memory.oom_control: oom_kill 2 -> 3)"
    )


def test_without_control_groups_of_memory_the_host_is_asked(tmp_path: Path) -> None:
    """A cluster that leaves memory to the jobs: the kernel kills when the node has none left."""
    (tmp_path / "cgroup").write_text("5:devices:/x\n0::/\n")
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 41\nnuma_hit 1\n")
    places = {"own": tmp_path / "cgroup", "root": tmp_path, "host": tmp_path / "vmstat"}
    now = memory.look(**places)
    said = memory.killed(Memory(kills=40, counter=now.counter), now)
    assert said == f"out of memory on host: the kernel killed 1 process on this host ({tmp_path}/vmstat: oom_kill 40 -> 41)"
    assert memory.facts(**places) == {str(tmp_path / "vmstat"): "oom_kill 41"}


@pytest.mark.parametrize("own", ["", "garbage", "4:memory", "0::/gone\n4:memory:/gone", "0::/bad"])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, own: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "memory.events").write_bytes(b"\xff\xfe oom_kill 9")
    (tmp_path / "cgroup").write_text(own)
    now = memory.look(own=tmp_path / "cgroup", root=tmp_path, host=tmp_path / "vmstat")
    assert now == Memory()
    assert memory.killed(Memory(), now) == ""
    assert memory.facts(own=tmp_path / "none", root=tmp_path, host=tmp_path / "vmstat") == {}


def test_this_host_can_be_asked() -> None:
    assert memory.look().kills >= 0
