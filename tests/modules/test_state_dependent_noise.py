"""gSDE: the noise and its standard deviation, how long it is kept, and runs that resume exactly."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner import Trainer
from runner.config.algorithms import PPOConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.ppo import PPOLoss
from runner.modules import ActorCriticModule, SACModule
from runner.modules.state_dependent_noise import StateDependentNoise
from runner.pipelines.noise_connectors import AddNoiseToBatch
from runner.rows.agent_rows import AgentRows
from tests.conftest import QUICK
from tests.learners.loss_contract import LossContract
from tests.support.resuming import assert_resumes_exactly

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CONFIG = ModuleConfig(fcnet_hiddens=[8], use_sde=True, initial_log_std=-1.0)


def _noise_of(num_features: int = 5, num_actions: int = 2) -> StateDependentNoise:
    exploration = StateDependentNoise(num_features, num_actions, -1.0)
    with torch.no_grad():
        exploration.log_std.add_(torch.randn(num_features, num_actions))
    return exploration


def test_noise_is_linear_in_the_features() -> None:
    exploration, features, drawn = _noise_of(), torch.randn(7, 5), torch.randn(7, 10)
    in_units = exploration.forward(features, drawn)
    for row in range(7):
        weights = exploration.log_std.exp() * drawn[row].reshape(5, 2)
        std = ((exploration.log_std.exp() * features[row, :, None]).square().sum(0) + 1e-6).sqrt()
        torch.testing.assert_close(exploration.log_std_of(features)[row], std.log())
        torch.testing.assert_close(in_units[row], features[row] @ weights / std)
    in_time = exploration.forward(features.unsqueeze(1), drawn)
    torch.testing.assert_close(in_time, in_units.unsqueeze(1))


def test_noise_has_the_standard_deviation_of_the_distribution() -> None:
    features = torch.randn(1, 5).expand(20_000, -1)
    in_units = _noise_of().forward(features, torch.randn(20_000, 10))
    torch.testing.assert_close(in_units.std(0), torch.ones(2), atol=0.03, rtol=0)
    torch.testing.assert_close(in_units.mean(0), torch.zeros(2), atol=0.03, rtol=0)


def test_the_module_samples_with_it() -> None:
    module = ActorCriticModule(VECTOR, VECTOR, CONFIG)
    obs, drawn = torch.randn(4, 3), torch.randn(4, module.num_noise)
    outputs = module.forward_exploration({"obs": obs, "noise": drawn})
    actions = module.action_dist.sample(outputs["action_dist_inputs"], outputs["action_noise"])
    features = module.encoder.forward(obs)
    assert module.exploration is not None
    weights = module.exploration.log_std.exp() * drawn.reshape(4, 8, 3)
    mean = module.pi.forward(features)
    torch.testing.assert_close(actions, mean + torch.einsum("nf,nfa->na", features, weights))
    assert "action_noise" not in module.forward_exploration({"obs": obs})


class _Rows:
    max_rows = 2

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("sample_freq", [3, 100, 512])
def test_noise_is_kept_for_some_steps(sample_freq: int) -> None:
    """Also from one block of drawn noise to the next, and by a connector that continues from a state."""
    config = ModuleConfig(fcnet_hiddens=[8], use_sde=True, sde_sample_freq=sample_freq)
    module, connector, rows = ActorCriticModule(VECTOR, VECTOR, config), AddNoiseToBatch(), cast(Any, _Rows())
    stream, drawn = np.random.default_rng(0), []
    connector.use_stream(stream)
    for step in range(1, 1100):
        batch: dict[str, Any] = {}
        connector(rl_module=module, batch=batch, episodes=rows, explore=True)
        drawn.append(batch["noise"])
        if step % 70 == 0:
            state, connector = connector.get_state(), AddNoiseToBatch()
            connector.use_stream(stream)
            connector.set_state(state)
    changes = [not np.array_equal(first, second) for first, second in pairwise(drawn)]
    assert changes == [step % sample_freq == 0 for step in range(1, 1099)]
    assert not np.array_equal(drawn[0][0], drawn[0][1])


class _Agents(_Rows):
    max_rows = 4

    def __init__(self, slots: list[int]) -> None:
        self.slots = np.array(slots)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return AgentRows


def test_noise_belongs_to_an_agent() -> None:
    config = ModuleConfig(fcnet_hiddens=[8], use_sde=True, sde_sample_freq=8)
    module, connector, drawn = ActorCriticModule(VECTOR, VECTOR, config), AddNoiseToBatch(), []
    for slots in ([0, 1, 2], [2, 0], [3, 1]):
        batch: dict[str, Any] = {}
        agents: Any = _Agents(slots)
        connector(rl_module=module, batch=batch, episodes=agents, explore=True)
        drawn.append(batch["noise"])
    np.testing.assert_array_equal(drawn[1], drawn[0][[2, 0]])
    np.testing.assert_array_equal(drawn[2][1], drawn[0][1])


class TestPPOLossContract(LossContract):
    loss_class = PPOLoss
    config = PPOConfig(entropy_coeff=0.01)
    module_class = ActorCriticModule
    module_config = CONFIG
    action_spaces = ("continuous",)


@pytest.mark.parametrize("extra", [(), ("module.use_gru=true", "module.lstm_cell_size=8")], ids=["stateless", "gru"])
def test_a_run_resumes_exactly(extra: tuple[str, ...], tmp_path: Path) -> None:
    overrides = [*QUICK, "module.use_sde=true", "module.initial_log_std=-2", "module.fcnet_hiddens=[8]", *extra]
    overrides += ["algorithm.train_batch_size_per_learner=160"]
    assert_resumes_exactly(partial(Trainer.from_experiment, "ppo_pendulum", overrides), tmp_path, cuts=[1])


def test_options_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"use_sde: gSDE sets the standard deviation"):
        Trainer.from_experiment("ppo_pendulum", ["module.use_sde=true", "module.free_log_std=true"])
    with pytest.raises(ConfigError, match=r"module\.use_sde needs actions of a float Box"):
        Trainer.from_experiment("ppo_cartpole", ["module.use_sde=true"])
    for experiment, module in {"sac_pendulum": "SACModule", "dqn_cartpole": "DoubleQModule"}.items():
        with pytest.raises(ConfigError, match=rf"module\.use_sde: {module} does not support it"):
            Trainer.from_experiment(experiment, ["module.use_sde=true"])
    with pytest.raises(ValueError, match=r"SACModule: module\.use_sde is set"):
        SACModule(VECTOR, VECTOR, CONFIG)
