# Two commands from a bare clone: `make train` and `make test`. Everything lives in .venv.
PYTHON ?= python3
BIN    := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # where it is set, each process of the tests compiles PyTorch's Python anew

.PHONY: train test test-thorough test-gpu test-sanitizer lint setup clean
train: setup
	OMP_WAIT_POLICY=PASSIVE $(BIN)/rooftile train

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 12 tests

test-thorough: setup          # what `make test` leaves out: faults on every ordering line, every shape, config and architecture
	$(BIN)/python -m pytest -n 2 --dist worksteal tests -m thorough

test-gpu:                     # on the GPU machine, with the Python that has its torch
	PYTHONPATH=src $(PYTHON) -m pytest -q tests -m gpu
	PYTHONPATH=src $(PYTHON) -m rooftile check --device cuda

test-sanitizer:               # there too: NVIDIA's compute-sanitizer over every kernel
	PYTHONPATH=src $(PYTHON) -m pytest -q tests/test_sanitizer.py -m "gpu and thorough"

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check -q src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: .venv/.installed
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"rooftile needs Python 3.11 or later, this is {v.major}.{v.minor}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -U pip  # the one a Python brings takes longer to choose than to install
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs dist build
