# Two commands: `make demo` (the main job on a real model) and `make test`.
# Every path is relative to this folder, so a space in the way here does no harm.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

EXTRAS := rtl,torch,report,oracle,dev
BIN := .venv/bin
STAMP := .venv/.romsim-setup
ROMSIM := $(BIN)/romsim
WORKERS := 2
# One thread for each of pytest's workers, or two workers fight over two cores.
PYTEST := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
MODEL := smollm2
TARGET := roma-7nm-g32
CHIP := build/$(MODEL)
STORY := Once upon a time, there was a little girl who
QUESTION := What is a read-only memory?

.PHONY: help setup model chip test test-full demo mutation bench gpu-bench lint format clean distclean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /make \1\t/p' Makefile | expand -t 18

setup: $(STAMP)  ## .venv with everything, under constraints.txt

# The first of these that runs and is new enough, unless PYTHON is given.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; \
  done)

$(STAMP): pyproject.toml constraints.txt
	@bash .ci/system-packages "$(PYTHON)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[$(EXTRAS)]'
	@# Numba compiles the simulator's kernels once for a machine; done here, no first run is slow.
	$(ROMSIM) compile tiny-int4 --target small -o build/.kernels > /dev/null
	$(ROMSIM) simulate build/.kernels --token-ids 1,2,3 --max-tokens 2 > /dev/null
	@touch $(STAMP)

model: $(STAMP)  ## fetch the default model into the cache, digest checked
	$(ROMSIM) models get $(MODEL)

test: model  ## the tests, within minutes
	$(PYTEST)

test-full: model  ## the long ones too
	$(PYTEST) -m ""

chip: model  ## compile SmolLM2 into a chip, sized to the model
	$(ROMSIM) compile $(MODEL) --target $(TARGET) --fit -o $(CHIP)

demo: chip  ## compile SmolLM2 into a chip, audit it, let it speak
	$(ROMSIM) audit $(CHIP) --model $(MODEL)
	$(ROMSIM) simulate $(CHIP) --prompt "$(STORY)"
	$(ROMSIM) simulate $(CHIP) --chat "$(QUESTION)"
	@echo "The description is in $(CHIP)."

mutation: model  ## how many faults in the RTL the tests catch, and in the ROMs the verification
	$(BIN)/python -m benchmarks.mutation
	$(ROMSIM) compile tiny-int4 --target small -o build/mutation > /dev/null
	$(ROMSIM) mutate build/mutation

bench: chip  ## speed of the cycle model beside llama.cpp and torch, in one run
	$(BIN)/python -m benchmarks.llama_cpp --chip $(CHIP)

# The environment's PyTorch is the CPU build: give a Python with one for CUDA, e.g.
# make gpu-bench GPU_PYTHON=python3
GPU_PYTHON := $(BIN)/python
gpu-bench: $(STAMP)  ## decoding on an NVIDIA GPU, to build/gpu-bench.json; no network
	@mkdir -p build
	PYTHONPATH=.:compiler:models:rtl $(GPU_PYTHON) -m benchmarks.gpu_bench --out build/gpu-bench.json

CHIPS := 500
sweep: $(STAMP)  ## random chips, RTL against cycle model (hours; CHIPS=25 for less)
	$(BIN)/python -m tests.rtl.sweep --count $(CHIPS) --results build/sweep/results.jsonl

lint: $(STAMP)  ## ruff, mypy, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	PYTHONPATH=.:compiler:models:rtl $(BIN)/lint-imports

format: $(STAMP)  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## what was built, not the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean  ## the environment too
	rm -rf .venv
