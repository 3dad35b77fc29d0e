# Everything a developer types. Needs only make and Python >= 3.10 with venv; .ci/venv makes the rest, once.

PYTHON ?=
ARGS ?=

py := .venv/bin/python
pytest := $(py) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-slurm contract drill drill-slurm check fix bench bench-checkpoint pictures cover clean venv

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'PYTHON=/path/to/python3 names the interpreter; ARGS="-k hang" goes to pytest, the demo or the benches.'

demo: venv  ## trains on a mock Slurm, breaks it five times, shows that nothing was lost (< 4 minutes)
	@.venv/bin/ftsup demo $(ARGS)

test: venv  ## the whole suite, three at a time: much of it waits
	@$(pytest) -n 3 --dist loadgroup -m 'not drill' $(ARGS)

test-slurm: venv  ## what runs on a real Slurm, each case once; a part of `make test` (< 12 minutes)
	@$(pytest) -n 3 --dist loadgroup -m 'realslurm and not drill' $(ARGS)

contract: venv  ## what holds on which Slurm, run anew and written to docs/slurm.md (< 8 minutes)
	@$(pytest) -n 2 tests/contract --proven docs/slurm.md $(ARGS)

drill: venv  ## the long ones that `make test` leaves out, without those of `make drill-slurm`
	@$(pytest) -m 'drill and not realslurm' $(ARGS)

drill-slurm: venv  ## on a real Slurm: many seeds, real durations (an hour and more)
	@$(pytest) -n 2 --dist loadgroup -m 'drill and realslurm' $(ARGS)

check: venv  ## format, lint, types, layers (< 30 s)
	@$(py) -m ruff format --check --quiet . || { echo 'hint: make fix' >&2; exit 1; }
	@$(py) -m ruff check --quiet .
	@$(py) -m mypy --no-error-summary
	@$(pytest) -q --no-header tests/test_layers.py

fix: venv  ## formats, and mends what the linter can mend
	@$(py) -m ruff check --quiet --fix-only .
	@$(py) -m ruff format .

bench: venv  ## the figures: every tests/bench/bench_*.py in turn
	@$(py) -m tests.bench $(ARGS)

bench-checkpoint: venv  ## the figures of checkpoints: some minutes and 10 GB of disk
	@$(py) -m tests.bench checkpoint

pictures: venv  ## draws docs/*.svg anew, from the run that is kept in docs/run
	@PYTHONPATH=. $(py) docs/pictures.py

cover: venv  ## the suite again, counting lines and branches; all of policy, events and manifest must be reached
	@$(pytest) -n 3 --dist loadgroup --cov --cov-report=term $(ARGS)
	@$(py) -m coverage report --include='ftsup/policy/*,ftsup/events.py,ftsup/checkpoint/manifest.py' --fail-under=100 --show-missing

clean:  ## removes what was built and cached here, .venv too; runs stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov
	find ftsup tests configs -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@PYTHON='$(PYTHON)' .ci/venv
