"""Files that are no configuration: one clear message each, and never anything but ConfigError."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftsup.config import Config, load
from ftsup.errors import ConfigError

FULL = (Path(__file__).parents[2] / "configs" / "full.yaml").read_text()
BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


GARBAGE = {
    "random": (random.Random(1).randbytes(4000), "not text in UTF-8"),
    "program": (b"\x7fELF\x00\x00\x01", "which is no text"),
    "utf-16": ("name: ä".encode("utf-16"), "not text in UTF-8"),
    "list": (b"- name: a\n- b\n", "a list instead of keys and values"),
    "word": (b"hello\n", "one value instead of keys and values"),
    "tab": (b"name: a\nslurm:\n\tnodes: 2\n", "c.yaml:3: not YAML"),
    "quote": (b'name: "a\ncommand: x\n', "not YAML"),
    "colon": (b"name: a: b\n", "c.yaml:1: not YAML: mapping values are not allowed here"),
    "bracket": (b"name: [a\n", "not YAML"),
    "alias": (b"name: *nobody\n", "c.yaml:1: not YAML: found undefined alias"),
    "two": (b"name: a\n---\nname: b\n", "not YAML: expected a single document"),
    "10 MB": (b"name: a\n" * 1_250_000, "larger than 256 KiB"),
    "deep list": (b"[" * 100_000, "nested too deeply"),
    "deep mapping": (b"a: " + b"{a: " * 50_000, "nested too deeply"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_one_message(tmp_path, kind):
    data, said = GARBAGE[kind]
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert said in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
    assert caught.value.hint


@pytest.mark.parametrize("name, said", [("absent.yaml", "no such file"), (".", "is a directory")])
def test_no_file(tmp_path, name, said):
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / name)


def test_a_byte_order_mark_and_dos_line_ends_are_fine(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes("\ufeffname: a\r\ncommand: [x]\r\nsetup: |\r\n  module load a\r\n".encode())
    assert load(path).config == Config(name="a", command=("x",), setup="module load a\n")


@pytest.mark.parametrize("text", [BOMB, "slurm: &s {extra: {x-y: *s}}", "env: &e {A: *e}", "command: &c [*c, *c]", "&k : *k"])
def test_aliases_cannot_run_away(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path)


def test_of_very_many_problems_the_first_are_listed(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("".join(f"key{i}: 1\n" for i in range(1000)))
    with pytest.raises(ConfigError) as caught:
        load(path)
    lines = caught.value.message.splitlines()
    assert len(lines) == 51
    assert lines[-1] == "and 952 more problems"


KEYS = [line.strip().split(":")[0] for line in FULL.splitlines() if ":" in line and not line.strip().startswith("#")]
ODD = [
    "~", "yes", "010", "1:00", "2030-01-01", "1e3", ".inf", "-1", "[]", "{}", "[[a]]", "{a: b}", "'", '"', "*x", "&x", "|", ">", "<<",
    "2030-99-99", "0x", "0b1", "1_0", "190:20:30", "", "!!int a", "!!set {a}", "!!binary xx", "9" * 5000, "? a", "- b", "a: b",
    "\t", "\x00", "\u2028",
]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.integers().map(str))),
        min_size=1,
        max_size=4,
    )
)
def test_any_changed_file_loads_or_says_why(tmp_path_factory, changes):
    lines = FULL.splitlines()
    for key, value in changes:
        lines = [f"{line.split(':')[0]}: {value}" if line.strip().startswith(f"{key}:") else line for line in lines]
    path = tmp_path_factory.mktemp("fuzz") / "c.yaml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    loads_or_refuses(path)


@given(st.data())
def test_any_damaged_file_loads_or_says_why(tmp_path_factory, data):
    start = data.draw(st.integers(0, len(FULL)))
    end = data.draw(st.integers(start, min(len(FULL), start + 200)))
    path = tmp_path_factory.mktemp("fuzz") / "c.yaml"
    path.write_text(FULL[:start] + data.draw(st.text(max_size=20)) + FULL[end:], encoding="utf-8", errors="replace")
    loads_or_refuses(path)


@given(st.sampled_from(["a", "slurm.nodes", "slurm.extra.x-y", "env.A", "command", "hang"]), st.text(max_size=20))
def test_any_override_loads_or_says_why(tmp_path_factory, key, value):
    path = tmp_path_factory.mktemp("fuzz") / "c.yaml"
    path.write_text("name: a\ncommand: x\n")
    loads_or_refuses(path, f"{key}={value}")


def loads_or_refuses(path, *sets):
    try:
        config = load(path, sets=sets).config
    except ConfigError as error:
        assert error.message  # noqa: PT017 - both ends are fine
    else:
        assert isinstance(config, Config)
        config.rules()


def test_what_we_call_odd_is_what_yaml_calls_so():
    assert yaml.safe_load("1:00") == 60
    assert yaml.safe_load("010") == 8
    assert yaml.safe_load("off") is False
