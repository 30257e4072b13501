# Two commands are all a newcomer needs: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
KERNELS := $(wildcard src/headrace/kernels/*.py src/headrace/kernels/*.pxd) src/headrace/log/scribe.pyx
CHECKED := tests/tidy tests/unit tests/conformance
WITHOUT_KERNELS := tests/unit/quic $(wildcard tests/unit/spark*)

# Hundreds of interpreters are started here: they keep what they compiled, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test check serve bench fmt torture clean

help:                  ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

$(STAMP): pyproject.toml setup.py constraints.txt $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headrace needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing headrace into $(VENV), with Spark and a Java: some minutes the first time …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)         ## orders through four doors, a kill -9, a restart: see that nothing is lost
	@$(BIN)/headrace demo

serve: $(STAMP)        ## a broker in the foreground, for development
	@$(BIN)/headrace serve --dev

check: $(STAMP)        ## lint, types, import contract, tidy, unit and conformance tests: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n auto --hypothesis-profile quick $(CHECKED)

test: check            ## everything else, too: real processes, disks and Spark, and the core again interpreted
	$(BIN)/pytest -q -n auto -m hypothesis $(CHECKED)
	$(BIN)/pytest -q -n auto $(addprefix --ignore ,$(CHECKED) tests/spark)
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/spark
	HEADRACE_PURE=1 $(BIN)/pytest -q -n auto -m 'not slow' $(addprefix --ignore ,$(WITHOUT_KERNELS)) tests/unit tests/conformance tests/e2e

torture: $(STAMP)      ## kill -9 under load, 1,000 cycles and more (CYCLES=…); 10,000 damaged directories (DAMAGES=…)
	HEADRACE_DAMAGES=$${DAMAGES:-10000} $(BIN)/pytest -q -n auto tests/crash/test_damage.py
	HEADRACE_KILL_CYCLES=$${CYCLES:-1000} $(BIN)/pytest -q -n auto tests/crash/test_kill.py tests/crash/test_kill_transactions.py
	HEADRACE_DRIVER_KILLS=$${KILLS:-20} $(BIN)/pytest -q tests/spark/torture

bench: $(STAMP)        ## the benchmarks, against redis and nats where installed; writes bench/results.md
	$(BIN)/python bench/run.py $(ARGS)

fmt: $(STAMP)          ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:                 ## remove the environment and everything built
	rm -rf $(VENV) build bench/build src/*.egg-info src/headrace/kernels/*.so src/headrace/log/*.so
