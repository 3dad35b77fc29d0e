"""What a configuration file becomes, and what is said about the mistakes in it: all of them, each with its line."""

from __future__ import annotations

import pytest

from ftsup.config import Launch, Requeue, SlurmOptions, from_json, load, to_json
from ftsup.errors import ConfigError, Exit
from ftsup.policy.rules import key_name

SMALLEST = "name: a\ncommand: train.py\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # so that messages say `c.yaml:3`

    def write(text):
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path.relative_to(tmp_path)

    return write


def problems(path, *sets):
    with pytest.raises(ConfigError) as caught:
        load(path, sets=sets)
    assert caught.value.exit_code is Exit.CONFIG
    return caught.value.message.splitlines()


def test_two_keys_are_enough(write):
    config = load(write(SMALLEST)).config
    assert (config.name, config.command, config.launch, config.workers, config.slurm.nodes) == ("a", ("train.py",), Launch.TORCHRUN, 1, 1)


def test_every_kind_of_value(write):
    text = """\
name: a
launch: command
command: run --text "two words"
env: {OMP_NUM_THREADS: 4, EMPTY: '', "NO": 1.5}
slurm:
  time: 1-12:00:00
  mem: 512MiB
  gpus_per_node: 8
  account: 1234
  requeue: off
  exclude: n[1-3]
  extra:
    exclusive:
    overcommit: true
    hint: false
    mail-type: [END, FAIL]
    nice: 100
hang: {step: 90s, step_factor: 3}
checkpoint:
"""
    config = load(write(text)).config
    assert config.command == ("run", "--text", "two words")
    assert config.env == {"OMP_NUM_THREADS": "4", "EMPTY": "", "NO": "1.5"}
    assert (config.slurm.time_s, config.slurm.mem_bytes, config.slurm.account) == (129600.0, 2**29, "1234")
    assert config.slurm.requeue is Requeue.OFF
    assert config.slurm.exclude == ("n[1-3]",)
    assert config.slurm.flags == (("exclusive", None), ("overcommit", None), ("mail-type", "END"), ("mail-type", "FAIL"), ("nice", "100"))
    assert (config.hang.step_s, config.hang.step_factor, config.workers) == (90.0, 3.0, 8)


