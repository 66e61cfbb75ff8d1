# `make up` and `make test` are all that a fresh machine needs; both want only Python 3.11+ and git.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Tests of one file run in order, in one of so many processes: most of them wait, so more than there are cores. Which
# files come first tests/conftest.py says.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help up test test-slow lint bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

up: $(VENV)/.ready-cpu ## serve the quickstart catalog with a real model on the CPU
	$(BIN)/llmgw up catalog-examples/quickstart $(ARGS)

test: $(VENV)/.ready-cpu-test ## run every test that takes seconds
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/.ready-cpu-test-slow ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow --timeout=3600 $(ARGS)

lint: $(VENV)/.ready-cpu-test-dev ## ruff, mypy --strict and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.ready-cpu-test ## measure; figures are written beside each benchmark
	for part in bench/*/run.py; do $(BIN)/python $$part || exit 1; done

clean: ## remove what make made here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "llmgw needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"; exit 1; }

# .ready-cpu-test stands for `pip install -e .[cpu,test]`.
$(VENV)/.ready-%: pyproject.toml | $(BIN)/python
	@echo "installing llmgw and what it needs into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -e ".[$(subst -,$(comma),$*)]"
	@touch $@

comma := ,
.PRECIOUS: $(VENV)/.ready-%
