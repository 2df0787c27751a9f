"""The trainer: it learns what can be learned in seconds, and one seed gives one set of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import as_trainable
from runner.config.errors import ConfigError
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, Outcome, progress_of, without_times
from tests.support.configs import config_from
from tests.support.environments import Faulty

CARTPOLE = "ppo_cartpole"
IDENTITY = (
    *QUICK,
    "env.env=null",
    "algorithm.train_batch_size_per_learner=512",
    "algorithm.num_epochs=6",
    "algorithm.gamma=0",
    "algorithm.lambda_=0",
    "algorithm.lr=1e-2",
    "algorithm.vf_loss_coeff=0.5",
    "module.fcnet_activation=tanh",
    "env_runners.num_envs_per_env_runner=8",
)


def _train(overrides: Sequence[str], iterations: int) -> list[dict[str, Any]]:
    with Trainer.from_experiment(CARTPOLE, overrides) as trainer:
        return [without_times(trainer.train()) for _ in range(iterations)]


def _mean_reward(trainer: Trainer) -> float:
    result = trainer.evaluate(200)
    return result["evaluation/env_runners/episode_return_mean"] / result["evaluation/env_runners/episode_len_mean"]


# -- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["MatchDiscrete", "MatchContinuous"])
def test_identity_environment_is_learned(env: str) -> None:
    overrides = [*IDENTITY, f"env._target_=tests.support.environments.{env}", "seed=1"]
    with Trainer.from_experiment(CARTPOLE, overrides) as trainer:
        assert _mean_reward(trainer) < 0.8, "the untrained policy must not solve it"
        for _ in range(30):
            trainer.train()
            if _mean_reward(trainer) > 0.95:
                return
        assert _mean_reward(trainer) > 0.95


# -- same seed, same numbers ---------------------------------------------------------------------------------------


def test_one_seed_gives_one_set_of_numbers() -> None:
    first, again, other = (_train([*QUICK, f"seed={seed}"], 3) for seed in (3, 3, 4))
    assert first == again
    assert first[0]["env_runners/episode_return_mean"] != other[0]["env_runners/episode_return_mean"]
    assert first[0]["learners/default_policy/total_loss"] != other[0]["learners/default_policy/total_loss"]


def test_global_random_state_is_neither_read_nor_moved() -> None:
    import random

    import numpy as np
    import torch

    expected = _train(QUICK, 2)
    torch.manual_seed(123)
    np.random.seed(123)
    random.seed(123)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert _train(QUICK, 2) == expected
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_runners_step_with_seeds_of_their_own() -> None:
    overrides = [*QUICK, "engine=inline", "env_runners.num_env_runners=2"]
    with Trainer.from_experiment(CARTPOLE, overrides) as trainer:
        blocks = [sample.rollout.blocks["default_policy"] for sample in trainer.env_runners.sample(64, True)]
    first_obs = {row.tobytes() for block in blocks for row in block.columns["obs"][:1]}
    assert len(first_obs) == 2
    assert not {*blocks[0].episode_ids} & {*blocks[1].episode_ids}


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray Tune warns about its own future
def test_three_ways_to_train_are_equal(ray_cluster: None, run_main: Any, tmp_path: Path) -> None:
    from ray import tune

    ours = (*QUICK, "algorithm.lr=1e-2", "seed=3")
    from_python = _train(ours, 2)

    outcome: Outcome = run_main(f"+experiment={CARTPOLE}", *ours, "stop.training_iteration=2", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    from_command_line = [without_times(line) for line in progress_of(tmp_path / "run")]
    assert from_command_line == from_python

    tuner = tune.Tuner(
        as_trainable(CARTPOLE, QUICK),
        param_space={"algorithm.lr": tune.grid_search([1e-2]), "seed": 3},
        run_config=tune.RunConfig(
            stop={"training_iteration": 2}, storage_path=str(tmp_path / "tune"), verbose=0, failure_config=None
        ),
    )
    (trial,) = tuner.fit()
    assert trial.error is None
    from_tune = {name: trial.metrics[name] for name, value in from_python[-1].items() if value is not None}
    assert from_tune == {name: value for name, value in from_python[-1].items() if value is not None}


# -- counting ------------------------------------------------------------------------------------------------------


def test_counters_add_up() -> None:
    results = _train([*QUICK, "env_runners.metrics_num_episodes_for_smoothing=100000"], 5)
    assert [result["training_iteration"] for result in results] == [1, 2, 3, 4, 5]
    last = results[-1]
    assert sum(result["num_env_steps_sampled"] for result in results) == last["num_env_steps_sampled_lifetime"]
    assert sum(result["env_runners/num_episodes"] for result in results) == last["num_episodes_lifetime"]
    assert last["num_env_steps_trained_lifetime"] == last["num_env_steps_sampled_lifetime"]
    # Every step is in exactly one episode: finished ones, or at most one running one a sub-environment.
    finished = last["env_runners/episode_len_mean"] * last["num_episodes_lifetime"]
    assert 0 <= last["num_env_steps_sampled_lifetime"] - round(finished) <= 4 * 500
    # CartPole pays 1 a step.
    assert last["env_runners/episode_return_mean"] == last["env_runners/episode_len_mean"]


@pytest.mark.parametrize("fragment", [7, 64, 100])
def test_fragments_are_joined_to_a_train_batch(fragment: int) -> None:
    results = _train([*QUICK, f"env_runners.rollout_fragment_length={fragment}"], 2)
    assert results[0]["num_env_steps_sampled"] >= 256
    assert results[0]["num_env_steps_sampled"] < 256 + fragment * 4 + 4


@given(duration=st.integers(1, 12), num_runners=st.integers(1, 3), num_envs=st.integers(1, 5))
@settings(max_examples=8, deadline=None)
def test_evaluation_runs_exactly_as_many_episodes(duration: int, num_runners: int, num_envs: int) -> None:
    overrides = [
        *QUICK,
        "engine=inline",
        f"evaluation.evaluation_num_env_runners={num_runners}",
        f"evaluation.num_envs_per_env_runner={num_envs}",
        f"evaluation.evaluation_duration={duration}",
    ]
    with Trainer.from_experiment(CARTPOLE, overrides) as trainer:
        assert trainer.evaluate()["evaluation/env_runners/num_episodes"] == duration


def test_evaluation_runs_exactly_as_many_env_steps() -> None:
    notes: list[str] = []
    unit = ("evaluation.evaluation_duration_unit=env_steps", "evaluation.num_envs_per_env_runner=2")
    for num_runners, duration in ((1, 301), (3, 301), (2, 6)):
        runners = ("engine=inline", f"evaluation.evaluation_num_env_runners={num_runners}")
        overrides = [*QUICK, *unit, *runners, f"evaluation.evaluation_duration={duration}"]
        config = config_from(f"+experiment={CARTPOLE}", *overrides)
        with Trainer(config, note=notes.append) as trainer:
            result = trainer.evaluate()
            assert without_times(trainer.evaluate()) == without_times(result), "always the same seeds"
            assert trainer.evaluate(4)["evaluation/env_runners/num_episodes"] == 4
        assert result["evaluation/env_runners/num_env_steps_sampled"] == duration
        num_episodes, mean = (result[f"evaluation/env_runners/{name}"] for name in ("num_episodes", "episode_len_mean"))
        if duration > 6:
            assert not notes
            assert 0.7 * duration < (num_episodes or 0) * (mean or 0.0) < duration
    assert (num_episodes, mean, result["evaluation/env_runners/episode_return_mean"]) == (0, None, None)
    what = "no episode ended within 6 env steps of 4 sub-environments: without a complete episode, the evaluation "
    what += "cannot report a return"
    assert [note.partition(";")[0] for note in notes] == [what]


@pytest.mark.ray
def test_evaluations_of_env_steps_are_the_same_on_ray(ray_cluster: None) -> None:
    unit = ("evaluation.evaluation_duration_unit=env_steps", "evaluation.evaluation_duration=301")
    overrides = [*QUICK, *unit, "evaluation.evaluation_num_env_runners=2", "evaluation.num_envs_per_env_runner=2"]
    results = []
    for engine in ("inline", "ray"):
        with Trainer.from_experiment(CARTPOLE, [*overrides, f"engine={engine}"]) as trainer:
            results.append(without_times(trainer.evaluate()))
    assert results[0] == results[1]
    assert results[0]["evaluation/env_runners/num_episodes"] > 4


def test_more_runners_than_rows() -> None:
    overrides = [
        *QUICK,
        "engine=inline",
        "env_runners.num_env_runners=3",
        "env_runners.num_envs_per_env_runner=1",
        "algorithm.minibatch_size=1",
        "algorithm.train_batch_size_per_learner=2",
    ]
    assert [result["num_env_steps_sampled"] >= 2 for result in _train(overrides, 3)] == [True] * 3


def test_evaluation_does_not_move_training() -> None:
    silent = _train(QUICK, 3)
    with Trainer.from_experiment(CARTPOLE, [*QUICK, "connectors=default"]) as trainer:
        evaluated, evaluations = [], []
        for _ in range(3):
            evaluated.append(without_times(trainer.train()))
            evaluations.append(without_times(trainer.evaluate(6)))
            assert evaluations[-1] == without_times(trainer.evaluate(6)), "always the same seeds"
    assert evaluated == silent


def test_evaluation_shares_the_filter_and_does_not_change_it() -> None:
    overrides = [*QUICK, "connectors=mean_std_filter"]
    with Trainer.from_experiment(CARTPOLE, overrides) as trainer:
        trainer.train()
        before = str(trainer.env_runners.shared_state)
        first = without_times(trainer.evaluate(8))
        assert str(trainer.env_runners.shared_state) == before
        (filter_state,) = trainer.env_runners.shared_state["default_policy"].values()
        filter_state["merged_mean"] = filter_state["merged_mean"] + 5.0
        assert without_times(trainer.evaluate(8)) != first, "evaluation acts without the filter"


def test_environments_are_closed_after_one_that_fails_at_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Evaluation environments are closed as well, and the errors are warnings."""
    env = ["env.env=null", "env._target_=tests.support.environments.Faulty", "env.env_config={fault: raise_in_close}"]
    trainer = Trainer.from_experiment(
        CARTPOLE, [*QUICK, *env, "env_runners.num_envs_per_env_runner=3", "evaluation.num_envs_per_env_runner=2"]
    )
    trainer.train()
    trainer.evaluate(2)
    monkeypatch.setattr("tests.support.environments.Faulty.num_closed", 0)
    trainer.close()
    assert Faulty.num_closed == 3 + 2
    assert "the simulator does not answer" in caplog.text


