"""Env runners without a trainer, and env runners of one's own in a run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner import make_env_runner
from runner.callbacks import Callback
from runner.config.blocks import MultiAgentConfig
from runner.config.errors import ConfigError, RunFailure
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.sample import Sample
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK
from tests.support.configs import config_from

HERE = "tests.env_runners.test_library_use"


class MarkingRunner(SingleAgentEnvRunner):
    """Counts its samples in the metrics of the run."""

    def sample(self, *args: Any, **kwargs: Any) -> Sample:
        sample = super().sample(*args, **kwargs)
        self.num_samples = getattr(self, "num_samples", 0) + 1
        return Sample(**{**vars(sample), "counts": {"marked": self.num_samples}})


def test_a_runner_samples_evaluates_and_takes_weights_by_itself() -> None:
    runner = make_env_runner("ppo_cartpole", ["env_runners.num_envs_per_env_runner=4"])
    try:
        assert isinstance(runner, EnvRunner)
        sample = runner.sample(200)
        assert sample.rollout.num_env_steps == 200
        assert (sample.runner, sample.weights_seq_no) == (0, 0)
        before = runner.evaluate(6)
        assert len(before.returns) == 6
        with Trainer.from_experiment("ppo_cartpole", ["env_runners.num_envs_per_env_runner=4"]) as trainer:
            np.testing.assert_array_equal(
                before.returns, runner.evaluate(6, weights=trainer.learners.get_weights()).returns
            )
            for _ in range(3):
                trainer.train()
            runner.set_weights(trainer.learners.get_weights())
        assert runner.evaluate(6).returns.mean() > before.returns.mean()
    finally:
        runner.close()


def test_runners_of_different_indexes_see_different_episodes() -> None:
    runners = [make_env_runner("ppo_cartpole", index=index) for index in (0, 1)]
    first, second = (runner.sample(16).rollout.blocks["default_policy"].columns["obs"] for runner in runners)
    assert not np.array_equal(first[0], second[0])
    for runner in runners:
        runner.close()


def test_a_class_of_ones_own_samples_in_a_run() -> None:
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, f"env_runners.env_runner_class={HERE}.MarkingRunner"]) as own:
        assert own.train()["marked"] == 1
        assert own.train()["marked"] == 2


class Deaf(SingleAgentEnvRunner):
    """Calls no hook of its listeners."""

    def __init__(self, *args: Any) -> None:
        *others, _ = args
        super().__init__(*others)


class Hearing(Callback):
    def on_episode_end(self, **kwargs: Any) -> None:
        """Hear of it."""


@pytest.mark.parametrize("name", ["Deaf", "MarkingRunner"])
def test_a_class_that_does_not_call_callbacks_is_told(name: str) -> None:
    overrides = [*QUICK, f"env_runners.env_runner_class={HERE}.{name}", f"callbacks=[{{_target_: {HERE}.Hearing}}]"]
    with Trainer.from_experiment("ppo_cartpole", overrides) as trainer:
        if name == "MarkingRunner":
            assert trainer.train()["marked"] == 1
            return
        with pytest.raises(RunFailure) as caught:
            trainer.train()
    text = " ".join(str(caught.value).split())
    for message in ("Deaf never calls the episode hooks", f"{HERE}.Hearing", "env_runner_class", "on_step"):
        assert message in text


class HalfARunner:
    """Samples, and that is all."""

    def __init__(self, *arguments: Any) -> None:
        self.close = lambda: None

    def sample(self, *arguments: Any) -> Sample: ...  # type: ignore[empty-body]

    def set_weights(self, weights: Any) -> None: ...


class Proxy(HalfARunner):
    """Has whatever it is asked for."""

    def __getattr__(self, name: str) -> Any: ...


class OfSeveral(MultiAgentEnvRunner):
    """Steps environments with several agents."""


MISSING = "it does not define evaluate, finish_recording, receive, address, pipelines_of, get_state, set_state"


@pytest.mark.parametrize(
    ("experiment", "path", "told"),
    [
        ("ppo_cartpole", f"{HERE}.MarkingRuner", "does not define MarkingRuner .* did you mean MarkingRunner$"),
        ("ppo_cartpole", "runner.experiment.trainer.Trainer", "is not an env runner: it does not define sample, "),
        ("ppo_cartpole", "runner.make_env_runner", "is not an env runner: it does not define evaluate, "),
        ("ppo_cartpole", f"{HERE}.HalfARunner", MISSING),
        ("ppo_cartpole", f"{HERE}.OfSeveral", "is a MultiAgentEnvRunner, but CartPole-v1 has a single agent"),
        ("ppo_multi_agent_cartpole", f"{HERE}.MarkingRunner", "is a SingleAgentEnvRunner, but .* has several agents"),
    ],
)
def test_a_class_that_is_no_env_runner_of_this_environment_is_refused(experiment: str, path: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(experiment, path)
    assert re.search(told, " ".join(str(caught.value).split()))


def test_a_class_whose_source_does_not_tell_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="Proxy is not a subclass"):
        Trainer(config_of("ppo_cartpole", f"{HERE}.Proxy"))
    config = config_of("ppo_multi_agent_cartpole", f"{HERE}.OfSeveral")
    single = replace(config, env=config_of("ppo_cartpole", f"{HERE}.MarkingRunner").env, multi_agent=MultiAgentConfig())
    with pytest.raises(ConfigError, match="does not support environments like CartPole-v1"):
        Trainer(single)


def config_of(experiment: str, path: str) -> ExperimentConfig:
    overrides = [f"+experiment={experiment}", f"env_runners.env_runner_class={path}", "evaluation=none"]
    return config_from(*overrides)
