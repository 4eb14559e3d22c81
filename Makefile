# `make run` and `make test` set up everything they need in .venv; second calls reuse it.
PYTHON ?= python3
VENV   ?= .venv
# Another build of torch: make run TORCH="torch==2.13.0 --index-url URL", or a wheel's path.
TORCH  ?= torch
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# keys for the run: make run ARGS="gamma=3 sampling.temperature=1"
ARGS   ?=

.PHONY: run mini tables figures report keep test test-slow check format coverage clean

run: $(READY)
	$(BIN)/specbench run $(ARGS)

# The twins of all the paper's tables and figures on the models that ship; runs that are there are not repeated.
mini: $(READY)
	$(BIN)/specbench sweep experiment=table2-mini $(ARGS)
	$(BIN)/specbench sweep experiment=table3-mini $(ARGS)
	$(BIN)/specbench sweep experiment=figure2-mini $(ARGS)
	$(BIN)/specbench sweep experiment=gamma-mini $(ARGS)

# Both draw from the records on disk, in results/runs and results/kept; no model is loaded.
tables: $(READY)
	$(BIN)/specbench tables --format markdown,csv,latex --output results/tables

figures: $(READY)
	$(BIN)/specbench figures --format svg,png --output results/figures

report: $(READY)
	$(BIN)/specbench report

# Copies of this machine's records, small enough to commit with what is drawn from them.
keep: $(READY)
	$(BIN)/specbench report --keep

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

coverage: $(READY)
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes first and alone, so that a build named by TORCH is not replaced by the constraint's.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	if [ "$(TORCH)" = torch ]; then \
	  $(BIN)/python -m pip install --quiet -c constraints.txt torch; \
	else $(BIN)/python -m pip install --quiet $(TORCH); fi
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info
