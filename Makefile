# Everything that a newcomer, a developer or CI runs. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Idle OpenMP threads sleep instead of spinning: test workers and kernels share the cores.
SLEEP := OMP_WAIT_POLICY=passive

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu lint types format docs bench-cpu clean

help: ## list what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/.installed ## install, then answer six prompts plain and with each proposer
	@$(BIN)/paceline demo

test: $(VENV)/.installed-dev ## the whole suite: no network, no GPU
	@$(SLEEP) $(BIN)/python -m pytest -q $(PYTEST_ARGS)

test-gpu: $(VENV)/.installed-dev ## what needs a CUDA device
	@$(SLEEP) $(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## mypy
	@$(BIN)/mypy

docs: $(VENV)/.installed-dev ## write docs/reference/ from the configuration and the command line
	@$(BIN)/python docs/generate_reference.py

bench-cpu: $(VENV)/.installed-dev ## the CPU figures; OUT=FILE.json, PROMPTS=FILE.jsonl, VLLM_PYTHON=peer's interpreter
	@test -n "$(OUT)" || { echo "make bench-cpu needs OUT=FILE.json" >&2; exit 2; }
	@$(BIN)/python -m paceline.bench.cpu --out "$(OUT)" $(if $(PROMPTS),--prompts "$(PROMPTS)")

clean: ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "paceline needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.installed
