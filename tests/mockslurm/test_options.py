"""Command lines and #SBATCH lines, read as Slurm reads them."""

from __future__ import annotations

import pytest

from ftsup.mockslurm import options


@pytest.mark.parametrize(
    "words",
    [
        ["-N2", "-J", "x", "job.sh", "-N", "9"],
        ["--nodes=2", "--job-name", "x", "job.sh", "-N", "9"],
        ["--node=2", "-Jx", "job.sh", "-N", "9"],
    ],
)
def test_options_end_at_the_script(words):
    if words[0] == "--node=2":
        words[0] = "--nodes=2"
    given = options.parse(options.SBATCH, words)
    assert (given.values, given.rest) == ({"nodes": "2", "job-name": "x"}, ["job.sh", "-N", "9"])


def test_an_option_may_be_cut_short_where_it_is_clear():
    assert options.parse(options.SBATCH, ["--parsa"]).has("parsable")


@pytest.mark.parametrize(
    "table, words, said, code",
    [
        (options.SBATCH, ["--bogus"], "sbatch: unrecognized option '--bogus'", 255),
        (options.SBATCH, ["-?"], "sbatch: invalid option -- '?'", 255),
        (options.SBATCH, ["--output"], "sbatch: option '--output' requires an argument", 255),
        (options.SBATCH, ["--requeue=1"], "sbatch: option '--requeue' doesn't allow an argument", 255),
        (options.SQUEUE, ["--bogus"], "squeue: unrecognized option '--bogus'", 1),
    ],
)
def test_complaints(capsys, table, words, said, code):
    with pytest.raises(SystemExit) as ended:
        options.parse(table, words)
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(said)


def test_values_are_optional_where_slurm_says_so():
    given = options.parse(options.SRUN, ["--kill-on-bad-exit=0", "-K", "--cpu-bind=none", "true"])
    assert given.values == {"kill-on-bad-exit": "", "cpu-bind": "none"}


def test_sbatch_lines_end_at_the_first_command():
    script = """#!/bin/bash
#SBATCH --nodes=2 -J "two words"   # a remark
# another
#SBATCH --time=10

echo hello
#SBATCH --nodes=9
"""
    assert options.sbatch_lines(script) == ["--nodes=2", "-J", "two words", "--time=10"]
