"""init: what it reads from scripts and clusters, what it writes, and that `config check` and a person can live with that."""

from __future__ import annotations

import itertools
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from ftsup.cli import scriptlook
from ftsup.cli.init import init
from ftsup.cli.ports import Ports, real
from ftsup.config import Config, load
from ftsup.errors import ConfigError, Unavailable
from ftsup.ports import Partition
from ftsup.slurm.fake import FakeSlurm

CONFIGS = Path(__file__).parents[2] / "configs"
ARGPARSE = """\
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", default="ckpt")
parser.add_argument("--resume", type=str)
args = parser.parse_args()
for step in range(9):
    torch.save({}, f"{args.out_dir}/step_{step}.pt")
"""


class World:
    """A folder with a script, a shell with or without Slurm, and a person who may sit there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.slurm = FakeSlurm(gpus=4)
        self.environ = {"PATH": str(home / "bin")}
        self.terminal = False

    def cluster(self) -> FakeSlurm:
        (self.home / "bin").mkdir()
        (self.home / "bin" / "scontrol").touch(mode=0o755)
        return self.slurm

    def script(self, text: str, name: str = "train.py") -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ports(self) -> Ports:
        asked = replace(real(), environ=self.environ, slurm=lambda _: self.slurm, cwd=self.home, terminal=self.terminal)
        return replace(asked, python="/opt/ftsup/bin/python")

    def init(self, *args: str, typed: str = ""):
        result = CliRunner().invoke(init, [*args], obj=self.ports(), input=typed)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    def made(self, *args: str, typed: str = "") -> tuple[Config, str]:
        """The configuration that it wrote, and its text."""
        self.init(*args, "--force", typed=typed)
        path = self.home / "config.yaml"
        return load(path).config, path.read_text()


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.script(ARGPARSE)
    return made


# Scripts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, resume, save",
    [
        (ARGPARSE, "--resume", "ckpt/step_*.pt"),
        ("import click\n@click.option('--ckpt-path')\ndef f(): ...", "--ckpt-path", ""),
        ("p.add_argument('-r', '--restore_from')\np.add_argument('--load')", "--restore_from", ""),
        ("p.add_argument('--resume', action='store_true')\np.add_argument('--load')", "--load", ""),
        ("flags.DEFINE_string('resume_from', None, '')", "--resume_from", ""),
        ("p.add_argument('--lr')\np.add_argument('--loader')", "", ""),
        ("torch.save(x, os.path.join('out', 'model_%06d.pt' % n))", "", "out/model_*.pt"),
        ("torch.save(x, 'out/epoch{}.pt'.format(n))", "", "out/epoch*.pt"),
        ("torch.save(x, f'/scratch/me/{run}/step-{n}.pt')", "", "/scratch/me/*/step-*.pt"),
        ("out = Path('a') / 'b'\ntorch.save(x, out / ('s' + str(n) + '.pt'))", "", "a/b/s*.pt"),
        ("torch.save(x, path)", "", ""),
        ("torch.save(x, 'last.pt')", "", "./last.pt"),
        ("def put(where, n):\n    torch.save({}, f'{where}/n{n}')\nput('ckpt', 3)", "", "ckpt/n*"),
        ("t = Path('c') / '.tmp'\nwith t.open('wb') as f:\n    torch.save(x, f)\nt.replace(Path('c') / f's{n}.pt')", "", "c/s*.pt"),
        ("torch.save(x, tmp := f'c/{n}.tmp')\nos.replace(tmp, f'c/step{n}.pt')", "", "c/step*.pt"),
        ("dcp.save(x, checkpoint_id=f'ckpt/{step}')", "", "ckpt/*"),
        ("engine.save_checkpoint('ds')", "", "./ds"),
        ("ModelCheckpoint(dirpath='pl', filename='{step}')", "", "pl/*.ckpt"),
        ("import transformers\nTrainingArguments(output_dir='hf')", "", "hf/checkpoint-*"),
        ("import transformers\nHfArgumentParser(TrainingArguments)", "--resume_from_checkpoint", "out/checkpoint-*"),
        ("torch.save(x, 'a/final.pt')\ntorch.save(x, f'a/{n}.pt')", "", "a/*.pt"),
        ("wandb.save('x')\njson.dump({}, open('log.json', 'w'))", "", ""),
    ],
)
def test_what_a_script_tells(tmp_path, text, resume, save):
    (tmp_path / "train.py").write_text(text)
    found = scriptlook.look(["train.py", "--output_dir", "out"], folder=tmp_path)
    assert not found.problem
    assert (found.resume.flag if found.resume else "") == resume
    assert (f"{found.save.dir}/{found.save.pattern}" if found.save else "") == save


@pytest.mark.parametrize(
    "text, field, where",
    [
        ("x = 1\nif asked(): save()", "asks", "train.py:2 asked()"),
        ("Trainer(callbacks=[SaveWhenAsked()])", "asks", "train.py:1 SaveWhenAsked()"),
        ("signal.signal(signal.SIGUSR1, save)", "handles", "train.py:1 signal.signal(SIGUSR1, ...)"),
        ("path = os.environ.get('FTSUP_RESUME_FROM')", "given", "train.py:1 FTSUP_RESUME_FROM"),
        ("trainer.train(resume_from_checkpoint=True)", "chooses", "train.py:1 resume_from_checkpoint=True"),
        ("trainer.fit(model, ckpt_path='last')", "chooses", "train.py:1 ckpt_path='last'"),
    ],
)
def test_where_a_script_tells_it(tmp_path, text, field, where):
    (tmp_path / "train.py").write_text(text)
    found = scriptlook.look(["train.py"], folder=tmp_path)
    assert getattr(found, field).where == where
    others = {"asks", "handles", "given", "chooses"} - {field}
    assert [other for other in others if getattr(found, other)] == []


def test_what_it_imports_from_beside_it_is_read_and_a_module_too(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "loop.py").write_text("import torch\nimport lab.loop\ntorch.save({}, f'out/{n}.pt')\n")
    (tmp_path / "lab" / "train.py").write_text("from lab.loop import loop\nraise SystemExit('this must not run')\n")
    for words in (["-m", "lab.train"], ["lab/train.py"]):
        found = scriptlook.look(words, folder=tmp_path)
        assert (found.torch, found.save.pattern, found.save.where) == (True, "*.pt", "lab/loop.py:3 torch.save(...)")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"def f(:\n", "train.py:1 cannot be read as Python"),
        (b"\0\0", "cannot be read"),
        (b"print 'two'", "train.py:1 cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
        (b"(" * 5000, "cannot be read"),
        (None, "train.py is not there"),
    ],
)
def test_a_script_that_cannot_be_read_is_said_and_is_no_obstacle(world, content, said):
    (world.home / "train.py").unlink()
    if content is not None:
        (world.home / "train.py").write_bytes(content)
    config, text = world.made("--script", "train.py", "--checkpoints", "ckpt")
    assert said in text
    assert config.command == ("train.py",)


# The file -----------------------------------------------------------------------------------------------------------------


def test_a_script_alone_becomes_a_configuration_whose_guesses_say_from_what(world):
    config, text = world.made("--script", "train.py")
    assert (config.name, config.command, config.resume_args) == ("train", ("train.py",), ("--resume", "{path}"))
    assert (config.checkpoint.dir, config.checkpoint.pattern) == ("ckpt", "step_*.pt")
    values = yaml.safe_load(text)
    lines = text.splitlines()
    for key in ("name", "resume_args", "nodes", "time", "dir", "pattern"):
        (at,) = [n for n, line in enumerate(lines) if line.split(":")[0].strip() == key]
        assert "# guessed" in lines[at] or "# guessed" in lines[at - 1], key
    assert set(values) == {"name", "command", "resume_args", "slurm", "checkpoint"}
    assert "train.py:4 --resume" in text
    assert "train.py:7 torch.save(...)" in text
    assert "level 1 of 3" in text
    assert "guessed" not in next(line for line in lines if line.startswith("command:"))


def test_what_was_said_is_not_guessed_and_the_three_next_commands_are_shown(world):
    said = world.init(
        *("--script", "train.py --out-dir=/data/x", "--name", "mine", "--nodes", "3", "--gpus", "2", "--time", "1d", "--partition", "p"),
        *("--account", "a", "--checkpoints", "c", "--pattern", "x*", "-o", "my run.yaml"),
    )
    config = load(world.home / "my run.yaml").config
    assert (config.name, config.slurm.nodes, config.workers, config.slurm.time_s) == ("mine", 3, 2, 86400.0)
    assert (config.slurm.partition, config.slurm.account, config.checkpoint.dir, config.checkpoint.pattern) == ("p", "a", "c", "x*")
    assert (world.home / "my run.yaml").read_text().count("# guessed") == 1  # the script's option
    tails = [line.split("  #")[0].strip() for line in said.stderr.splitlines() if line.startswith("  ftsup")]
    assert tails == [
        "ftsup config check 'my run.yaml'",
        "ftsup submit 'my run.yaml' --dry-run",
        "ftsup submit 'my run.yaml' --cluster mock",
    ]
    assert said.stdout == ""


def test_options_on_the_command_line_count_more_than_their_defaults(world):
    assert world.made("--script", "train.py --out-dir=/data/x")[0].checkpoint.dir == "/data/x"


def test_a_file_that_is_there_stays(world):
    (world.home / "config.yaml").write_text("precious")
    with pytest.raises(ConfigError, match=r"config\.yaml is there already(.|\n)*--force"):
        world.init("--script", "train.py")
    assert (world.home / "config.yaml").read_text() == "precious"
    world.init("--script", "train.py", "--force")
    assert "precious" not in (world.home / "config.yaml").read_text()
    assert sorted(path.name for path in world.home.iterdir()) == ["config.yaml", "train.py"]


def test_to_standard_output_nothing_is_written(world):
    said = world.init("--script", "train.py", "-o", "-")
    assert yaml.safe_load(said.stdout)["command"] == "train.py"
    assert sorted(path.name for path in world.home.iterdir()) == ["train.py"]
    assert "next:" not in said.stderr


@pytest.mark.parametrize(
    "args, said",
    [
        (["--time", "12"], "slurm.time: 12: allowed is a duration with its unit"),
        (["--name", "my run"], "name: my run: allowed is letters"),
        (["--partition", "a b"], "slurm.partition: a b: allowed is one word"),
        (["--script", "python train.py"], "python: torchrun starts the script"),
        (["--script", "train.py 'x"], "cannot be split into words"),
    ],
)
def test_what_no_configuration_can_hold_is_refused_and_nothing_is_written(world, args, said):
    with pytest.raises(ConfigError) as caught:
        world.init("--script", "train.py", *args)
    assert said in caught.value.message
    assert str(Path(tempfile.gettempdir())) not in str(caught.value)
    assert not (world.home / "config.yaml").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(world):
    with pytest.raises(ConfigError, match="cannot be written: no such file or directory"):
        world.init("--script", "train.py", "-o", "nowhere/config.yaml")


def test_without_a_script_the_only_one_here_is_guessed_and_several_are_named(world):
    world.script("print('no torch')", "setup.py")
    assert world.made()[0].command == ("train.py",)
    world.script("from torch import nn", "train_more.py")
    with pytest.raises(ConfigError, match=r"which script trains\? \(here are train.py, train_more.py\)"):
        world.init("--force")


@pytest.mark.parametrize("script", ["train_ddp", "train_fsdp2", "train_lightning", "train_accelerate"])
def test_from_an_example_script_what_its_own_configuration_says(world, script):
    world.script((CONFIGS / f"{script}.py").read_text(), f"{script}.py")
    own = load(CONFIGS / f"{script.removeprefix('train_')}.yaml").config
    config, _ = world.made("--script", f"{script}.py --dir checkpoints")
    assert (config.resume_args, config.checkpoint.dir) == (own.resume_args, own.checkpoint.dir)
    names = {"train_lightning": ("*.ckpt", "step=*.ckpt")}.get(script, (own.checkpoint.pattern,) * 2)
    assert (config.checkpoint.pattern, own.checkpoint.pattern) == names


def test_trainers_script_needs_no_resume_args(world):
    world.script((CONFIGS / "train_huggingface.py").read_text(), "hf.py")
    config, text = world.made("--script", "hf.py --output_dir out")
    assert (config.checkpoint.dir, config.checkpoint.pattern, config.checkpoint.complete) == ("out", "checkpoint-*", "trainer_state.json")
    assert config.resume_args == ()
    assert "hf.py:" in next(line for line in text.splitlines() if "FTSUP_RESUME_FROM" in line)


def test_an_own_command_gets_a_torchrun_line_or_stays_as_it_is(world):
    config, text = world.made("--script", "train.py", "--launch", "command")
    assert config.command[:3] == ("torchrun", "--nnodes", "{FTSUP_NNODES}")
    assert "none with `launch: command`" in text
    assert world.made("--script", "./go.sh -x", "--launch", "command")[0].command == ("./go.sh", "-x")


def test_a_script_without_torch_is_told_how_it_is_watched(world):
    world.script("print(1)")
    text = world.made("--script", "train.py")[1]
    assert "train.py does not import torch" in " ".join(text.replace("#", "").split())
    assert "# resume_args: nothing to resume from" in text
    assert "# checkpoint:\n#   dir: where does the script save?" in text
    world.script("from ftsup_worker import beat\nbeat(step=1)")
    assert "does not import torch" not in world.made("--script", "train.py", "--force")[1]


@pytest.mark.torch
@pytest.mark.parametrize(
    "names, pattern", [(["step-1.pt", "step-20.pt", "best.pt"], "step-*.pt"), (["epoch=1-step=5.ckpt"], "epoch=*-step=*.ckpt")]
)
def test_checkpoints_that_lie_there_say_their_pattern(world, names, pattern):
    import torch  # noqa: PLC0415 - a second

    (world.home / "old").mkdir()
    for name in names:
        torch.save({"x": torch.ones(2)}, world.home / "old" / name)
    (world.home / "old" / ".tmp").touch()
    (world.home / "old" / "log-1.txt").touch()
    (world.home / "old" / "log-2.txt").touch()
    (world.home / "old" / "log-3.txt").touch()
    config, text = world.made("--script", "train.py", "--checkpoints", "old")
    assert config.checkpoint.pattern == pattern
    assert "there (torch_zip)" in text


def test_folders_of_trainer_say_their_last_file(world):
    for number in (5, 10):
        (world.home / "hf" / f"checkpoint-{number}").mkdir(parents=True)
        (world.home / "hf" / f"checkpoint-{number}" / "trainer_state.json").write_text("{}")
    config, _ = world.made("--script", "train.py", "--checkpoints", "hf")
    assert (config.checkpoint.pattern, config.checkpoint.complete) == ("checkpoint-*", "trainer_state.json")


def test_the_environment_that_is_active_is_the_ranks_python(world):
    (world.home / "env" / "bin").mkdir(parents=True)
    (world.home / "env" / "bin" / "python").touch()
    world.environ["VIRTUAL_ENV"] = str(world.home / "env")
    config, text = world.made("--script", "train.py")
    assert config.python == str(world.home / "env" / "bin" / "python")
    assert "VIRTUAL_ENV" in text


# The cluster --------------------------------------------------------------------------------------------------------------


def test_the_partition_with_gpus_its_limit_and_its_gpus_are_proposed(world):
    slurm = world.cluster()
    slurm.partition_list = [
        Partition(name="cpu", default=True),
        Partition(name="gpu", nodes=("n1", "n2"), limit_s=6 * 3600.0),
        Partition(name="old", nodes=("n1",), up=False),
    ]
    config, text = world.made("--script", "train.py")
    assert (config.slurm.partition, config.slurm.gpus_per_node, config.slurm.time_s) == ("gpu", 4, 6 * 3600.0)
    for reason in ("guessed: it has GPUs", "guessed: nodes of gpu have 4", "guessed: partition gpu allows 6h"):
        assert reason in text
    assert "account" not in text


def test_one_partition_is_not_named_and_gpus_that_are_none_are_left_out(world):
    world.cluster().gpus = 0
    text = world.made("--script", "train.py")[1]
    assert "partition:" not in text
    assert "gpus_per_node" not in text


def test_a_cluster_that_charges_accounts_and_has_a_long_killwait(world):
    slurm = world.cluster()
    slurm.settings |= {"AccountingStorageEnforce": "associations,limits", "KillWait": "120 sec"}
    slurm.partition_list = [Partition(name="gpu", default=True, nodes=("n1",), accounts=("a", "b"))]
    config, text = world.made("--script", "train.py")
    assert "account: jobs are charged here (AccountingStorageEnforce=associations,limits)" in " ".join(text.replace("#", "").split())
    assert "gpu takes a, b only" in " ".join(text.replace("#", "").split())
    assert config.slurm.signal == "SIGUSR1@195"
    assert "guessed: longer than usual, as KillWait is 2min here" in text


@pytest.mark.parametrize(
    "args, said",
    [
        (["--partition", "gpux"], r"no partition gpux\nhint: did you mean gpu\?"),
        (["--partition", "zzz"], "hint: its partitions: gpu"),
        (["--nodes", "5"], "partition gpu has 2 nodes, and these are 5"),
    ],
)
def test_what_the_cluster_does_not_have_is_said(world, args, said):
    world.cluster().partition_list = [Partition(name="gpu", nodes=("n1", "n2"))]
    with pytest.raises(ConfigError) as caught:
        world.init("--script", "train.py", *args)
    assert re.search(said, str(caught.value))


def test_no_slurm_and_a_silent_slurm_are_said_and_are_no_obstacle(world):
    assert "no Slurm here" in world.init("--script", "train.py").stderr
    world.cluster().away = True
    said = world.init("--script", "train.py", "--force").stderr
    assert "Slurm was asked and gave no answer" in " ".join(said.split())


def test_after_the_first_silence_nothing_more_is_asked(world):
    calls = itertools.count()

    class Silent:
        def __getattr__(self, name):
            next(calls)
            raise Unavailable("nobody")

    world.cluster()
    world.slurm = Silent()
    world.init("--script", "train.py")
    assert next(calls) == 1


# A person -----------------------------------------------------------------------------------------------------------------


def test_on_a_terminal_it_asks_and_enter_takes_the_proposal(world):
    world.terminal = True
    config, text = world.made(typed="\nmine\n\n\n4\n8\n\n")
    assert (config.name, config.checkpoint.dir, config.slurm.nodes, config.slurm.gpus_per_node) == ("mine", "ckpt", 4, 8)
    assert "name: mine\n" in text
    assert "guessed: train.py:7 torch.save(...)" in text


def test_of_a_cluster_with_one_partition_that_is_not_asked_but_of_several_it_is(world):
    world.terminal = True
    world.cluster().partition_list = [Partition(name="gpu", nodes=("n1",))]
    assert "Partition" not in world.init("--script", "train.py", typed="\n" * 9).stderr
    world.slurm.partition_list = [*world.slurm.partition_list, Partition(name="cpu", default=True)]
    assert "Partition (guessed: it has GPUs) [gpu]" in world.init("--script", "train.py", "--force", typed="\n" * 9).stderr


def test_yes_asks_nothing_and_neither_does_a_pipe(world):
    for world.terminal, args in ((True, ["--yes"]), (False, [])):
        assert "Name of the run" not in world.init("--script", "train.py", "--force", *args, typed="x\n" * 9).output


def test_who_leaves_at_a_question_leaves_nothing(world):
    world.terminal = True
    result = CliRunner().invoke(init, [], obj=world.ports(), input="")
    assert result.exit_code == 1
    assert [path.name for path in world.home.iterdir()] == ["train.py"]
