"""Environments, callbacks and connectors that use torch, or change what holds in the whole process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner import Trainer
from runner.callbacks import Callback
from runner.modules.default_settings import default_settings
from runner.pipelines import Requirements
from runner.pipelines.connector import Connector
from tests.conftest import QUICK
from tests.support.configs import config_from

HERE = __name__
PPO = ("+experiment=ppo_cartpole", *QUICK)
_left_on = ExitStack()


class Trained:
    """A network that takes a step with each call."""

    def __init__(self) -> None:
        with default_settings():
            self.network = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.01)

    def __call__(self, obs: Any) -> None:
        self.optimizer.zero_grad()
        self.network(torch.as_tensor(np.array(obs, np.float32))).square().mean().backward()
        self.optimizer.step()


class TrainsInStep(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.train = Trained()

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.train(obs)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, *others = self.env.step(action)
        self.train(obs)
        return obs, *others


class TrainsInConnector(Connector):
    requires = Requirements(reads=("obs",))

    def __init__(self) -> None:
        self._train = Trained()

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self._train(batch["obs"])
        return batch


class TrainsOnOutputs(Connector):
    def __init__(self) -> None:
        self._network = torch.nn.Linear(2, 1)

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self._network(batch["action_dist_inputs"]).sum().backward()
        return batch


class TrainsInCallback(Callback):
    def __init__(self) -> None:
        self._train = Trained()

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self._train(episode.get_observations(-1))


def train(*overrides: str, num_iterations: int = 2) -> dict[str, Any]:
    with Trainer(config_from(*overrides, "tracking=none")) as trainer:
        results = [trainer.train() for _ in range(num_iterations)]
        trainer.evaluate()
    return results[-1]


@pytest.mark.parametrize(
    "override",
    [
        f"env.wrappers=[{{_target_: {HERE}.TrainsInStep}}]",
        "connectors.env_to_module=[{insert_after: AddObservationsFromEpisodesToBatch, "
        f"connector: {{_target_: {HERE}.TrainsInConnector}}}}]",
        f"connectors.module_to_env=[{{insert_before: GetActions, connector: {{_target_: {HERE}.TrainsOnOutputs}}}}]",
        f"callbacks=[{{_target_: {HERE}.TrainsInCallback}}]",
    ],
    ids=["environment", "env_to_module", "module_to_env", "callback"],
)
def test_networks_that_are_trained_in_an_env_runner(override: str) -> None:
    train(*PPO, override)


SETTINGS: dict[str, Callable[[], object]] = {
    "grad": lambda: torch.set_grad_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "inference": lambda: _left_on.enter_context(torch.inference_mode()),
    "numpy": lambda: np.seterr(all="raise"),
}


class Changes(gym.Wrapper[Any, Any, Any, Any]):
    """Changes a setting when it is made, in its resets, or in its steps."""

    before: ClassVar[Any] = None

    def __init__(self, env: gym.Env[Any, Any], setting: str, at: str) -> None:
        super().__init__(env)
        self._setting, self._at = setting, at
        self._change("make")

    def _change(self, at: str) -> None:
        if at == self._at:
            SETTINGS[self._setting]()

    def reset(self, **kwargs: Any) -> Any:
        self._change("reset")
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._change("step")
        return self.env.step(action)


@pytest.fixture
def _restored() -> Iterator[None]:
    errors = np.geterr()
    yield
    _left_on.close()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    np.seterr(**errors)


RUNS = {
    "ppo": PPO,
    "lstm": (*PPO, "module.use_lstm=true", "module.max_seq_len=5"),
    "dqn": (
        *("+experiment=dqn_cartpole", "algorithm.num_steps_sampled_before_learning_starts=16"),
        *("algorithm.min_sample_timesteps_per_iteration=40", "algorithm.train_batch_size_per_learner=8"),
        *("module.fcnet_hiddens=[8]", "evaluation.evaluation_interval=null"),
    ),
}


def losses_of(run: str, setting: str, at: str) -> dict[str, float]:
    wrapper = f"env.wrappers=[{{_target_: {HERE}.Changes, setting: {setting}, at: {at}}}]"
    result = train(*RUNS[run], wrapper)
    return {key: value for key, value in result.items() if key.startswith("learners/") and key.endswith("loss")}


@cache
def undisturbed_losses_of(run: str) -> dict[str, float]:
    return losses_of(run, "grad", "never")


CHANGES = [(setting, at) for setting in ("grad", "dtype", "inference", "numpy") for at in ("make", "reset", "step")]
CHANGES.append(("device", "make"))  # it is looked at when sampling begins


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("setting", "at"), CHANGES)
@pytest.mark.parametrize("run", RUNS)
def test_learners_do_not_depend_on_settings_of_the_process(run: str, setting: str, at: str) -> None:
    expected = undisturbed_losses_of(run)
    assert expected
    assert losses_of(run, setting, at) == expected
