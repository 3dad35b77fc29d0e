"""full.yaml, the schema and `show` come from the keys, and say what `load` does."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml
from msgspec import inspect

from ftsup.config import Config, load
from ftsup.config.doc import effective, full_yaml, schema

CONFIGS = Path(__file__).parents[2] / "configs"


def test_full_yaml_is_what_the_code_says():
    assert (CONFIGS / "full.yaml").read_text() == full_yaml(), "run `ftsup config full > configs/full.yaml`"


def test_full_yaml_loads_to_the_defaults():
    assert load(CONFIGS / "full.yaml").config == Config(name="train", command=("train.py",))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_our_configurations_load_and_fit_the_schema(path):
    load(path)
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "text", ["nmae: a", "name: [a]", "grace: 60", "hang: {step: soon}", "slurm: {nodes: 0}", "slurm: {requeue: never}", "env: {a b: c}"]
)
def test_the_schema_refuses_what_load_refuses(text):
    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors({"name": "a", "command": "x"} | yaml.safe_load(text)))
    assert errors


def test_every_key_has_a_reason_and_every_section_a_sentence():
    def keys(kind):
        for field in kind.fields:
            inner = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
            if isinstance(inner, inspect.StructType):
                assert inner.cls.__doc__
                yield from keys(inner)
            else:
                yield field.encode_name, len(field.type.extra_json_schema["description"])

    assert {name for name, length in keys(inspect.type_info(Config)) if length < 10} == set()


def test_what_is_in_force_with_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("name: a\ncommand: [x, 'y z']\nenv: {TOKEN: secret}\nslurm:\n  time: 36h\n  extra: {exclusive: }\n")
    rows = {key: (value, source) for key, value, source in effective(load(Path("c.yaml"), sets=["slurm.mem=2048K"]))}
    assert rows["command"] == ("[x, y z]", "c.yaml:2")
    assert rows["env.TOKEN"] == ("(hidden)", "c.yaml:3")
    assert rows["slurm.time"] == ("1d12h", "c.yaml:5")
    assert rows["slurm.extra.exclusive"] == ("null", "c.yaml:6")
    assert rows["slurm.mem"] == ("2MiB", "--set")
    assert rows["hang.start"] == ("10min", "default")
