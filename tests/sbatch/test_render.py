"""Every value arrives in bash, and in sbatch, as it was; nothing in a value becomes code or an option."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ftsup import sbatch
from ftsup.cli import owntemplate
from ftsup.config import Config, Requeue, SlurmOptions
from ftsup.errors import ConfigError
from ftsup.rundir import LocalDir, RunDir

OURS = "sbatch_templates/job.sbatch.j2"
CONTROL = "".join(map(chr, [*range(32), 127]))
RUN = RunDir(Path("/runs/demo/20260101-000000-abcd"))
CONFIG = Config(name="demo", command=("train.py",), workdir="/home/me")
text = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
nasty = st.one_of(text, st.text("$`'\"\\\n\r\t #%;&|<>(){}!*?~SBATCH-", max_size=40))
part = nasty.map(lambda value: value.replace("/", "_")).filter(lambda value: value not in {"", ".", ".."})
no_control = nasty.map(lambda value: "".join(char for char in value if char >= " " and char != "\x7f"))


def render(config: Config, *, run: RunDir = RUN, python: str = "/usr/bin/python3") -> str:
    return sbatch.fill(sbatch.default_template(), sbatch.values(config, run=run, python=python))


def option_lines(script: str) -> list[str]:
    """What sbatch takes for options: #SBATCH lines before the first line that is no comment."""
    found = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            found.append(line.removeprefix("#SBATCH").strip())
        elif line.strip() and not line.startswith("#"):
            break
    return found


def read_option(line: str) -> str:
    """One #SBATCH line as a real sbatch (22.05) was seen to read it: quotes, backslashes everywhere, # ends it, blanks split it."""
    out, quote, at = [], "", 0
    while at < len(line):
        char = line[at]
        if char == "\\":
            at += 1
            out.append(line[at])
        elif quote:
            quote, out = ("", out) if char == quote else (quote, [*out, char])
        elif char in "\"'":
            quote = char
        elif char == "#" or char.isspace():
            raise AssertionError(f"{line!r} ends early")
        else:
            out.append(char)
        at += 1
    assert not quote
    return "".join(out)