def test_all_mistakes_of_a_file_at_once_each_with_its_line(write):
    text = """\
name: my run
comand: x
command: train.py
grace: 60
nodes: 3
slurm:
  nodes: two
  partition: yes
  requeue: of
policy: {hard_cap: 0, errors: 010}
env: {A: true}
env: {}
"""
    assert problems(write(text)) == [
        "c.yaml:1: name: my run: allowed is letters, digits, '.', '_', '-'; at most 64, the first a letter or a digit",
        "c.yaml:2: comand: no such key; did you mean command?",
        "c.yaml:4: grace: 60: allowed is a duration with its unit, such as 90s, 20min, 1h30m, 2d or 1-12:00:00",
        "c.yaml:5: nodes: no such key; did you mean slurm.nodes?",
        "c.yaml:7: slurm.nodes: two: allowed is a whole number, at least 1",
        "c.yaml:8: slurm.partition: yes: YAML reads this as a boolean, true; write 'yes' with the quotes where a text is meant",
        "c.yaml:9: slurm.requeue: of: allowed is one of requeue, chain, off; did you mean off?",
        "c.yaml:10: policy.hard_cap: 0: allowed is a whole number, at least 1",
        "c.yaml:10: policy.errors: 010: YAML reads this as a number, 8; allowed is a whole number, at least 0",
        "c.yaml:11: env.A: true: YAML reads this as a boolean, true; write 'true' with the quotes where a text is meant",
        "c.yaml:12: env: given twice, first at c.yaml:11; keep one",
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ("slurm: {time: 1:00}", "YAML reads this as a number, 60; could be hours and minutes or minutes and seconds"),
        ("slurm: {time: 60}", "allowed is a duration with its unit"),
        ("slurm: {time: 0s}", "more than 0s"),
        ("slurm: {time: 1h, signal: SIGUSR1@3600}", "slurm.signal: SIGUSR1@3600: the warning would come before the job begins"),
        ("slurm: {signal: SIGUSR3@60}", "SIGUSR3@60: no such signal; did you mean SIGUSR1?"),
        ("slurm: {signal: SIGKILL@60}", "SIGKILL means something else to torchrun or to the kernel; allowed are SIGUSR1, SIGUSR2"),
        ("slurm: {signal: SIGUSR1}", "allowed is a signal and its lead in seconds, such as SIGUSR1@120"),
        ("slurm: {signal: 'R:USR1@60'}", "write it without R:, or with B: for the batch script alone"),
        ("slurm: {signal: 'B:none@60'}", "no such signal"),
        ("slurm: {signal: none}", "allowed is a signal and its lead in seconds"),
        ("slurm: {signal: none@70000}", "allowed are 1 to 65535 seconds"),
        ("slurm: {signal: 'B:USR1@60', handlers: plain}", "slurm.handlers: plain wants it for each: write it as SIGUSR1@60"),
        ("slurm: {signal: none@60, handlers: plain}", "slurm.handlers: plain wants it for each: write it as SIGUSR1@60"),
        ("slurm: {signal: USR1@99999}", "allowed are 1 to 65535 seconds"),
        ("slurm: {signal: USR1@15}", "no time is left to save: the requeue is asked waits.end_margin (15s) before the end"),
        ("checkpoint: {keep: 0}", "checkpoint.keep: 0: allowed is a whole number, at least 1"),
        ("slurm: {mem: 12}", "allowed is a size with its unit"),
        ("slurm: {begin: now}", "slurm.begin: no such key; allowed are nodes, time, partition"),
        ("gpus_per_nod: 8", "gpus_per_nod: no such key; did you mean slurm.gpus_per_node?"),
        ("script: train.py", "script: no such key; did you mean command?"),
        ("slurm: {gpus: 8}", "slurm.gpus: no such key; did you mean slurm.gpus_per_node?"),
        ("gpus: 8", "gpus: no such key; did you mean slurm.gpus_per_node?"),
        ("slurm: {extra: {begin: 2030-01-01}}", "YAML reads this as a date, 2030-01-01; write '2030-01-01' with the quotes"),
        ("slurm: {extra: {nodes: 3}}", "slurm.extra.nodes: not as an extra option; instead: slurm.nodes"),
        ("slurm: {extra: {gpus-per-node: 3}}", "instead: slurm.gpus_per_node"),
        ("slurm: {extra: {-p: gpu}}", "allowed is a long option of sbatch without its dashes"),
        ('slurm: {extra: {comment: "a\\nb"}}', "a line break or control character cannot stand in an #SBATCH line"),
        ("slurm: [1]", "slurm: a list where keys and values belong"),
        ("slurm: {partition: }", "YAML reads this as null; write '' for an empty text"),
        ("slurm: {exclude: {a: 1}}", "keys and values: allowed is a list of words, or one text"),
        ("resume_args: ['{pth}']\ncheckpoint: {dir: c}", "resume_args: {pth}: the only placeholder is {path}"),
        ("resume_args: [--resume]", "there is nothing to resume from: checkpoint.dir is empty"),
        ('resume_args: --x "a', "cannot be split into words (no closing quotation)"),
        ("env: {FTSUP_X: a}", "env.FTSUP_X: is set by ftsup for each rank"),
        ("env: {RANK: 1}", "env.RANK: is set by torchrun for each rank"),
        ("env: {a-b: c}", "env.a-b: allowed is a name of an environment variable"),
        ('env: {A: "\\0"}', "holds a NUL character"),
        ("env: &a {A: x}\n<<: *a", "merge keys are not read"),
        ("env: {A: !!python/name:os.system x}", "tags are not read"),
        ("workdir: !mine x", "!mine: tags are not read"),
        ("policy: {back_off: 1h}", "policy.back_off: longer than policy.back_off_max"),
        ("policy: {jitter: .nan}", "allowed is a number, at least 0, at most 1"),
        ("policy: {jitter: 1.5}", "allowed is a number, at least 0, at most 1"),
        ("[a]: b", "a key must be one word"),
        ("launch: srun", "allowed is one of torchrun, command"),
    ],
)
def test_what_is_said(write, line, said):
    (problem,) = problems(write(SMALLEST + line))
    assert said in problem


