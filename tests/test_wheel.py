"""The wheel works in a clean place: no checkout on the path, the batch template inside."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(180)]


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with our wheel; the dependencies are lent by this one, so that no registry is asked."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("ftsup-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))  # a path in a .pth lends no .pth files: the checkout stays out
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "venv/bin/python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=folder)
    return folder


def test_it_is_the_wheel_that_runs(clean: Path):
    where = run("venv/bin/python", "-c", "import ftsup; print(ftsup.__file__)", cwd=clean)
    assert Path(where.strip()).is_relative_to(clean)


def test_template_and_type_marker_travel_in_it(clean: Path):
    (package,) = clean.glob("venv/lib/python*/site-packages/ftsup")
    assert (package / "sbatch_templates/job.sbatch.j2").read_text() == (ROOT / "sbatch_templates/job.sbatch.j2").read_text()
    assert (package / "py.typed").exists()
    assert {path.name for path in (package / "configs").glob("*.*")} == {path.name for path in (ROOT / "configs").glob("*.*")}


def test_nothing_else_travels_in_it(clean: Path):
    (packages,) = clean.glob("venv/lib/python*/site-packages")
    assert sorted(path.name for path in packages.iterdir()) == ["ftsup", f"ftsup-{version('ftsup')}.dist-info", "lent.pth"]


def test_the_command_answers(clean: Path):
    assert "submit" in run("venv/bin/ftsup", "--help", cwd=clean)


def test_a_script_is_rendered_without_the_checkout(clean: Path):
    (clean / "train.py").write_text("print('trained')\n")
    (clean / "job.yaml").write_text("name: small\ncommand: [train.py]\nslurm: {nodes: 2, time: 1h}\n")
    script = run("venv/bin/ftsup", "render", "job.yaml", cwd=clean)
    assert script.startswith("#!/")
    assert "#SBATCH --nodes=2" in script