def bash_values(script: str, *, tmpdir: str = "") -> dict[str, str]:
    """Runs the script's assignments in bash; what arrived. `cd` tells where it would go."""
    head = script[: script.index("\nleader=")]
    probe = 'cd() { printf "cd=%s\\0" "$1"; }\n' + head + '\nprintf "%s\\0" "python=$python" "run=$run" "local=$FTSUP_LOCAL"'
    env = {"SLURM_JOB_ID": "77", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"} | ({"TMPDIR": tmpdir} if tmpdir else {})
    done = subprocess.run(["bash"], input=probe.encode(), capture_output=True, check=True, env=env)
    assert done.stderr == b""
    found: dict[str, str] = {}
    for item in done.stdout.decode().split("\0")[:-1]:
        key, _, value = item.partition("=")
        found["workdir" if key == "cd" and "workdir" not in found else key] = value
    return found


@settings(max_examples=60)
@given(workdir=text | nasty, python=nasty, local_dir=nasty, folder=part)
@example(workdir="$(touch /tmp/x)", python="a\nb'; exit #", local_dir="%j `id`", folder='"\r\n#SBATCH --nodes=9')
def test_every_value_arrives_in_bash_as_it_was(workdir, python, local_dir, folder):
    if set(folder) & set(CONTROL) | set(folder) & {"\\"}:
        with pytest.raises(ConfigError, match="runs_dir"):
            render(CONFIG, run=RunDir(Path("/") / folder / "demo" / "1-a"))
        folder = folder.translate(dict.fromkeys(map(ord, CONTROL + "\\"), "_"))
    run = RunDir(Path("/") / folder / "demo" / "1-a")
    script = render(replace(CONFIG, workdir=workdir, local_dir=local_dir), run=run, python=python)
    arrived = bash_values(script)
    local = LocalDir(base=Path("/"), run_id=run.id, job="77", node="leader").root
    assert arrived["workdir"] == workdir
    assert arrived["python"] == python
    assert arrived["run"] == arrived["cd"] == str(run.root)
    assert arrived["local"] == (local_dir or "/tmp") + str(local)  # noqa: S108
    assert len(option_lines(script)) == len(sbatch.options(CONFIG, run=run.root))


@given(values=st.lists(no_control.filter(bool), min_size=1, max_size=4))
@example(values=["a b'c\"d\\e #f $HOME %j", "#", "\\", '"', "--nodes=9"])
def test_every_option_arrives_in_sbatch_as_it_was(values):
    config = replace(CONFIG, slurm=SlurmOptions(extra={"comment": tuple(values), "exclusive": True, "hold": False}))
    lines = [read_option(line) for line in option_lines(render(config))]
    assert [line for line in lines if line.startswith("--comment")] == [f"--comment={value}" for value in values]
    assert "--exclusive" in lines
    assert not [line for line in lines if "hold" in line]


@pytest.mark.parametrize("value", ["a\n#SBATCH --nodes=9", "a\rb", "\x1b[2J", "a\0"])
def test_a_line_break_in_an_option_is_refused_with_its_key(value):
    with pytest.raises(ConfigError, match=r"slurm\.extra\.comment"):
        render(replace(CONFIG, slurm=SlurmOptions(extra={"comment": value})))
    with pytest.raises(ConfigError, match=r"slurm\.account"):
        render(replace(CONFIG, slurm=SlurmOptions(account=value)))


def test_a_percent_sign_in_the_run_directory_is_no_replacement_symbol_and_a_backslash_is_refused():
    lines = sbatch.options(CONFIG, run=Path("/runs/50%j/%%j.out"))
    assert "--output=/runs/50%%j/%%%%j.out/slurm-%j.out" in lines
    with pytest.raises(ConfigError, match="backslash"):
        sbatch.options(CONFIG, run=Path("/runs/a\\b"))


def test_the_script_is_the_one_that_was_reviewed():
    slurm = SlurmOptions(nodes=2, time_s=90061, account="acc", gpus_per_node=4, mem_bytes=1536 * 2**20, exclude=("n1", "n[3-4]"))
    assert sbatch.options(replace(CONFIG, slurm=slurm), run=RUN.root) == [
        "--job-name=demo",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--time=1-01:01:01",
        "--account=acc",
        "--gpus-per-node=4",
        "--mem=1536M",
        "--exclude=n1,n[3-4]",
        "--signal=SIGUSR1@120",
        "--requeue",
        "--open-mode=append",
        "--propagate=NONE",
        "--output=/runs/demo/20260101-000000-abcd/slurm-%j.out",
    ]
    assert len(render(CONFIG).splitlines()) <= 95


@pytest.mark.parametrize("mode", [Requeue.OFF, Requeue.CHAIN])
def test_a_run_that_must_not_be_requeued_says_so_to_slurm(mode):
    script = render(replace(CONFIG, slurm=SlurmOptions(requeue=mode)))
    assert "#SBATCH --no-requeue" in script
    assert "may_requeue=no" in script


def test_secrets_of_env_are_not_in_the_script():
    assert "hunter2" not in render(replace(CONFIG, env={"TOKEN": "hunter2"}))


def test_setup_lines_stand_as_they_are_after_the_first_command_and_with_unix_line_ends():
    script = render(replace(CONFIG, setup="#SBATCH --nodes=9\r\nexport A=b \\\r\n"))
    assert "\r" not in script
    assert "\n#SBATCH --nodes=9\nexport A=b \\\n\n" in script
    assert "--nodes=9" not in option_lines(script)


def test_without_local_dir_the_nodes_own_tmpdir_is_taken():
    assert bash_values(render(CONFIG), tmpdir="/scratch/a b")["local"].startswith("/scratch/a b/ftsup-")


def test_a_users_own_template_has_the_same_names_and_all_of_jinja(tmp_path):
    own = tmp_path / "own.j2"
    own.write_text("{% if requeue == 'yes' %}\n{{ options }}\n{% endif %}\nexec {{ python }} -m ftsup lead {{ run }}\n")
    values = sbatch.values(CONFIG, run=RUN, python="/a b")
    assert owntemplate.fill(own, values).endswith(f"without a trap\nexec '/a b' -m ftsup lead {RUN.root}\n")


LEAD = "{{ python }} -m ftsup lead {{ run }}\n"


@pytest.mark.parametrize(
    "head",
    [
        "#!/bin/bash\n",
        "#!/bin/bash\n{{ options }}\n",
        "#!/bin/bash\n{{ options }}\n\n  # ours\n#SBATCH --comment=x\n\t\n",
        "",
    ],
)
@pytest.mark.parametrize("first", [LEAD, "set -e\n" + LEAD, "(trap '' USR1 USR2; " + LEAD.strip() + ")\n", LEAD.strip()])
def test_a_users_own_template_has_our_first_command_before_its_own_and_after_its_options(tmp_path, head, first):
    own = tmp_path / "own.j2"
    own.write_text(head + first)
    script = owntemplate.fill(own, sbatch.values(CONFIG, run=RUN, python="p"))
    lines = script.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith(owntemplate.DEAF + " # by ftsup"))
    assert not [line for line in lines[:at] if line.strip() and not line.strip().startswith("#")]
    assert not [line for line in lines[at:] if line.startswith("#SBATCH")]
    assert lines[at + 1].split()[0] == first.replace("{{ python }}", "p").split()[0]
    assert subprocess.run(["bash", "-n", "-c", script], check=True, capture_output=True).stderr == b""


