"""The table of algorithms in README.md and docs/reference/algorithms.md: what each of them supports and has learned.

`python -m tests.support.algorithm_table` writes it into both pages. Every mark is an experiment of one update that
`validate --build` accepts; the last column names the environments with stored results.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.learning_table import published_return
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.paths import conf_dir, list_options
from runner.experiment.learner_builder import _check_shared_out
from runner.experiment.rehearsal import rehearse
from runner.module_building import build_module, make_module_specs
from tests.support.configs import config_from

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- table of algorithms: begin -->", "<!-- table of algorithms: end -->"
PAGES = {"README.md": "docs/reference/", "docs/reference/algorithms.md": ""}  # page -> prefix of its links
HEAD = (
    "algorithm",
    "discrete",
    "continuous",
    "recurrent",
    "multi-agent",
    "several learners",
    "compiled",
    "offline",
    "results",
)
# Algorithm -> page and anchor, in the order of the table.
ROWS = {
    "ppo": "policy_gradient.md#ppo",
    "ppo_sb3": "policy_gradient.md#ppo",
    "a2c": "policy_gradient.md#a2c-and-a3c",
    "a2c_replay": "policy_gradient.md#a2c-with-replay",
    "a3c": "policy_gradient.md#a2c-and-a3c",
    "pg": "policy_gradient.md#pg-reinforce",
    "impala": "policy_gradient.md#impala",
    "appo": "policy_gradient.md#appo",
    "dqn": "value_based.md#dqn",
    "rainbow": "value_based.md#rainbow-c51-qr-dqn-and-noisy-layers",
    "munchausen_dqn": "value_based.md#munchausen-dqn",
    "apex_dqn": "value_based.md#ape-x",
    "pqn": "value_based.md#pqn",
    "sac": "continuous_control.md#sac",
    "crossq": "continuous_control.md#crossq",
    "sac_discrete": "continuous_control.md#sac-for-discrete-actions",
    "tqc": "continuous_control.md#tqc",
    "td3": "continuous_control.md#td3-and-ddpg",
    "ddpg": "continuous_control.md#td3-and-ddpg",
    "mappo": "multi_agent_algorithms.md#mappo-and-ippo",
    "ippo": "multi_agent_algorithms.md#mappo-and-ippo",
    "qmix": "multi_agent_algorithms.md#qmix-and-vdn",
    "vdn": "multi_agent_algorithms.md#qmix-and-vdn",
    "bc": "offline_algorithms.md#bc-behaviour-cloning",
    "marwil": "offline_algorithms.md#marwil",
    "iql": "offline_algorithms.md#iql",
    "cql": "offline_algorithms.md#cql",
    "cql_discrete": "offline_algorithms.md#cql",
}
# Environments of one agent and of several with discrete and with continuous actions.
DISCRETE, CONTINUOUS = ("cartpole", "multi_agent_cartpole"), ("pendulum", "multi_agent_pendulum")
TWO_STEPS = ["env=two_step_game", "env.wrappers=[{_target_: runner.environments.AgentsAsOne}]"]
SHORT = ("+stop.training_iteration=1", "checkpoint.metric=training_iteration", "tracking=none", "seed=0")
# Memory needs transitions of one step in replay, or chunks.
MEMORY = (["module.use_lstm=true"], ["module.use_lstm=true", "algorithm.n_step=1"])
# Train batches follow the training of the module, which is another one than the recorded policy.
OFFLINE = (
    "offline.materialize_mapped_data=false",
    "offline.dataset_num_iters_per_learner=1",
    "learners.check_on_policy_outputs=false",
)
MARK = "✓"
MOST_RESULTS = 3
# Options of `env` -> their names in the last column.
ENVIRONMENTS = {
    "acrobot": "Acrobot",
    "ant": "Ant",
    "atari_ale": "Atari",
    "bipedal_walker": "BipedalWalker",
    "bit_flipping": "bit flipping",
    "cartpole": "CartPole",
    "catch": "Catch",
    "dict_cartpole": "CartPole",
    "goal_maze": "goal maze",
    "half_cheetah": "HalfCheetah",
    "hopper": "Hopper",
    "humanoid": "Humanoid",
    "inverted_pendulum": "InvertedPendulum",
    "investment_game": "investment game",
    "lunarlander": "LunarLander",
    "masked_cartpole": "CartPole",
    "minatar": "MinAtar Breakout",
    "minatar_gymnax": "MinAtar",
    "minigrid": "MiniGrid",
    "misbehaving_cartpole": "CartPole",
    "multi_agent_cartpole": "two-agent CartPole",
    "multi_agent_pendulum": "two-agent Pendulum",
    "pendulum": "Pendulum",
    "pusher": "Pusher",
    "reacher": "Reacher",
    "speaker_listener": "speaker and listener",
    "stateless_cartpole": "CartPole without velocities",
    "swimmer": "Swimmer",
    "tic_tac_toe": "tic-tac-toe",
    "two_step_game": "two-step game",
    "walker2d": "Walker2d",
}


def rows_of_table(folder: Path) -> list[list[str]]:
    """Return a row for each algorithm: its name, a mark for each supported property, and its results."""
    return [[name, *_marks_of(name, folder), ", ".join(results_of(name))] for name in ROWS]


def table_of(rows: Sequence[Sequence[str]], prefix: str) -> str:
    """Return the rows as a Markdown table whose links begin with `prefix`."""
    lines = [list(HEAD), ["---", *[":-:"] * (len(HEAD) - 2), "---"]]
    lines += [[f"[`{name}`]({prefix}{ROWS[name]})", *cells] for name, *cells in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table_in(page: str) -> str:
    """Return the table that a page shows."""
    return (ROOT / page).read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def with_table(page: str, table: str) -> str:
    """Return the text of a page with another table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def record_all(folder: Path) -> None:
    """Record some episodes of each environment, of a policy without memory and of one with memory."""
    sizes = ["algorithm.train_batch_size_per_learner=800", "algorithm.minibatch_size=null", "algorithm.num_epochs=1"]
    for env in (*DISCRETE, *CONTINUOUS):
        for memory in ("false", "true"):
            data = folder / _name_of_data(env, memory == "true")
            written = [f"offline.output={data}", f"hydra.run.dir={data}_run", f"module.use_lstm={memory}"]
            command = [sys.executable, "-m", "runner", "algorithm=ppo", f"env={env}", *sizes, *SHORT, *written]
            subprocess.run(command, check=True, capture_output=True, cwd=folder)


