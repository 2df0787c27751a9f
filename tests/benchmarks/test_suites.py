"""The comparison on MuJoCo and MinAtar: equal settings, stored runs, tables, and the bare loops."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.compose import compose_experiment
from tests.conftest import ROOT
from tests.support.configs import config_from


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("suites")


@pytest.fixture
def peers(suites: Any) -> Any:
    return importlib.import_module


def row(system: str, seed: int, speed: float, value: float, num_env_steps: int = 100_000) -> dict[str, Any]:
    found = {"experiment": "sac_hopper", "system": system, "seed": seed, "max_env_steps": num_env_steps}
    found |= {"steps_per_s": speed, "episode_return_mean": value, "train_s": 600.0 + seed, "cpu_s": 540.0}
    return found | {"machine": "2 cores, a CPU", "date": "2026-11-28"}


@pytest.mark.parametrize(("env_steps", "value"), [(0, 1.0), (50, 0.75), (100, 0.5), (300, 0.25), (900, 0.0)])
def test_schedules_are_those_of_runner(peers: Any, env_steps: int, value: float) -> None:
    scheduled = peers("suite_cli").scheduled
    assert scheduled([[0, 1.0], [100, 0.5], [500, 0.0]], env_steps) == value
    assert scheduled(3, env_steps) == 3.0


def test_all_systems_get_the_settings_of_the_experiment(suites: Any) -> None:
    for suite in suites.SUITES:
        task = suite.task(2, 5000)
        values = compose_experiment([f"experiment={suite.experiment}", *suite.overrides]).values
        assert task["hiddens"] == values["module"]["fcnet_hiddens"]
        assert task["settings"] == {name: values["algorithm"][name] for name in task["settings"]}
        assert task["env"] == values["env"]["env"] or task["env"] == values["env"]["env_config"]["game"]
        assert (task["seed"], task["num_env_steps"]) == (2, 5000)


def test_runner_gets_a_valid_configuration_without_a_target(suites: Any, peers: Any) -> None:
    ours = peers("suite_ours")
    for suite in suites.SUITES:
        task = ours.Task(**suite.task(2, 5000))
        overrides = [f"experiment={suite.experiment}", *ours.overrides_of(task, "outputs")]
        config = config_from(*overrides)
        assert dict(config.stop) == {"num_env_steps_sampled_lifetime": 5000}
        assert (config.seed, config.learners.compile) == (2, "auto")


def test_systems_are_interleaved(suites: Any) -> None:
    runs = suites.runs_of(suites.SUITES[:2], ("ours", "sb3"), 2, {"ppo_hopper": 64})
    assert [run.key for run in runs] == [
        (experiment, system, seed, env_steps)
        for seed in (0, 1)
        for experiment, env_steps in (("ppo_half_cheetah", 1_000_000), ("ppo_hopper", 64))
        for system in ("ours", "sb3")
    ]


def test_env_steps_of_all_experiments_or_of_one(suites: Any) -> None:
    found = suites.env_steps_of(["2e4", "sac_hopper=500"])
    assert found == {"ppo_half_cheetah": 20_000, "ppo_hopper": 20_000, "dqn_minatar_breakout": 20_000} | {
        "sac_hopper": 500
    }
    with pytest.raises(SystemExit, match="unknown experiment sac_hoper"):
        suites.env_steps_of(["sac_hoper=500"])


def test_the_newest_row_of_a_run_counts(suites: Any, tmp_path: Path) -> None:
    rows = [row("ours", 0, 100.0, 1.0), row("ours", 0, 100.0, 2.0), row("ours", 0, 100.0, 3.0, 5000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = suites.read_rows(tmp_path / "rows.jsonl")
    assert {key: one["episode_return_mean"] for key, one in found.items()} == {
        ("sac_hopper", "ours", 0, 100_000): 2.0,
        ("sac_hopper", "ours", 0, 5000): 3.0,
    }
    assert suites.read_rows(tmp_path / "missing.jsonl") == {}


def test_a_table_for_each_experiment(suites: Any) -> None:
    rows = [row("ours", seed, 100.0 + seed, 2000.0 + seed) for seed in (0, 1, 2)] + [row("sb3", 0, 50.5, 900.0)]
    page = suites.page_of(rows)
    assert "## SAC on Hopper-v5, 100,000 env steps\n\n`sac_hopper`, 2 cores, a CPU, 2026-11-28.\n" in page
    assert "| runner | 101 (100-102) |  | 601 | 540 | 2,001 (2,000-2,002) | 3 |\n" in page
    assert "| Stable-Baselines3 | 50 (50-50) | 2.00 | 600 | 540 | 900 (900-900) | 1 |\n" in page
    assert "bare torch loop |" not in page
    assert "PPO on" not in page


def test_targets_of_the_bare_dqn_loop_sum_three_rewards(peers: Any) -> None:
    dqn = peers("suite_bare_dqn")
    stored: list[tuple[int, float, int, float]] = []

    class Ring:
        def add(self, obs: Any, action: int, total: float, next_obs: Any, discount: float) -> None:
            stored.append((int(obs), total, int(next_obs), discount))

    for terminated in (True, False):
        stored.clear()
        steps = dqn.NSteps(Ring(), 3, 0.5)
        for t in range(4):
            is_last = t == 3
            steps.add((np.array(t), 0, 1.0), np.array(t + 1), terminated and is_last, is_last)
        last = [0.0] * 3 if terminated else [0.125, 0.25, 0.5]
        assert stored == [
            (0, 1.75, 3, 0.125),
            (1, 1.75, 4, last[0]),
            (2, 1.5, 4, last[1]),
            (3, 1.0, 4, last[2]),
        ]


def bare_ppo(suites: Any, peers: Any, seed: int) -> Any:
    task = suites.SUITES[1].task(seed, 128)
    task["settings"] |= {"train_batch_size_per_learner": 128, "num_epochs": 1}
    task["num_episodes"] = 2
    torch.manual_seed(seed)
    ppo = peers("suite_bare_ppo")
    return ppo.Loop(ppo.Task(**task))


def test_evaluation_of_the_bare_ppo_loop_keeps_the_statistics_of_training(suites: Any, peers: Any) -> None:
    loop = bare_ppo(suites, peers, 0)
    assert loop.train() == 128
    before = (loop._statistics.obs_rms.mean.copy(), loop._statistics.obs_rms.count)
    returns = loop.evaluate()
    assert len(returns) == 2
    assert returns == loop.evaluate()
    assert min(returns) > 1  # points of Hopper, which lives for some steps; not normalised rewards
    assert np.array_equal(before[0], loop._statistics.obs_rms.mean)
    assert before[1] == loop._statistics.obs_rms.count > 128


def test_seeds_of_the_bare_ppo_loop(suites: Any, peers: Any) -> None:
    loops = [bare_ppo(suites, peers, 0), bare_ppo(suites, peers, 1)]
    returns = []
    for seed, loop in enumerate(loops):
        torch.manual_seed(seed)
        loop.train()
        returns.append(loop.evaluate())
    again = bare_ppo(suites, peers, 0)
    torch.manual_seed(0)
    again.train()
    assert again.evaluate() == returns[0] != returns[1]


def test_minatar_is_that_of_runner(peers: Any) -> None:
    from runner.environments import MinAtar

    ours, theirs = MinAtar("breakout"), peers("suite_minatar").MinAtar("breakout")
    assert (ours.action_space, ours.observation_space) == (theirs.action_space, theirs.observation_space)
    one, other = ours.reset(seed=3), theirs.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        assert np.array_equal(one[0], other[0])
        action = rng.integers(3)
        one, other = ours.step(action), theirs.step(action)
        assert one[1:4] == other[1:4]
        if one[2]:
            one, other = ours.reset(), theirs.reset()
