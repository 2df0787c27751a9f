"""The table of rules, and values that are valid individually but may contradict each other."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.config.blocks import EnvConfig
from runner.config.composed import DEFAULT_SOURCE, Composed
from runner.config.errors import ConfigError, Problem
from runner.config.plans.compilation import compiles, planned_updates
from runner.config.rules import DERIVED, RULES, ConfigRule, apply_rules
from runner.config.schemas import ExperimentConfig
from tests.support.configs import config_from


def config_of(*overrides: str) -> ExperimentConfig:
    return config_from("+experiment=ppo_cartpole", *overrides)


NOTHING_COMPOSED = Composed({}, {}, (), None)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.find.__name__)
def test_rules_are_given_what_they_read(rule: ConfigRule) -> None:
    others = {"config": ExperimentConfig, "composed": Composed}
    types: dict[str, Any] = typing.get_type_hints(ExperimentConfig) | others
    hints = typing.get_type_hints(rule.find)
    for name in inspect.signature(rule.find).parameters:
        assert name in DERIVED or hints[name] == types[name], name
    assert set(rule.reads.split()) <= {*types, "experiment"}


def env_is_named(env: EnvConfig) -> Iterator[Problem]:
    yield Problem(f"the environment is {env.env}", "env")


def always(config: ExperimentConfig) -> Iterator[Problem]:
    yield Problem(f"seed {config.seed}")


def test_a_rule_is_left_out_if_its_block_could_not_be_read_or_an_earlier_rule_failed() -> None:
    rules = (ConfigRule(env_is_named, "env"), ConfigRule(always, after=(env_is_named,)))
    config = ExperimentConfig(env=EnvConfig(env="A-v0"), seed=3)
    assert [*apply_rules(rules, config, NOTHING_COMPOSED)] == [Problem("the environment is A-v0", "env")]
    unread = replace(NOTHING_COMPOSED, unread=frozenset({"env"}))
    assert [*apply_rules(rules, config, unread)] == [Problem("seed 3")]


@pytest.mark.parametrize(
    ("what", "key", "where"),
    [
        ("it is unknown", "env.env", "override env.env=a"),
        ("it is unknown", "env", "override env.env=a"),
        ("it is unknown", "seed", "seed"),
        ("seed is unknown", "seed", None),
        ("it is unknown", None, None),
    ],
)
def test_a_problem_is_located_at_the_source_of_its_key(what: str, key: str | None, where: str | None) -> None:
    composed = replace(NOTHING_COMPOSED, sources={"env.env": "override env.env=a", "seed": DEFAULT_SOURCE})
    assert composed.located(Problem(what, key)) == Problem(what, where)


def test_a_minibatch_may_be_the_whole_train_batch_and_no_larger() -> None:
    batch = "algorithm.train_batch_size_per_learner=512"
    assert config_of(batch, "algorithm.minibatch_size=512").algorithm.minibatch_size == 512
    assert config_of(batch, "algorithm.minibatch_size=null").algorithm.minibatch_size is None
    with pytest.raises(ConfigError, match="minibatch_size 513 is larger than"):
        config_of(batch, "algorithm.minibatch_size=513")


def test_simulators_that_step_themselves_have_no_env_runner_of_a_class_of_ones_own() -> None:
    own = "env_runners.env_runner_class=runner.env_runners.env_runner.SingleAgentEnvRunner"
    assert config_of(own).env_runners.env_runner_class is not None
    with pytest.raises(ConfigError, match="env_runner_class has no effect"):
        config_of(own, "env.port=0")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("algorithm=a3c", "does not contain TrainOneStep"),
        ("algorithm=pg", "complete episodes"),
        ("algorithm.microbatch_size=32", "cannot be compiled"),
        ("module.use_gru=true", "vary in length"),
        ("multi_agent.multi_rl_module={_target_: runner.modules.MultiRLModule}", "cannot be compiled"),
    ],
)
def test_updates_that_cannot_be_compiled(override: str, reason: str) -> None:
    assert config_of("learners.compile=true").learners.compile
    with pytest.raises(ConfigError, match=f"learners.compile: .*{reason}"):
        config_of("learners.compile=true", override)


@pytest.mark.parametrize("override", ["algorithm.microbatch_size=32", "module.use_gru=true"])
def test_updates_that_are_not_compiled_by_themselves(override: str) -> None:
    stop = "stop.num_env_steps_sampled_lifetime=10000000"
    assert compiles(config_of(stop))
    assert not compiles(config_of(stop, override))


@pytest.mark.parametrize(
    ("overrides", "num_updates"),
    [
        (["experiment=ppo_half_cheetah"], 1_000_000 / 2048 * 320),
        (["experiment=ppo_half_cheetah", "learners.num_learners=2"], 1_000_000 / 4096 * 320),
        (["experiment=ppo_half_cheetah", "algorithm.minibatch_size=null"], 1_000_000 / 2048 * 10),
        (["experiment=ppo_half_cheetah", "stop.training_iteration=3"], 960),
        (["experiment=sac_lunarlander_continuous"], 150_000),
        (["experiment=dqn_minatar_breakout"], 93_750),
        (["experiment=dqn_minatar_breakout", "stop.training_iteration=2"], 625),
        (["experiment=ppo_cartpole", "~stop.num_env_steps_sampled_lifetime"], 0),
        (["experiment=bc_cartpole", "offline.input_=data"], 0),
    ],
)
def test_planned_updates(overrides: list[str], num_updates: float) -> None:
    config = config_from(*overrides)
    assert planned_updates(config) == pytest.approx(num_updates)
    assert compiles(replace(config, learners=replace(config.learners, compile="auto"))) == (num_updates >= 100_000)
    assert compiles(replace(config, learners=replace(config.learners, compile=True)))
