# `make run` and `make test` need only Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?= train ppo_cartpole
STAMP := $(VENV)/.installed

.PHONY: setup run test test-fast slow lint docs documented zoo policy-gifs learning learning-table learning-curves mutants chaos dist dist-check suites bench bench-all peers clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

run: setup
	$(BIN)/runner $(ARGS)

# Test files are shared among so many processes; 0: one after the other, also in this process, as a debugger wants it.
TEST_PROCESSES ?= 2
OPTIONS := --numprocesses $(TEST_PROCESSES)$(if $(filter-out 0,$(TEST_PROCESSES)), --dist loadfile) --durations 40 --durations-min 3
NOT_ELSEWHERE := not learning and not chaos and not dist and not documented

test: setup
	$(BIN)/python -m pytest -m "not slow and $(NOT_ELSEWHERE)" $(OPTIONS)

# Tests that start neither Ray, nor another process, nor a whole run.
test-fast: setup
	$(BIN)/python -m pytest -m fast $(OPTIONS)

# A part of the slow or of the documented tests: `make slow PART=2` runs the second of four.
PART ?=
OF_PART = $(if $(PART), --part $(PART)/4)

# Tests that take five seconds or more each.
slow: setup
	$(BIN)/python -m pytest -m "slow and $(NOT_ELSEWHERE)" $(OPTIONS)$(OF_PART)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_plain_english.py

# The documentation as a site, in site/build: its links are checked, and what it says of configurations is read from the code.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c site docs site/build

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

# The commands that the docs show, at reduced size.
documented: setup
	$(BIN)/python -m pytest -m documented --numprocesses $(TEST_PROCESSES) tests/documented$(OF_PART)

# The slow learning runs, ten seeds of ppo_cartpole among them.
learning: setup
	$(BIN)/python -m pytest -m learning

# Write docs/results.md and its pictures from the results in benchmarks/results.
learning-table: setup .peers/rliable/.installed
	$(BIN)/python benchmarks/suite_pictures.py
	.peers/rliable/bin/python -W ignore benchmarks/learning_table.py

# Train experiments over their seeds (hours), keep policies for `play zoo:NAME`, and write docs/results.md. An interrupted
# `make zoo` continues. ZOO="--experiments ppo_acrobot" trains only some.
ZOO ?=

zoo: setup .peers/rliable/.installed
	$(BIN)/python benchmarks/zoo.py $(ZOO)
	$(MAKE) learning-table

# Record GIFs of the policies that `make zoo` has kept of MuJoCo and MinAtar. Newer GIFs are skipped.
policy-gifs: setup
	$(BIN)/python benchmarks/policy_gifs.py

# The same training in runner, Stable-Baselines3 and a bare loop (hours), on the page docs/results.md. An interrupted
# `make suites` continues. SUITES="--experiments sac_hopper --seeds 1" measures only some.
SUITES ?=

suites: setup .peers/sb3/.installed .peers/rliable/.installed
	$(BIN)/python benchmarks/suites.py $(SUITES)
	.peers/rliable/bin/python -W ignore benchmarks/learning_table.py

# Draw the curves of `make learning` into docs/pictures/learning.
learning-curves: setup
	$(BIN)/python benchmarks/learning_curves.py

# Fault injection, one scenario after the other: two hours on two cores. The table of outcomes goes to benchmarks/results.
# An interrupted `make chaos` of the same commit continues. CHAOS_SEED=... kills at the same moments again.
CHAOS_ROWS = benchmarks/runs/chaos-$(shell git rev-parse --short HEAD).jsonl

chaos: setup
	mkdir -p benchmarks/runs
	CHAOS_TABLE=benchmarks/results/chaos.md CHAOS_ROWS=$(CHAOS_ROWS) $(BIN)/python -m pytest tests/chaos
	$(BIN)/python -m pytest -m chaos tests/rllink/test_recording.py tests/system/test_lost_learners.py

# sdists and wheels of runner and of the simulators' client, in dist/.
dist: setup
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist clients/python

# Both installed from the network into empty environments and run there; three gigabytes for a while, minutes. Then the
# JSON schema in a YAML language server, which npm installs.
dist-check: setup
	$(BIN)/python -m pytest tests/system/test_distributions.py tests/system/test_language_server.py

# Mistakes of one line, made in copies of the tree, each of which the tests must notice: `make mutants MUTANTS="14 15"`.
mutants: setup
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The systems that `make bench` compares with, each in a separate virtual environment.
peers: .peers/sb3/.installed .peers/rllib/.installed .peers/d3rlpy/.installed

.peers/%/.installed: benchmarks/peers/requirements-%.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# All benchmarks, one after the other: `make bench`, an hour; `make --keep-going bench` continues after a
# failed one; `make bench BENCH_ARGS=--quick` only shows that they run. A single one: `make bench-memory`.
BENCHES := $(addprefix bench-,throughput asynchronous callbacks many_environments a2c multi_agent several_agents league memory pipelines vector_backends episodes startup replay dqn rainbow soft_actor_critic offline offline_q rllink sweeps)
BENCH_ARGS ?=

bench: $(BENCHES)

# With seconds until CartPole is learned, five seeds each.
bench-all: bench bench-time_to_450

bench-time_to_450: BENCH_FLAGS := --lr 3e-3 --vf-loss-coeff 0.05 --peers ours,rllib

$(BENCHES) bench-time_to_450: bench-%: setup peers
	@printf '\n## %s\n\n' '$*'
	$(BIN)/python benchmarks/$*.py $(BENCH_FLAGS) $(BENCH_ARGS)

.PHONY: $(BENCHES) bench-time_to_450
.NOTPARALLEL:

clean:
	rm -rf $(VENV) .peers build dist *.egg-info
