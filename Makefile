# make study: set up .venv if needed, then the quickstart study. make test: the same set-up, then the tests.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup study check test test-slow test-gpu lint docs clean

help:
	@echo 'make study      set up .venv if needed, then run scaling/studies/quickstart.yaml'
	@echo 'make check      lint, types and the quick tests of every package, in about a minute'
	@echo 'make test       the same set-up, then the fast tests (PROCESSES=2 of them at a time)'
	@echo 'make test-slow  the long campaigns: fault injection, whole studies'
	@echo 'make test-gpu   on a machine with a GPU: the kernels and what replays CUDA graphs'
	@echo 'make lint       ruff and mypy'
	@echo 'make docs       write the generated tables of docs/ anew'
	@echo 'make clean      remove build outputs and caches (keeps .venv and out)'
	@echo 'PYTHON=python3.12 make ... sets up with another Python (3.11 to 3.13)'

setup: $(READY)

# torch first and with its pin: unpinned, the newest would come with several GB of CUDA packages.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'installing into .venv (a few minutes the first time)'
	@$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)" "$$(grep '^setuptools==' constraints.txt)"
	@$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

study: $(READY)
	$(BIN)/scaling run scaling/studies/quickstart.yaml

check: lint
	$(BIN)/python -m tests.quick

test: $(READY)
	$(BIN)/python -m pytest -m 'not slow' -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-gpu: $(READY)
	$(BIN)/python -m pytest -m '(gpu or kernels) and not slow'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m docs.generate

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