@pytest.mark.parametrize("text", ["{{ python }} lead.py {{ run }}\n", "# ftsup\n", "exec ftsup node\n"])
def test_a_users_own_template_that_starts_no_leader_is_refused(tmp_path, text):
    (tmp_path / "own.j2").write_text(text)
    with pytest.raises(ConfigError, match=r"own\.j2 starts no leader") as error:
        owntemplate.fill(tmp_path / "own.j2", sbatch.values(CONFIG, run=RUN, python="p"))
    assert error.value.hint == "it must run {{ python }} -m ftsup lead {{ run }}"


@pytest.mark.parametrize("lead", ["exec ftsup lead x", "'/a b/bin/ftsup' lead x", 'p -m "ftsup" lead x', LEAD])
def test_a_leader_can_be_started_in_each_way(tmp_path, lead):
    (tmp_path / "own.j2").write_text(lead)
    assert " lead " in owntemplate.fill(tmp_path / "own.j2", sbatch.values(CONFIG, run=RUN, python="p"))


@pytest.mark.parametrize("text, said", [("{{ nothing }}", "nothing"), ("\n{% if %}", r"own\.j2, line 2"), (None, "cannot be read")])
def test_mistakes_in_a_users_own_template_are_told(tmp_path, text, said):
    if text:
        (tmp_path / "own.j2").write_text(text)
    with pytest.raises(ConfigError, match=rf"slurm\.template: .*{said}"):
        owntemplate.fill(tmp_path / "own.j2", sbatch.values(CONFIG, run=RUN, python="p"))


@given(setup=nasty, workdir=nasty)
@example(setup="echo {{ run }} {% raw %} {# no #}", workdir="{{ python }}")
def test_our_template_is_one_of_jinjas_and_means_the_same_there(setup, workdir):
    values = sbatch.values(replace(CONFIG, setup=setup, workdir=workdir), run=RUN, python="/p")
    assert sbatch.fill(sbatch.default_template(), values) == owntemplate.fill(Path(sbatch.__file__).parent / OURS, values)


def test_a_name_that_our_template_does_not_have_is_an_error():
    with pytest.raises(ConfigError, match="asks for nothing"):
        sbatch.fill("{{ nothing }}", {"run": "x"})


@pytest.mark.parametrize(
    "size, said", [(0, "0"), (1, "1K"), (1024, "1K"), (2**20, "1M"), (2**30 * 3, "3G"), (2**50, "1024T"), (1025, "2K")]
)
def test_memory_is_said_in_the_largest_unit_that_is_exact(size, said):
    assert sbatch.memory(size) == said
