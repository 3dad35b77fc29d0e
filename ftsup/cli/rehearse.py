"""`ftsup submit --dry-run=mock`: the whole way, submitted to a mock of its own in a temporary folder, until every rank made two steps.

Ends within a limit and leaves nothing. The training script is the user's own: what it writes elsewhere, it writes here too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from msgspec.structs import replace

from ftsup.cli.cluster import Cluster
from ftsup.cli.newrun import new_run, submit_run
from ftsup.cli.ports import Ports
from ftsup.config import Config
from ftsup.errors import RunError
from ftsup.mockslurm import control as mockslurm
from ftsup.ports import JobState
from ftsup.report import runs
from ftsup.report.story import Stage
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

STEPS = 2
LIMIT_S = 600.0
POLL_S = 0.5
MOST_RANKS = 8
"""All of them are on this machine."""
LAST_LINES = 20


def rehearse(ports: Ports, config: Config, file: Path) -> None:
    """Run it; RunError says what went wrong, with the last lines of what there is to read."""
    nodes = max(1, min(config.slurm.nodes, MOST_RANKS // config.workers))
    click.echo(f"rehearsal: {nodes} of {config.slurm.nodes} nodes, {config.workers} ranks each, on this machine", err=True)
    with tempfile.TemporaryDirectory(prefix="ftsup-") as name:
        home = Path(name)
        state = home / "mock"
        mockslurm.create(state, nodes=nodes, kill_wait_s=5.0, begin_wait_s=1.0)
        try:
            with new_run(ports, _smaller(config, home, nodes=nodes), file) as run:
                job = submit_run(ports, run, Cluster(state=str(state)))
            click.echo(f"rehearsal: {_watch(ports, run, job, Cluster(state=str(state)))}", err=True)
        finally:
            mockslurm.stop(state)


def _smaller(config: Config, home: Path, *, nodes: int) -> Config:
    """The same training, with everything of ours in the temporary folder. Of Slurm's options the mock gets what it has."""
    slurm = replace(config.slurm, nodes=nodes, partition="", account="", qos="", exclude=(), extra={}, gpus_per_node=None, mem_bytes=None)
    checkpoint = replace(config.checkpoint, dir=str(home / "checkpoints")) if config.checkpoint.dir else config.checkpoint
    return replace(
        config,
        slurm=replace(slurm, cpus_per_task=None, time_s=None),
        workers_per_node=config.workers,
        checkpoint=checkpoint,
        runs_dir=str(home / "runs"),
        local_dir=str(home / "local"),
    )


def _watch(ports: Ports, run: RunDir, job: str, chosen: Cluster) -> str:
    """Look until the ranks have made their steps; how it went, as a sentence."""
    began = ports.now()
    while (ports.now() - began).total_seconds() < LIMIT_S:
        view = runs.read(run)
        story = view.story
        if story.stage is Stage.FINISHED:
            return "training finished"
        if verdict := next((incident.verdict for incident in story.incidents if incident.verdict), story.verdict):
            raise RunError(f"the rehearsal failed: {verdict.reason}\n{_last_words(run)}")
        steps = [rank.step for rank in view.now.ranks.values()] if view.now else []
        if steps and len(steps) >= len(story.nodes) and all(step is not None and step >= STEPS for step in steps):
            took_s = (ports.now() - began).total_seconds()
            return f"all {len(steps)} ranks made {STEPS} steps, {took_s:.0f} s after it was submitted"
        state = ports.slurm(chosen.environ(ports.environ)).show(job).state
        if state not in {JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN}:
            raise RunError(f"the rehearsal's job ended ({state.value}) before a verdict\n{_last_words(run)}")
        ports.sleep(POLL_S)
    raise RunError(f"the rehearsal made no {STEPS} steps in {LIMIT_S:.0f} s\n{_last_words(run)}")


def _last_words(run: RunDir) -> str:
    """The end of the ranks' output, and of the batch script's own."""
    found = []
    for path in (*sorted(run.root.glob("logs/*/*.log")), *sorted(run.root.glob("slurm-*.out"))):
        lines = path.read_text(errors="replace").splitlines()[-LAST_LINES:]
        found += [f"--- {path.relative_to(run.root)}", *(one_line(line, width=500) for line in lines)] if lines else []
    return "\n".join(found) or "nothing was printed"
