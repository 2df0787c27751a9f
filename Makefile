# `make run` and `make test` need only Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?= +experiment=ppo_cartpole
STAMP := $(VENV)/.installed

.PHONY: setup run test lint learning bench peers clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

run: setup
	$(BIN)/python -m runner $(ARGS)

test: setup
	$(BIN)/python -m pytest -m "not learning"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The slow learning runs, ten seeds of ppo_cartpole among them.
learning: setup
	$(BIN)/python -m pytest -m learning

# The systems that `make bench` compares with, each in an environment of its own.
peers: .peers/sb3/.installed .peers/rllib/.installed

.peers/%/.installed: benchmarks/peers/requirements-%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

bench: setup peers
	$(BIN)/python benchmarks/throughput.py

clean:
	rm -rf $(VENV) .peers build dist *.egg-info
