# Two commands for a newcomer: `make demo` and `make test`. Both make .venv first if it is missing or out of date.
#   make demo PYTHON=python3.12      another interpreter (3.11 or newer)
#   make demo TORCH_INDEX=URL        one more package index, e.g. PyTorch's own with builds for the CPU only
PYTHON ?= python3
TORCH_INDEX ?=
SUITES ?= tests/hf_suite.py

BIN := .venv/bin
READY := .venv/.ready
RUNS := runs/demo
# The variable keeps the demo on the CPU, where two processes take as long as the README says, also beside a GPU.
LAUNCH := ACCELERATE_USE_CPU=true $(BIN)/accelerate launch --config_file configs/accelerate/two_processes_cpu.yaml

# One thread per process: the demo and the tests start a process per core themselves.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

CLASSIFIER := configs/finetune/classification.yaml

.PHONY: setup demo test test-hf lint format bench clean
.DELETE_ON_ERROR:

setup: $(READY)
	@echo 'Ready: source .venv/bin/activate'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnkit needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	@touch $@

# From raw text to a reloaded model and a classifier made from it, beside the same classifier from random weights.
demo: $(READY)
	$(LAUNCH) train/pretrain.py --config configs/pretrain/demo.yaml --overwrite
	$(BIN)/attnkit generate $(RUNS)/pretrain --prompt "The function returns"
	$(LAUNCH) finetune/classification.py --config $(CLASSIFIER) --overwrite
	$(LAUNCH) finetune/classification.py --config $(CLASSIFIER) --config configs/finetune/random_weights.yaml --overwrite
	@echo
	@$(BIN)/attnkit summary $(RUNS)

test: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

# transformers' own suites on the attnkit models; needs the package index, and minutes.
#   make test-hf SUITES=tests/hf_suite.py::DecoderGaussianTest     one of the nine
test-hf: $(READY)
	$(BIN)/python -m pytest -n 2 -o addopts= -W default $(SUITES)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	OMP_NUM_THREADS=2 $(BIN)/python tests/benchmarks/attention.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/finetuning.py

clean:
	rm -rf build dist $(RUNS)
