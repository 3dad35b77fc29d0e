"""Another user of the machine: what he does at the leader's port and to our names is told once, and training goes on."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import pytest

from ftsup import events as ev
from tests.e2e import hostile, mallory
from tests.e2e.harness import Run, living, mock_site, stopped
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
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, node_grace="12s")  # nodes look for a leader twice in that time
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
    sound(run, told=[rf"somebody else has port {port}, where the leader was: .*\(\d[^)]*\)$"])


PACED = Path(__file__).with_name("paced.py")
SPAN_S, SPANS = 6.0, 8
REST_S = 1.0
"""After a span, until the leader has shut what is left of it."""


def steps_s(run: Run, rank: int, spans: list[list[float]]) -> list[float]:
    """How long each step took that lies in one of these spans whole."""
    times = [float(line) for line in (run.work / f"times.{rank}").read_text().splitlines()]
    return [after - before for before, after in pairwise(times) if any(began <= before and after <= ended for began, ended in spans)]


@pytest.mark.drill
def test_how_long_steps_take_while_somebody_floods_the_leader(site, capsys) -> None:
    """Floods and rests take turns in one run, so that what else this machine does is in both. The flood's own work is in it as well."""
    run = site.submit(command=[str(PACED)], workers_per_node=1, checkpoint={"pattern": "none*"})
    run.until_trains(more=50)
    stranger = mallory.start("pulse", port=int((run.on("leader").root / "port.0").read_text()), seconds=SPAN_S, times=SPANS)
    found = mallory.done(stranger, within_s=4 * SPAN_S * SPANS)
    floods = found["spans"]
    rests = [[ended + REST_S, ended + SPAN_S] for _, ended in floods]
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.incidents() == run.events(ev.NodeSilent) == []
    assert found["tried"] > SPANS * mallory.HELD
    quiet, flooded = steps_s(run, 0, rests), steps_s(run, 0, floods)
    p99 = [quantiles(steps, n=100)[-1] for steps in (quiet, flooded)]
    ratios = median(flooded) / median(quiet), p99[1] / p99[0]
    with capsys.disabled():
        print(
            f"\n{len(quiet)} steps at rest, {len(flooded)} while {found['tried']} connections came: median {median(quiet) * 1e3:.2f} and"
            f" {median(flooded) * 1e3:.2f} ms (x{ratios[0]:.2f}), p99 {p99[0] * 1e3:.1f} and {p99[1] * 1e3:.1f} ms (x{ratios[1]:.2f})"
        )
    assert ratios[0] < 3.0, "not even on a machine of two cores that the flood shares"
    sound(run)
