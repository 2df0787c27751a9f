"""The experiments under conf/ learn what they promise, for every seed. `make learning` runs the slow ones.

Each leaves a line in `benchmarks/results/learning.jsonl`: experiment, seed, env steps, seconds, return.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pytest

from runner.trainer import Trainer
from tests.conftest import ROOT

RETURN, STEPS = "env_runners/episode_return_mean", "num_env_steps_sampled_lifetime"
RESULTS = ROOT / "benchmarks" / "results" / "learning.jsonl"


@dataclass(frozen=True)
class Learned:
    """How a run ended: mean return of the last 100 episodes, after so many env steps and seconds of training."""

    experiment: str
    seed: int
    num_env_steps: int
    seconds: float
    episode_return_mean: float


def _learn(experiment: str, seed: int, target: float, max_env_steps: int) -> Learned:
    with Trainer.from_experiment(experiment, [f"seed={seed}", "evaluation.evaluation_interval=null"]) as trainer:
        while True:
            result = trainer.train()
            value = result[RETURN]
            assert value is not None
            if value >= target or result[STEPS] >= max_env_steps:
                return Learned(experiment, seed, int(result[STEPS]), round(result["time_total_s"], 2), value)


def _record(learned: Learned) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(learned)) + "\n")


@pytest.mark.parametrize("seed", range(3))
def test_ppo_cartpole_reaches_450(seed: int) -> None:
    learned = _learn("ppo_cartpole", seed=seed, target=450, max_env_steps=300_000)
    assert learned.episode_return_mean >= 450, learned


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(10))
def test_ppo_cartpole_reaches_450_with_every_seed(seed: int) -> None:
    learned = _learn("ppo_cartpole", seed, target=450, max_env_steps=300_000)
    _record(learned)
    assert learned.episode_return_mean >= 450, learned


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(2))
def test_ppo_pendulum_reaches_minus_300(seed: int) -> None:
    learned = _learn("ppo_pendulum", seed, target=-300, max_env_steps=400_000)
    _record(learned)
    assert learned.episode_return_mean >= -300, learned
