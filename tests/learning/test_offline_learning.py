"""The experiments that learn from recorded data reach what they promise, for every seed: record, then learn.

Each run leaves a line in `benchmarks/results/offline_learning.jsonl`: experiment, data, seed, updates, seconds, return.
The first seeds go on for a curve in `benchmarks/results/learning/curves`, of rows that were learned from and return.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from runner.experiment.trainer import Trainer
from tests.chaos.runs import NOT_KILLED
from tests.conftest import ROOT
from tests.learning.test_learning import SAMPLED
from tests.support.configs import config_from

RETURN, ITERATION = "evaluation/env_runners/episode_return_mean", "training_iteration"
RLLIB_EPISODES = ROOT / "tests" / "data" / "rllib_cartpole_episodes"
RESULTS = ROOT / "benchmarks" / "results" / "offline_learning.jsonl"
NUM_SEEDS = 10
CURVES = ROOT / "benchmarks/results/learning/curves"
SEEDS_OF_CURVES, POINTS_OF_A_CURVE = range(3), 6

# Experiment -> the return that it promises; a test holds it equal to its `stop` block.
PROMISES = {
    "bc_cartpole": 450,
    "marwil_cartpole": 400,
    "iql_pendulum": -250,
    "cql_pendulum": -400,
    "cql_discrete_cartpole": 400,
}
# Experiment, the fixture with its data, and the return that it reaches from these.
CASES = [
    ("bc_cartpole", "expert", 450),
    ("bc_cartpole", "rllib_episodes", 350),
    ("marwil_cartpole", "expert", 400),
    ("iql_pendulum", "mixed_quality", -250),
    ("cql_pendulum", "mixed_quality", -400),
    ("cql_discrete_cartpole", "expert", 400),
    ("cql_discrete_cartpole", "rllib_episodes", 350),
]


@dataclass(frozen=True)
class Learned:
    """How a run ended: mean return of the last evaluation, after so many updates; seconds from before it starts."""

    experiment: str
    data: str
    seed: int
    num_updates: int
    seconds: float
    episode_return_mean: float


def run_command(folder: Path, *arguments: str) -> str:
    """What `python -m runner ARGUMENTS` prints in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "runner", *arguments]
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture(scope="session")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 episodes of a policy that `ppo_cartpole` trained."""
    folder = tmp_path_factory.mktemp("expert")
    run_command(folder, "+experiment=ppo_cartpole", "tracking=none", "hydra.run.dir=run")
    run_command(folder, "record", "run", "offline.output=data", "evaluation.evaluation_duration=100")
    return folder / "data"


@pytest.fixture(scope="session")
def mixed_quality(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that `ppo_pendulum` trains on, from its first, random episodes to its last ones."""
    folder = tmp_path_factory.mktemp("mixed")
    run_command(folder, "+experiment=ppo_pendulum", "offline.output=data", "tracking=none", "hydra.run.dir=run")
    return folder / "data"


@pytest.fixture(scope="session")
def rllib_episodes() -> Path:
    """Ten episodes that RLlib recorded."""
    return RLLIB_EPISODES


def learn(experiment: str, data: Path, target: float, seed: int) -> tuple[Learned, list[tuple[float, float]]]:
    """Train until an evaluation reaches the target, for as many iterations as the experiment has at most.

    Returns:
        How the run ended, and its curve, for which it goes on after the target.
    """
    start = time.perf_counter()
    with Trainer.from_experiment(experiment, [f"offline.input_={data}", f"seed={seed}"]) as trainer:
        config = trainer.config
        per_iteration = config.offline.dataset_num_iters_per_learner
        assert per_iteration is not None
        learned, curve = None, []
        while learned is None or (seed in SEEDS_OF_CURVES and len(curve) < POINTS_OF_A_CURVE):
            result = trainer.train()
            value = result.get(RETURN)
            if value is not None:
                curve.append((result["num_env_steps_sampled_lifetime"], value))
            is_over = trainer.training_iteration >= config.stop[ITERATION]
            if learned is None and ((value is not None and value >= target) or is_over):
                num_updates, seconds = trainer.training_iteration * per_iteration, time.perf_counter() - start
                newest = curve[-1][1] if curve else float("-inf")
                learned = Learned(experiment, data.name, seed, num_updates, round(seconds, 1), newest)
            if is_over:
                break
    assert learned is not None
    return learned, curve


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data warns about its own future
@pytest.mark.learning
@pytest.mark.parametrize(("experiment", "data", "target"), CASES)
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_experiment_learns_what_it_promises(
    experiment: str, data: str, target: float, seed: int, request: pytest.FixtureRequest, ray_cluster: None
) -> None:
    learned, curve = learn(experiment, request.getfixturevalue(data), target, seed)
    if seed in SEEDS_OF_CURVES and target == PROMISES[experiment]:
        points = "".join(json.dumps(point) + "\n" for point in curve)
        (CURVES / f"{experiment}-{seed}.jsonl").write_text(points, encoding="utf-8")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(learned) | {"data": data}) + "\n")
    assert learned.episode_return_mean >= target, learned


@pytest.mark.learning
def test_the_recipe_records_mixed_quality(mixed_quality: Path) -> None:
    """From episodes as bad as a random policy's to good ones; most are worse than what is learned from them."""
    returns = json.loads(run_command(mixed_quality.parent, "inspect", "data", "--json"))["returns"]
    assert returns["percentiles"]["5"] < -1200
    assert returns["percentiles"]["75"] > -300
    assert returns["percentiles"]["50"] < PROMISES["cql_pendulum"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_recorded_steps_help_from_the_start(mixed_quality: Path, seed: int) -> None:
    """-200 within 8,000 env steps; `sac_pendulum`, which begins with none, takes up to 9,000."""
    overrides = [f"offline.input_={mixed_quality}", f"seed={seed}", "evaluation.evaluation_interval=null"]
    with Trainer.from_experiment("sac_rlpd_pendulum", overrides) as trainer:
        value, num_env_steps = float("-inf"), 0
        while value < -200 and num_env_steps < 8000:
            result = trainer.train()
            num_env_steps = int(result["num_env_steps_sampled_lifetime"] or 0)
            value = result["env_runners/episode_return_mean"] or value
    assert value >= -200


def test_promises_are_those_of_the_experiments() -> None:
    for name, target in PROMISES.items():
        config = config_from(f"+experiment={name}", "offline.input_=data")
        assert config.stop[RETURN] == target
        assert config.stop.keys() == {RETURN, ITERATION}
        assert config.evaluation.evaluation_duration >= 10
    files = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml") if not path.stem.startswith(SAMPLED)}
    assert files - NOT_KILLED == set(PROMISES), "every experiment has a learning test"
