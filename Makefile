.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/pip install -q -c constraints.txt

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/developer: .venv/installed
	$(INSTALL) -e '.[test,lint,registry,signing]'
	touch $@

prebuild: .venv/installed ## install, then build and verify qwen3-14b
	$(BIN)/aotc build qwen3-14b
	$(BIN)/aotc verify qwen3-14b

test: .venv/developer ## run the test suite
	$(BIN)/python -m pytest -q -n auto

lint: .venv/developer ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

golden: .venv/installed ## compare qwen3-tiny and qwen3-0.6b with their golden
	$(BIN)/aotc build qwen3-tiny
	$(BIN)/aotc verify qwen3-tiny --level numerics
	$(BIN)/aotc build qwen3-0.6b
	$(BIN)/aotc verify qwen3-0.6b --level numerics

bench: .venv/installed ## measure against the limits of the machine, a few minutes
	$(BIN)/python -m bench $(BENCH)

.venv/peers: .venv/installed
	$(INSTALL) -e '.[peers]'
	touch $@

peers: .venv/peers ## the same beside other engines, and docs/performance.md written from it
	$(BIN)/python -m bench --peers --json .venv/bench.json $(BENCH)
	$(BIN)/python -m bench.report .venv/bench.json

.PHONY: help prebuild test lint golden bench peers
