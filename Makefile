# Everything a developer runs. Needs Python 3.11+ and make; the rest goes into .venv.

PYTHON ?= python3
JOBS   ?= 3
ARGS   ?=

# .venv; for a given PYTHON of another version than that of .venv, an environment of its own, such as .venv-3.13.
VERSION = $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])'
VENV   := .venv
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard .venv/bin/python),)
GIVEN  := $(shell $(call VERSION,$(PYTHON)))
ifneq ($(GIVEN),$(shell $(call VERSION,.venv/bin/python)))
VENV   := .venv-$(GIVEN)
endif
endif
endif
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOCK   := requirements/dev.lock
BASE   := $(VENV)/.base
RUN    := requirements/run.lock
CODE    = $(wildcard src tests bench tools examples)
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url
PYTEST  = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

.PHONY: help demo test test-pythons check prove bench bench-quick bench-all docs format-check lint types format generate lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(BASE) ## Run a sample app, its workers and a story of failures (ARGS="--for 10s" for how long)
	@PYTHONPATH=src $(BIN)/python -m errandry demo $(ARGS)

test: format-check lint types ## Run everything but the proofs (ARGS="-k settle" to pick)
	$(PYTEST)

test-pythons: $(READY) ## Run everything on each Python version that is claimed and found here
	@failed=; for python in $$($(BIN)/python -m tools.pythons); do \
	    echo "== $$python"; $(MAKE) test PYTHON=$$python || failed="$$failed $$python"; done; \
	    test -z "$$failed" || { echo "failed on:$$failed" >&2; exit 1; }

check: format-check lint types ## Format, lint, types, architecture, fast tests: three minutes on two processors
	$(PYTEST) -m "not slow and not prove"

prove: format-check lint types ## Run everything, with the long proofs; continue an interrupted run
	$(BIN)/python -m tools.prove --jobs $(JOBS) $(ARGS)

format-check: $(READY)
	$(BIN)/ruff format --check $(CODE)

lint: $(READY) ## Lint code and prose
	$(BIN)/ruff check $(CODE)
	$(BIN)/python -m tools.words

types: $(READY) ## Check types
	$(BIN)/mypy $(CODE)

format: $(READY) ## Format, and fix what the linter can fix safely
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY) ## Print the figures, as ratios measured in one run
	$(BIN)/python -m bench.store
	$(BIN)/python -m bench.processes
	$(BIN)/errandry bench $(ARGS)

bench-quick: $(READY) ## Measure in short: about a minute
	$(BIN)/errandry bench --quick
	$(BIN)/errandry bench --stress --jobs 6000

bench-all: $(READY) ## Measure everything, others beside it, and write docs/benchmarks.md: 12 minutes at most
	$(BIN)/errandry bench --json build/bench/report.json --plots build/bench
	$(BIN)/errandry bench --stress --json build/bench/stress.json --plots build/bench
	$(BIN)/python -m bench.peers --out build/bench
	$(BIN)/python -m bench.page

docs: $(READY) ## Build the site into build/site
	$(BIN)/zensical build --clean --strict

generate: $(READY) ## Write the pages of docs/ and the module that are made from the code
	$(BIN)/python -m tools.sync
	$(BIN)/python -m tools.docs

lock: $(BIN)/uv ## Write requirements/*.lock from pyproject.toml (ARGS=--upgrade for newer versions)
	$(COMPILE) --group dev $(ARGS) --output-file $(LOCK) pyproject.toml
	$(COMPILE) --constraint $(LOCK) --output-file $(RUN) pyproject.toml
	@if grep -n '://' $(LOCK) $(RUN); then echo "a lock must not name a registry" >&2; exit 1; fi

clean: ## Remove the environment, caches and builds
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache build dist
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# What Errandry itself needs: enough for the demo, and there in seconds.
$(BASE): $(RUN) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --require-hashes -r $(RUN)
	@touch $@

$(READY): $(LOCK) pyproject.toml | $(BASE)
	$(BIN)/python -m pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Errandry needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	         "Choose another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Not $(READY): the lock must be writable while it does not fit pyproject.toml.
$(BIN)/uv: | $(BIN)/python
	$(BIN)/python -m pip install --quiet uv
