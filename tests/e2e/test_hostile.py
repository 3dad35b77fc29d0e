"""Another user of the machine: what he does at the leader's port and to our names is told once, and training goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ftsup import events as ev
from tests.e2e import hostile, mallory
from tests.e2e.harness import living, mock_site, stopped
from tests.e2e.sound import sound

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_another_user_who_knocks_floods_plants_and_looks() -> None:
    """Where this test is not run by root, he is us, and only knocks. Node-local memory is the other tests' as well: it is as it was."""
    with tempfile.TemporaryDirectory(prefix="ftsup-hostile-") as folder:
        Path(folder).chmod(0o711)  # pytest's own is closed to him
        with mock_site(Path(folder), nodes=1) as site:
            hostile.story(site, memory=False)


def test_another_user_who_takes_the_port_of_a_leader_that_died(site) -> None:
    """The next one leads at another port, and the nodes find it: the attempt trains on, and what breaks then is mended."""
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1)
    epoch = run.until_trains()
    leader, file = run.leader(), run.on("leader").root / "port.0"
    port = int(file.read_text())
    with stopped(run.bash()):
        leader.kill()
        run.until(lambda: not living(leader))
        stranger = mallory.start("listen", port=port)
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "listens\n"
    try:
        run.until(lambda: [note for note in run.events(ev.Noted) if note.trouble == "port" and note.over])
        assert int(file.read_text()) != port
        run.until_trains(more=6)
        assert run.launches() == [epoch]
        run.once(1, "exit")
        assert run.until_judged(1).root.rank == 1
        run.until_trains(epoch=ev.Epoch(1, 2))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.events(ev.NodeSilent) == []
    sound(run, told=[rf"somebody else has port {port}, where the leader was: .*\([\d.]+ s\)$"])
