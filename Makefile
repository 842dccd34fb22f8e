# `make demo` and `make test` set up everything they need; `make help` lists the other targets.

PYTHON ?= python3
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
ROUNDS := 10
SEARCHED := tests/faults/test_simulated_faults.py tests/contract/test_store_differential.py
PORTABLE := tests/test_portable.py tests/contract/test_platform.py tests/faults/test_lost_workers.py \
	tests/platform/test_limits.py tests/platform/test_zygote.py tests/session/test_compute.py \
	tests/storage/test_embedded.py
ENGINES := tests/engines tests/contract/test_engine.py
# Install packages of Debian's if a program is missing and we may: $(call apt,PROGRAMS,PACKAGES)
apt = for program in $(1); do \
	  command -v $$program >/dev/null || [ "$$(id -u)" != 0 ] || \
	    exec apt-get install --yes --quiet --no-install-recommends $(2); \
	done
.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers tests portable quick search bench engine-bench lithops planning predictions load chaos quality evaluation factors farm fuzz executors engines replacement engines-bwrap engines-slurm engines-docker engines-registry engines-packages conformance-joblib conformance-dask coverage docs release clean

help:  ## list the targets
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

$(VENV)/.release: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

$(VENV)/.conformance: $(BIN)/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[conformance]'
	@touch $@

demo: $(VENV)/.user  ## set up, then run a sample workflow and show its Gantt chart
	$(BIN)/shoal demo

test: lint types layers docs tests  ## set up, then run every check and test

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

portable: $(VENV)/.dev  ## run the tests with real servers and processes, with Linux-only features hidden
	SHOAL_PORTABLE=1 $(BIN)/pytest -m "real and not engine" --numprocesses 3 --dist loadfile

quick: $(VENV)/.dev  ## run the fast tests: no servers or processes, a tenth of the generated cases
	$(BIN)/pytest -m "not real and not slow and not engine" --hypothesis-profile quick

search: $(VENV)/.dev  ## search for faults that break a run and for store scripts that differ from the model, ROUNDS times
	for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/pytest --quiet --hypothesis-profile search $(SEARCHED) || exit 1; \
	done

bench: $(VENV)/.bench  ## compare Shoal with Dask and Ray
	$(BIN)/python benchmarks/compare.py $(ARGS)

engine-bench: $(VENV)/.dev engines-bwrap engines-slurm engines-docker engines-packages lithops  ## measure every engine that can be started here, and Lithops beside it
	$(BIN)/python benchmarks/engines.py $(ARGS)

lithops:
	-@[ -e out/lithops/.installed ] || { \
	  $(PYTHON) -m venv out/lithops && out/lithops/bin/pip install --quiet \
	    --disable-pip-version-check 'lithops==3.8.*' awslambdaric boto3 redis && \
	  touch out/lithops/.installed; \
	}

planning: $(VENV)/.dev  ## measure how long planning takes
	$(BIN)/python benchmarks/planning.py $(ARGS)

predictions: $(VENV)/.dev  ## measure how accurate predictions are for real runs
	$(BIN)/python benchmarks/predictions.py $(ARGS)

load: $(VENV)/.dev  ## measure many clients on one gateway, and one run of 100,000 tasks
	$(BIN)/python benchmarks/load.py $(ARGS)

chaos: $(VENV)/.dev  ## run workflows and farms while faults are injected: killed processes, slow links, harmful tasks
	$(BIN)/python benchmarks/chaos.py $(ARGS)

quality: $(VENV)/.quality  ## measure how good simulated plans of Shoal's planners are, against published schedulers and the optimum
	$(BIN)/python benchmarks/plan_quality.py $(ARGS)

evaluation: $(VENV)/.dev  ## run the papers' grids on the virtual clock, and print the tables of docs/evaluation.md
	$(BIN)/python benchmarks/evaluation.py $(ARGS)

factors: $(VENV)/.dev  ## measure what each step from a central scheduler to Shoal's workers gains
	$(BIN)/python benchmarks/factors.py $(ARGS)

farm: $(VENV)/.bench  ## compare a farm of two workers with RQ, Celery and Dask
	$(BIN)/python benchmarks/farm.py $(ARGS)

fuzz: $(VENV)/.fuzz  ## send arbitrary input to the gateway and to every parser
	$(BIN)/python tests/fuzz/fuzzing.py $(ARGS)

executors: $(VENV)/.bench  ## compare ShoalExecutor with other executors
	$(BIN)/python benchmarks/executor.py $(ARGS)

engines: $(VENV)/.dev engines-bwrap engines-slurm engines-docker engines-registry engines-packages  ## run workers on other machines and on every engine that can be started here
	$(BIN)/pytest -m "" -rs $(ENGINES) $(ARGS)

replacement: $(VENV)/.dev engines-slurm engines-docker engines-packages  ## measure how soon a killed worker is replaced on each engine
	$(BIN)/python benchmarks/replacement.py $(ARGS)

# What can't be installed is left out: the tests that need it say so.
engines-bwrap:
	-@$(call apt,bwrap,bubblewrap)

engines-slurm:
	-@$(call apt,slurmctld slurmd munged,slurm-wlm munge)

engines-docker:
	-@$(call apt,docker dockerd podman runc,docker.io podman runc)

engines-registry:
	-@$(call apt,docker-registry,docker-registry)

engines-packages: $(VENV)/.dev
	-$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lambda,ray]' \
		awslambdaric aws-sam-cli 'moto[server]' cfn-lint functions-framework
	-command -v npm >/dev/null && npm install --silent --legacy-peer-deps --prefix out/serverless \
		osls serverless-offline@13.10.1

conformance-joblib: $(VENV)/.dev  ## run joblib's own tests of its backends on Shoal
	$(BIN)/python tests/conformance/joblib_conformance.py $(ARGS)

conformance-dask: $(VENV)/.conformance  ## run Dask's own tests on Shoal
	$(BIN)/python tests/conformance/dask_conformance.py $(ARGS)

coverage: export PYTHON_COVERAGE_FOLDER = $(CURDIR)
coverage: $(VENV)/.dev  ## measure branch coverage in every process that the tests start
	rm -rf out/coverage && mkdir -p out/coverage
	PYTHONPATH=$(CURDIR)/tests/covered PYTHON_COVERAGE_CONFIG=$(CURDIR)/pyproject.toml \
		$(BIN)/pytest --numprocesses 3 --dist loadfile; tested=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$tested

docs: $(VENV)/.dev  ## build the documentation site in out/site; fails on a broken link
	$(BIN)/python docs/commands_page.py docs/reference/commands.md
	$(BIN)/zensical build --strict

release: $(VENV)/.release  ## build and check the packages of a release in out/dist; uploads nothing
	grep -q "^## $$($(BIN)/python -c 'import shoal; print(shoal.__version__)') (20" CHANGELOG.md || \
		{ echo "CHANGELOG.md has no dated section for this version"; exit 1; }
	rm -rf out/dist
	$(BIN)/python -m build --outdir out/dist
	$(BIN)/twine check --strict out/dist/*
	$(PYTHON) -m venv out/dist/try && out/dist/try/bin/pip install --quiet out/dist/*.whl
	cd out/dist && try/bin/shoal demo && rm -rf try

clean:  ## remove the environments and everything that the targets created
	rm -rf $(VENV) .venv-* out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
