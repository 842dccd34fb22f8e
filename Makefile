# Two commands do all the set-up: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ROUNDS := 10
PORTABLE := tests/test_portable.py tests/contract/test_platform.py tests/faults/test_lost_workers.py \
	tests/platform/test_limits.py tests/platform/test_zygote.py tests/session/test_compute.py \
	tests/storage/test_embedded.py
.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers tests portable quick search bench planning predictions load chaos quality factors farm fuzz executors conformance-joblib conformance-dask clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 21

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(VENV)/.fuzz: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

$(VENV)/.quality: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[quality]'
	@touch $@

$(VENV)/.conformance: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[conformance]'
	@touch $@

demo: $(VENV)/.user  ## set up, and run a workflow worth looking at
	$(BIN)/shoal demo

test: lint types layers tests  ## set up, and pass all checks and tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/mypy --ignore-missing-imports --allow-subclassing-any --allow-untyped-calls \
		--allow-untyped-decorators benchmarks

layers: $(VENV)/.dev
	$(BIN)/lint-imports

tests: $(VENV)/.dev
	$(BIN)/pytest --numprocesses 3 --dist loadfile
	SHOAL_PORTABLE=1 $(BIN)/pytest --numprocesses 3 --dist loadfile $(PORTABLE)

portable: $(VENV)/.dev  ## the tests with servers and processes, without what only Linux has
	SHOAL_PORTABLE=1 $(BIN)/pytest -m real --numprocesses 3 --dist loadfile

quick: $(VENV)/.dev  ## only the tests that need no server and no processes
	$(BIN)/pytest -m "not real"

search: $(VENV)/.dev  ## look for simulated runs that losses break, until one is found or ROUNDS are over
	for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/pytest --quiet --hypothesis-profile search tests/faults/test_simulated_faults.py || exit 1; \
	done

bench: $(VENV)/.bench  ## Shoal, Dask and Ray side by side
	$(BIN)/python benchmarks/compare.py $(ARGS)

planning: $(VENV)/.dev  ## how long planning takes
	$(BIN)/python benchmarks/planning.py $(ARGS)

predictions: $(VENV)/.dev  ## how good predictions are, on real runs
	$(BIN)/python benchmarks/predictions.py $(ARGS)

load: $(VENV)/.dev  ## many clients on one gateway, and one run of 100,000 tasks
	$(BIN)/python benchmarks/load.py $(ARGS)

chaos: $(VENV)/.dev  ## runs that are hurt in every way: by killed processes, slow links, tasks that do damage
	$(BIN)/python benchmarks/chaos.py $(ARGS)

quality: $(VENV)/.quality  ## plans of Shoal's and of published schedulers, simulated side by side
	$(BIN)/python benchmarks/plan_quality.py $(ARGS)

factors: $(VENV)/.dev  ## what each step from a central scheduler to Shoal's workers is worth
	$(BIN)/python benchmarks/factors.py $(ARGS)

farm: $(VENV)/.bench  ## a farm of two workers beside RQ, Celery and Dask
	$(BIN)/python benchmarks/farm.py $(ARGS)

fuzz: $(VENV)/.fuzz  ## arbitrary input for the gateway and for everything that parses
	$(BIN)/python tests/fuzz/fuzzing.py $(ARGS)

executors: $(VENV)/.bench  ## ShoalExecutor and other executors side by side
	$(BIN)/python benchmarks/executor.py $(ARGS)

conformance-joblib: $(VENV)/.dev  ## joblib's own tests of its backends, on Shoal
	$(BIN)/python tests/conformance/joblib_conformance.py $(ARGS)

conformance-dask: $(VENV)/.conformance  ## Dask's own tests on Shoal
	$(BIN)/python tests/conformance/dask_conformance.py $(ARGS)

clean:  ## remove what the commands above made
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
