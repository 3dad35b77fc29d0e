"""What every test gets: an environment without traces of a Slurm job or a run, and one line a reason for what was left out."""

from __future__ import annotations

import os
import signal
from collections import Counter

import hypothesis
import pytest

from tests.realslurm import cluster

# Nothing here is slow by itself, but two cores are shared with other tests: a time limit an example would only be noise.
hypothesis.settings.register_profile("ftsup", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ftsup")

TORCH_S = 180
"""To import it takes seconds, and a minute where many do so at once; of a module that shares its samples all would fail."""


def pytest_configure() -> None:
    """The suite may itself be run inside a Slurm job, in a shell that `ftsup mock env` prepared, or behind a script's `&`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "FTSUP_", "TORCHELASTIC_"))]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("torch") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TORCH_S))
    if why_not := cluster.why_not("linuxproc"):
        for item in items:
            if item.get_closest_marker("realslurm"):
                item.add_marker(pytest.mark.skip(reason=why_not))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, number in sorted(reasons.items()):
        terminalreporter.write_line(f"left out: {number} test{'s' * (number > 1)}: {reason}")
