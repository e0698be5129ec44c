# Two commands for a newcomer: `make demo` and `make test`. Both make .venv first if it is missing or out of date.
#   make demo PYTHON=python3.12      another interpreter (3.11 or newer)
#   make demo TORCH_INDEX=URL        one more package index, e.g. PyTorch's own with builds for the CPU only
PYTHON ?= python3
TORCH_INDEX ?=

BIN := .venv/bin
READY := .venv/.ready
RUNS := runs/demo

# One thread per process: the demo and the tests start a process per core themselves.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo test test-hf lint format bench clean
.DELETE_ON_ERROR:

setup: $(READY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnkit needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	@touch $@

demo: $(READY)
	@echo "attnkit demo"

test: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

# transformers' own suites on the attnkit models; needs the package index, and minutes.
test-hf: $(READY)
	$(BIN)/python -m pytest -n 2 -o addopts= -W default tests/hf_suite.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m pytest tests/benchmarks

clean:
	rm -rf build dist $(RUNS)
