# Every target makes its own virtual environment if there is none. `make serve` and `make test` are the two to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt)
SUITES ?= $(patsubst %/,%,$(sort $(dir $(wildcard tests/*/test_*.py))))
CPP := $(filter %.cpp %.hpp,$(NATIVE))

.PHONY: help serve test lint bench fuzz endurance lock clean

help: ## show this
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

serve: $(INSTALLED) ## serve a real model while a trainer changes it (ARGS="--port 8001" for more flags)
	exec $(BIN)/rollout-serve --demo $(ARGS)

# One process a suite: vLLM reads its settings once a process, and the suites' engines differ in them. Pytest's status 5
# says that ARGS selected nothing there.
test: $(INSTALLED) ## the whole test suite (SUITES=tests/native, ARGS="-k name" for a part)
	@status=0; for suite in $(SUITES); do \
	  echo "== $$suite"; $(BIN)/python -m pytest $$suite $(ARGS) || { code=$$?; [ $$code -eq 5 ] || status=$$code; }; \
	done; exit $$status

lint: $(INSTALLED) ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CPP)

bench: $(INSTALLED) ## measured figures, as the README has them
	$(BIN)/python -m sync.bench
	$(BIN)/python -m native.bench

fuzz: $(INSTALLED) ## a million fuzz runs of the decoder (needs clang and its fuzzer runtime)
	native/fuzz/run.sh $(ARGS)

endurance: $(INSTALLED) ## minutes of eviction pressure on the KV tier (KV_PRESSURE_SECONDS=600)
	$(BIN)/python -m pytest tests/kvtier -m endurance $(ARGS)

lock: $(VENV)/bin/python ## compile requirements/cpu.lock anew
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile pyproject.toml --extra cpu --extra demo --extra bench --extra s3-demo --extra dev \
	  --override requirements/cpu.overrides --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --no-annotate --custom-compile-command "make lock" -o requirements/cpu.lock

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The lock is complete, so dependencies are not resolved again. The package itself is installed editable: Python
# changes take effect at once, native ones with the next make.
$(VENV)/.dependencies: requirements/cpu.lock | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.lock
	touch $@

$(INSTALLED): $(VENV)/.dependencies pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean: ## remove the environment and what was built
	rm -rf $(VENV) build