def test_weights_arrive_at_the_runners() -> None:
    import torch

    with Trainer.from_experiment(CARTPOLE, QUICK) as trainer:
        for _ in range(2):
            module = trainer.learners.modules["default_policy"]
            (sample,) = trainer.env_runners.sample(32, True)
            obs = sample.rollout.blocks["default_policy"].columns["obs"]
            keep = torch.ones(len(obs), dtype=torch.bool)
            keep[
                sample.rollout.blocks["default_policy"].offsets[1:]
                + range(len(sample.rollout.blocks["default_policy"]))
            ] = False
            with torch.no_grad():
                theta = module.forward_train({"obs": torch.from_numpy(obs)[keep]})["action_dist_inputs"]
            recorded = torch.from_numpy(sample.rollout.blocks["default_policy"].columns["action_dist_inputs"])
            torch.testing.assert_close(recorded, theta, rtol=1e-4, atol=1e-5)
            trainer.train()


# -- what cannot be built ------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_resources_that_are_not_there_are_refused(ray_cluster: None) -> None:
    overrides = [*QUICK, "env_runners.num_env_runners=2", "env_runners.num_gpus_per_env_runner=1"]
    with pytest.raises(ConfigError, match=r"does not have the resources[\s\S]*got +GPU 2[\s\S]*expected +GPU 0"):
        Trainer.from_experiment(CARTPOLE, overrides)
    with pytest.raises(ConfigError, match=r"got +CPU 200[\s\S]*expected +CPU 4"):
        Trainer.from_experiment(CARTPOLE, [*QUICK, "env_runners.num_env_runners=200"])


def test_an_observation_that_the_filter_cannot_read_is_refused() -> None:
    overrides = [*IDENTITY, "env._target_=tests.support.environments.MatchDiscrete", "connectors=mean_std_filter"]
    with pytest.raises(ConfigError, match="MeanStdFilter needs float observations"):
        Trainer.from_experiment(CARTPOLE, overrides)
