"""Configurations that share most overrides are composed faster, with the same result."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from runner.config.compose import compose_experiment
from runner.config.overrides import MOST_COMBINATIONS, expand_sweep, parse_overrides
from runner.config.paths import search_dirs
from runner.config.stored import compose_new_run, compose_variant

SHARED = ("+experiment=ppo_cartpole", "stop.num_env_steps_sampled_lifetime=60000", "module.fcnet_hiddens=[8]")


@pytest.mark.parametrize(
    "own",
    [
        ("algorithm.lr=1e-3", "seed=3"),
        ("algorithm.lr=[[0,1e-3],[1000,1e-4]]", "evaluation=none"),
        ("algorithm=dqn", "algorithm.epsilon.1.0=5000"),
        ("env=stateless_cartpole", "env_runners.num_envs_per_env_runner=2"),
        ("stop.env_runners.episode_return_mean=20",),
        ("stop={env_runners: {episode_return_mean: 20}}",),
        ("stop=20",),
        ("callbacks.mine.every=3",),
        ("connectors.learner.GeneralAdvantageEstimation.lambda_=0.9", "callbacks.mine=3"),
        ("env.env_config={sutton_barto_reward:true}", "env.env_config.render_mode=null"),
        ("module={fcnet_hiddens: [16]}",),
        ("algorithm.schema=runner.config.algorithms.BCConfig", "algorithm.lr=1"),
        ("algorithm.no_such_key=1", "algorithm.lr=fast"),
        ("no_such_group=x",),
        ("algorithm.lr=1e-3,2e-3",),
    ],
)
def test_a_variant_is_what_it_is_alone(own: tuple[str, ...]) -> None:
    variant, alone = compose_variant(SHARED, own, None), compose_experiment([*SHARED, *own])
    assert variant.values == alone.values
    assert variant.unresolved == alone.unresolved
    assert variant.experiment == alone.experiment
    assert sorted(variant.overrides) == sorted(alone.overrides)
    assert set(variant.problems) == set(alone.problems)
    assert variant.unread == alone.unread
    for key in ("algorithm.lr", "stop", "env", "algorithm.grad_clip", "env.env_config", "module.fcnet_hiddens"):
        assert variant.where(key) == alone.where(key)


def test_a_new_run_with_stored_modules_keeps_its_algorithm_where_a_package_gets_another() -> None:
    stored, text = compose_experiment(SHARED), "+algorithm@multi_agent.modules.p1.algorithm=dqn"
    manifest = {"overrides": [], "experiment": "ppo_cartpole"}
    composed, replaced = compose_new_run(manifest, stored.unresolved, Path("checkpoint"), [text], None)
    assert replaced == set()
    assert composed.values["algorithm"] == stored.values["algorithm"]
    assert [problem.what for problem in composed.problems] == [
        "a stored run takes overrides of single keys, not of groups"
    ]


def combinations_of(*texts: str) -> list[tuple[str, ...]]:
    lines, problems = parse_overrides(texts, search_dirs(None))
    assert not problems
    return list(expand_sweep(lines, search_dirs(None)))


@pytest.mark.parametrize("empty", ["seed=range(0)", "seed=range(1,3,0)", "seed=range(0.5,1,0.0)", "env=glob(nowhere*)"])
def test_a_sweep_without_values_leaves_the_others(empty: str) -> None:
    assert combinations_of("algorithm.lr=1e-3,2e-3", empty) == [("algorithm.lr=0.001",), ("algorithm.lr=0.002",)]


def test_a_combination_chooses_options_for_a_package() -> None:
    place = "algorithm@multi_agent.modules.p1.algorithm"
    assert combinations_of(f"{place}=dqn,ppo") == [(f"{place}=dqn",), (f"{place}=ppo",)]


def test_all_combinations_are_made_and_each_seed_once() -> None:
    made = combinations_of("algorithm.lr=1e-3,2e-3", "algorithm.gamma=0.9,0.95,0.99", "seed=range(5)")
    pairs = {(lr, gamma) for lr, gamma, _ in made}
    assert len(pairs) == 6
    assert {seed for *_, seed in made} == {f"seed={number}" for number in range(5)}
    assert len(made) == len(set(made)) <= 6 + 5


def test_of_very_many_combinations_each_value_is_made() -> None:
    texts = [f"algorithm.{name}=range(0.1,0.9,0.05)" for name in ("gamma", "lambda_", "clip_param", "kl_coeff")]
    made = combinations_of(*texts)
    assert MOST_COMBINATIONS <= len(made) <= MOST_COMBINATIONS + 16
    for column in zip(*made, strict=True):
        assert len(set(column)) == 16
    assert len(made) == len(set(made))


def test_a_combination_that_only_fails_together_is_found() -> None:
    made = combinations_of("algorithm.minibatch_size=64,4096", "algorithm.train_batch_size_per_learner=256,8192")
    assert set(made) == set(
        itertools.product(
            ("algorithm.minibatch_size=64", "algorithm.minibatch_size=4096"),
            ("algorithm.train_batch_size_per_learner=256", "algorithm.train_batch_size_per_learner=8192"),
        )
    )
