# `make demo` and `make test` work on a bare machine with Python 3.11 or newer: they build .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: setup demo test quick lint clean

setup: $(STAMP)

# torch first and by itself: it may come from its own index, and nothing after it may replace it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; say make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/autopar plan benchmarks/models/llama.py:llama_8b --gpus 8 --cluster h100 -o plan.json
	$(BIN)/autopar explain plan.json
	$(BIN)/autopar plan benchmarks/models/gpt.py:tiny --gpus 4 --cluster cpu-gloo -o tiny.json
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 4 benchmarks/train.py tiny.json benchmarks/models/gpt.py:tiny

test: $(STAMP)
	$(PYTEST)

quick: $(STAMP)
	$(PYTEST) -m "not slow and not distributed and not gpu"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info plan.json tiny.json