def _name_of_data(env: str, has_memory: bool) -> str:
    return f"{env}_memory" if has_memory else env


def _marks_of(algorithm: str, folder: Path) -> Iterator[str]:
    def is_supported(*overrides: str) -> bool:
        return any(_is_accepted(algorithm, [*env, *overrides], folder) for env in environments)

    single = [[f"env={name}"] for name, _ in (DISCRETE, CONTINUOUS)]
    several = [[f"env={name}"] for _, name in (DISCRETE, CONTINUOUS)] + [TWO_STEPS]
    accepts = {
        name: _is_accepted(algorithm, env, folder) for name, env in zip(("discrete", "continuous"), single, strict=True)
    }
    if not any(accepts.values()):  # several agents only
        accepts = {
            "discrete": any(_is_accepted(algorithm, env, folder) for env in (several[0], TWO_STEPS)),
            "continuous": _is_accepted(algorithm, several[1], folder),
        }
        single = several
    yield from (MARK if accepted else "" for accepted in accepts.values())
    environments = single
    yield MARK if any(is_supported(*overrides) for overrides in MEMORY) else ""
    environments = several
    yield MARK if is_supported() else ""
    environments = single
    yield MARK if is_supported("learners.num_learners=2") else ""
    yield MARK if is_supported("learners.compile=true") else ""
    yield MARK if _learns_from_records(algorithm) else ""


def _is_accepted(algorithm: str, overrides: Sequence[str], folder: Path) -> bool:
    """Whether an experiment is valid, can be built, and makes one update; nothing is compiled."""
    data = []
    if _learns_from_records(algorithm):
        env = next(override.partition("=")[2] for override in overrides if override.startswith("env="))
        path = folder / _name_of_data(env, "module.use_lstm=true" in overrides)
        if not path.is_dir():
            return False
        data = [f"offline.input_={path}", *OFFLINE]
    try:
        config = config_from(f"algorithm={algorithm}", *overrides, *data, *SHORT)
        rehearse(replace(config, learners=replace(config.learners, compile=False)))
        if config.learners.num_learners > 1:
            specs = make_module_specs(config)
            _check_shared_out(config, {name: build_module(config, spec) for name, spec in specs.items()})
    except ConfigError:
        return False
    return True


def _learns_from_records(algorithm: str) -> bool:
    values: Mapping[str, Any] = compose_experiment([f"algorithm={algorithm}"]).values
    return any("Read" in str(step) or "Recorded" in str(step) for step in values["algorithm"]["plan"])


def results_of(algorithm: str) -> list[str]:
    """Return the environments on which seeds reached their goal, the slowest first."""
    steps: dict[str, float] = {}
    for file in list_options([conf_dir()], "experiment").values():
        if _choice(file, "algorithm") == algorithm and file.stem in _reached():
            env = ENVIRONMENTS[_choice(file, "env")]
            steps[env] = max(steps.get(env, 0), _reached()[file.stem])
    return sorted(steps, key=lambda env: -steps[env])[:MOST_RESULTS]


@functools.cache
def _reached() -> dict[str, float]:
    """Return experiment -> median env steps or updates, of experiments whose seeds reached their goal.

    The goal is the target for every seed, or, without a target, the published return for the median seed.
    """
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in (ROOT / "zoo/runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs.setdefault(run["experiment"], {})[run["seed"]] = run
    reached = {
        name: median(run["num_env_steps"] for run in of_seeds.values())
        for name, of_seeds in runs.items()
        if _have_reached_goal(name, list(of_seeds.values()))
    }
    for line in (ROOT / "benchmarks/results/recorded_data.jsonl").read_text(encoding="utf-8").splitlines():
        summary = json.loads(line)
        if summary["reached"] == summary["seeds"]:
            reached.setdefault(summary["experiment"], summary["updates_median"])
    return reached


def _have_reached_goal(experiment: str, runs: Sequence[Mapping[str, Any]]) -> bool:
    if runs[0]["target"] is not None:
        return all(
            run["episode_return_mean"] >= run["target"] and run["num_env_steps"] <= run["max_env_steps"] for run in runs
        )
    published = published_return(experiment, runs[0]["max_env_steps"])
    return published is not None and median(run["episode_return_mean"] for run in runs) >= published


def _choice(file: Path, group: str) -> str:
    """Return the option of a group that an experiment, the experiment it extends, or the defaults choose."""
    defaults = yaml.safe_load(file.read_text(encoding="utf-8")).get("defaults", [])
    for item in defaults:
        for key in (f"override /{group}", group):
            if isinstance(item, dict) and key in item:
                return str(item[key])
    parents = (file.with_name(f"{item}.yaml") for item in defaults if isinstance(item, str))
    return _choice(next((parent for parent in parents if parent.is_file()), conf_dir() / "config.yaml"), group)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        record_all(Path(temporary))
        rows = rows_of_table(Path(temporary))
    for page, prefix in PAGES.items():
        (ROOT / page).write_text(with_table(page, table_of(rows, prefix)), encoding="utf-8")