@pytest.mark.parametrize(
    "command, said",
    [
        ("python3 train.py", "python3: torchrun starts the script"),
        ("[-m]", "-m: which module?"),
        ("[]", "command: empty"),
        ("''", "command: empty"),
        ("[a, 1: 2]", "allowed is a text"),
    ],
)
def test_commands_that_cannot_be(write, command, said):
    (problem,) = problems(write(f"name: a\ncommand: {command}\n"))
    assert said in problem


def test_what_is_missing_is_said(write):
    assert problems(write("")) == [
        "c.yaml:1: name: missing; allowed is letters, digits, '.', '_', '-'; at most 64, the first a letter or a digit",
        "c.yaml:1: command: missing; allowed is a list of words, or one text that is split as a shell would",
    ]


def test_a_mistake_hides_no_other_and_blames_nothing_twice(write):
    found = problems(write(SMALLEST + "slurm: {time: 60, signal: SIGUSR1@3600}\nresume_args: ['{x}']\n"))
    assert [line.split(": ")[1] for line in found] == ["slurm.time", "resume_args", "resume_args"]


def test_overrides_win_and_are_named(write):
    path = write(SMALLEST + "slurm: {nodes: 2, qos: low}\n")
    loaded = load(path, sets=["slurm.nodes=4", "hang.step=5s", "command=[a, b]", "slurm.extra.mail-type=[A]", "slurm.time="])
    assert (loaded.config.slurm.nodes, loaded.config.slurm.qos, loaded.config.hang.step_s) == (4, "low", 5.0)
    assert (loaded.config.command, loaded.config.slurm.flags) == (("a", "b"), (("mail-type", "A"),))
    named = {key: loaded.sources[key] for key in ("name", "slurm.nodes", "slurm.qos", "hang.step", "hang.start")}
    assert named == {"name": "c.yaml:1", "slurm.nodes": "--set", "slurm.qos": "c.yaml:3", "hang.step": "--set", "hang.start": "default"}
    assert problems(path, "slurm.nodes=x", "slurm.foo=1") == [
        "--set: slurm.nodes: x: allowed is a whole number, at least 1",
        f"--set: slurm.foo: no such key; allowed are {', '.join(key_name(field) for field in SlurmOptions.__struct_fields__)}",
    ]
    for wrong in ("slurm.nodes", "=3", "a..b=1"):
        assert problems(path, wrong) == [f"--set {wrong}: allowed is --set key=value, such as --set slurm.nodes=4"]


def test_an_override_does_not_reach_through_an_anchor(write):
    path = write("name: a\ncommand: x\nenv: &e {A: x}\nslurm: {extra: {comment: &c hi, reservation: *c}}\n")
    loaded = load(path, sets=["slurm.extra.comment=ho"])
    assert loaded.config.slurm.extra == {"comment": "ho", "reservation": "hi"}


def test_the_rules_come_from_it(write):
    rules = load(write(SMALLEST + "slurm: {signal: USR2@300, requeue: off}\nwaits: {hello: 1s}\nhang: {step: 5s}\n")).config.rules()
    assert (rules.warning_s, rules.can_requeue, rules.hello_s, rules.hang.step_s) == (300.0, False, 1.0, 5.0)


def test_the_run_directory_gets_everything_but_the_environment(write):
    config = load(write(SMALLEST + "env: {TOKEN: secret}\nslurm: {mem: 1G, extra: {x-y: [a, 1]}}\n")).config
    data = to_json(config)
    assert b"secret" not in data
    assert b"TOKEN" not in data
    assert from_json(data) == type(config)(name="a", command=("train.py",), slurm=config.slurm)


@pytest.mark.parametrize(
    "command, said",
    [
        ("go {FTSUP_NNODE} {other} {MASTER_PORT}", "{FTSUP_NNODE}: no such placeholder; did you mean FTSUP_NNODES?"),
        ("go {MASTER_X}", "{MASTER_X}: no such placeholder; allowed are FTSUP_NODE_RANK, FTSUP_NNODES, "),
    ],
)
def test_a_placeholder_of_an_own_command_that_nobody_fills_in_is_found(write, command, said):
    text = f"name: a\nlaunch: command\ncommand: '{command}'\n"
    (problem,) = problems(write(text))
    assert problem.startswith(f"c.yaml:3: command: {said}")
    load(write(text.replace("launch: command\n", "")))  # braces mean nothing to torchrun
