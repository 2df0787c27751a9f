"""Distributions of returns and noisy layers in DQN: its loss row by row, resumed runs, small environments learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner import Trainer
from runner.config.algorithms import DQNConfig
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.learners.dqn import DQNLoss
from runner.learners.loss import with_noise
from runner.modules import DoubleQModule
from tests.learners import offline_modules
from tests.learners.loss_contract import DISCRETE, LossContract, make_batch
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
CATEGORICAL = ModuleConfig(fcnet_hiddens=[8], q_distribution="categorical", num_atoms=7, v_min=-3.0, v_max=3.0)
QUANTILE = ModuleConfig(fcnet_hiddens=[8], q_distribution="quantile", num_atoms=5)
IMPLICIT = ModuleConfig(fcnet_hiddens=[8], q_distribution="implicit_quantile", num_atoms=5, dueling=True)
NOISY = ModuleConfig(fcnet_hiddens=[8], noisy=True)
RAINBOW = replace(CATEGORICAL, noisy=True, dueling=True, head_fcnet_hiddens=[6])


def make(config: ModuleConfig) -> Any:
    return offline_modules.make(DoubleQModule, DISCRETE, config=config)


class TestCategoricalContract(LossContract):
    loss_class = DQNLoss
    config = DQNConfig()
    module_class = DoubleQModule
    module_config = CATEGORICAL
    action_spaces = ("discrete",)


class TestQuantileContract(TestCategoricalContract):
    module_config = QUANTILE


class TestImplicitQuantileContract(TestCategoricalContract):
    module_config = IMPLICIT


class TestNoisyContract(TestCategoricalContract):
    module_config = NOISY


class TestNoisyContractOfOneNetwork(TestCategoricalContract):
    config = DQNConfig(double_q=False)
    module_config = NOISY


class TestRainbowContract(TestCategoricalContract):
    module_config = RAINBOW


# -- the loss ----------------------------------------------------------------------------------------------------------


def rows_to_learn_from() -> dict[str, Tensor]:
    batch = make_batch(make(NOISY), num_rows=30)
    terminateds = torch.from_numpy(np.random.default_rng(1).random(30) < 0.3)
    return {name: batch[name] for name in DQNLoss.reads} | {"terminateds": terminateds}


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("module_config", [CATEGORICAL, QUANTILE, RAINBOW], ids=["categorical", "quantile", "rainbow"])
def test_loss_row_by_row(module_config: ModuleConfig, double_q: bool) -> None:
    """The action is chosen by means, of the network or of the target; each pass has noise of its own."""
    config, module, batch = DQNConfig(gamma=0.8, double_q=double_q), make(module_config), rows_to_learn_from()
    loss, stream = DQNLoss(config), np.random.default_rng(5)
    loss.use_stream(np.random.default_rng(5))
    names = ("noise", "next_noise", "target_noise") if double_q else ("noise", "target_noise")
    drawn = [torch.from_numpy(module.draw_noise(stream, ())) for _ in names] if module_config.noisy else []
    noise = dict(zip(names, drawn, strict=False))
    metrics = loss(module, with_noise(batch, loss, module))
    assert module.value_distribution is not None

    def inputs(forward: Any, obs: str, row: int, name: str) -> tuple[Tensor, Tensor]:
        columns = {"obs": batch[obs][row : row + 1]}
        if name in noise:
            columns["noise"] = noise[name][None]  # as if it was the row's own
        outputs = forward(columns)
        return outputs["qf_preds"][0], outputs["qf_dist_inputs"][0]

    errors = []
    for row in range(30):
        _, of_state = inputs(module.forward_train, "obs", row, "noise")
        target_q, of_target = inputs(module.forward_target, "new_obs", row, "target_noise")
        judge = inputs(module.forward_train, "new_obs", row, "next_noise")[0] if double_q else target_q
        discount = 0.0 if batch["terminateds"][row] else config.gamma ** int(batch["n_step"][row])
        error = module.value_distribution.td_loss(
            of_state[batch["actions"][row]][None],
            of_target[judge.argmax()][None],
            batch["rewards"][row][None],
            torch.tensor([discount]),
        )
        errors.append(error.item())
    np.testing.assert_allclose(metrics.td_error.numpy(), errors, rtol=1e-4, atol=1e-5)
    expected = np.mean(batch["weights"].numpy() * errors)
    assert metrics.total_loss.item() == pytest.approx(expected, rel=1e-4)


def test_noise_of_passes_differs() -> None:
    module, loss = make(RAINBOW), DQNLoss(DQNConfig())
    assert DQNLoss(DQNConfig()).get_state() == {}
    batch = rows_to_learn_from()
    drawn = [loss.draw_noise(module, batch) for _ in range(2)]
    passes = torch.stack([noise for one in drawn for noise in one.values()])
    assert passes.shape == (2 * 3, module.num_noise)
    assert len(passes.unique(dim=0)) == len(passes)


@pytest.mark.parametrize("config", [CATEGORICAL, QUANTILE], ids=["categorical", "quantile"])
def test_a_distribution_of_each_action_with_a_mask_and_memory(config: ModuleConfig) -> None:
    space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "seen": VECTOR})
    mask = torch.tensor([[1, 0, 1]] * 4, dtype=torch.int8)
    for dueling in (False, True):
        module = DoubleQModule(space, DISCRETE, replace(config, action_mask_key="mask", dueling=dueling))
        outputs = module.forward_train({"obs": {"mask": mask, "seen": torch.randn(4, 3)}})
        assert outputs["qf_dist_inputs"].shape == (4, 3, config.num_atoms)
        means = module.value_distribution.mean(outputs["qf_dist_inputs"])  # type: ignore[union-attr]
        assert torch.equal(outputs["qf_preds"][:, ::2], means[:, ::2])
        assert bool((outputs["qf_preds"][:, 1] < -1e8).all())
    module = DoubleQModule(VECTOR, DISCRETE, replace(config, use_gru=True, lstm_cell_size=4))
    states = {name: leaf.expand(2, -1) for name, leaf in module.get_initial_state().items()}
    outputs = module.forward_train({"obs": torch.randn(2, 5, 3), "state_in": states})
    assert outputs["qf_preds"].shape == (2, 5, 3)
    assert outputs["qf_dist_inputs"].shape == (2, 5, 3, config.num_atoms)


# -- runs --------------------------------------------------------------------------------------------------------------

QUICK = (
    *("module.fcnet_hiddens=[8]", "module.head_fcnet_hiddens=[4]", "module.num_atoms=5"),
    *("module.v_min=0", "module.v_max=20", "evaluation=none", "tracking=none", "stop.training_iteration=9"),
    *("algorithm.num_steps_sampled_before_learning_starts=40", "algorithm.min_sample_timesteps_per_iteration=50"),
    *("env_runners.num_envs_per_env_runner=3", "env_runners.rollout_fragment_length=5"),
    *("algorithm.train_batch_size_per_learner=8", "checkpoint.metric=training_iteration"),
)


def trainer_of(*overrides: str) -> Trainer:
    return Trainer(config_from(*overrides))


def rainbow_of(*overrides: str) -> Trainer:
    return trainer_of("algorithm=rainbow", "module=rainbow", *QUICK, *overrides)


RUNS = {
    "one agent": ("env=cartpole",),
    "two agents": ("env=multi_agent_cartpole", "multi_agent.agent_to_module={agent_0: p0, agent_1: p1}"),
    "quantiles": ("env=cartpole", "module.q_distribution=quantile", "module.v_min=null", "module.v_max=null"),
    "memory": (
        *("env=cartpole", "module.noisy=false", "algorithm.n_step=1"),
        *("module.use_gru=true", "module.lstm_cell_size=4"),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    expected = assert_resumes_exactly(partial(rainbow_of, *RUNS[name]), tmp_path, num_after=3)
    assert any(key.endswith("td_error_mean") for key in expected[-1])


def noise_of(trainer: Trainer, explore: bool) -> Any:
    """The noise of the next forward pass of the only env runner."""
    trainer.context.env_runners.sample(1, explore)
    [caller] = trainer.context.env_runners.actors.callers
    return caller.held._to_module.get("noise")


def test_noise_is_for_exploring() -> None:
    with rainbow_of("env=cartpole") as trainer:
        first, second = noise_of(trainer, True), noise_of(trainer, True)
        assert first.shape == second.shape == (3, trainer.learners.modules["default_policy"].num_noise)
        assert len(torch.cat((first, second)).unique(dim=0)) == 6
        assert noise_of(trainer, False) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("module.v_min=20",), "v_min: a categorical distribution needs module.v_min < module.v_max"),
        (("module.v_max=null",), "v_min: a categorical distribution needs module.v_min < module.v_max"),
        (("module.num_atoms=1",), "num_atoms: a categorical distribution needs several"),
        (("module.q_distribution=none",), "num_atoms: module.q_distribution=none has one number per action"),
        (("module.q_distribution=quantile",), "v_max: it has no effect with module.q_distribution=quantile"),
        (
            ("algorithm.td_error_loss_fn=mse",),
            "q_distribution: algorithm.td_error_loss_fn=mse does not work with distributions",
        ),
        (
            ("module.q_distribution=implicit_quantile", "module.v_min=null", "module.v_max=null"),
            "noisy: module.q_distribution=implicit_quantile does not support it",
        ),
        (("module.initial_log_std=-2",), "initial_log_std: it has no effect with module.free_log_std=false"),
        (("algorithm=ppo",), "q_distribution: PPOLoss does not support it"),
        (("algorithm=cql_discrete", "offline.input_=data"), "noisy: DiscreteCQLLoss does not support it"),
        (("multi_agent.modules={p0: {v_max: -1}}",), r"multi_agent.modules.p0.v_min: a categorical"),
    ],
)
def test_options_that_do_not_fit(overrides: Sequence[str], message: str) -> None:
    env = "env=multi_agent_cartpole" if "multi_agent" in overrides[0] else "env=cartpole"
    mapping = ("multi_agent.agent_to_module={agent_0: p0, agent_1: p1}",) if "multi_agent" in overrides[0] else ()
    with pytest.raises(ConfigError, match=message):
        rainbow_of(env, *mapping, *overrides)


@pytest.mark.parametrize("double_q", [True, False])
def test_loss_of_implicit_quantiles_row_by_row(double_q: bool) -> None:
    """Each row has separate fractions in each pass; the action is chosen by means over them."""
    config, module, batch = DQNConfig(gamma=0.8, double_q=double_q), make(IMPLICIT), rows_to_learn_from()
    loss = DQNLoss(config)
    loss.use_stream(np.random.default_rng(5))
    columns = with_noise(batch, loss, module)
    assert columns["noise"].shape == columns["target_noise"].shape == (30, 5)
    assert not torch.equal(columns["noise"][0], columns["noise"][1])
    metrics = loss(module, columns)

    def quantiles(forward: Any, obs: str, row: int, name: str) -> Tensor:
        columns_of_row = {"obs": batch[obs][row : row + 1], "noise": columns[name][row : row + 1]}
        found: Tensor = forward(columns_of_row)["qf_dist_inputs"][0]
        return found

    for row in range(30):
        theta = quantiles(module.forward_train, "obs", row, "noise")[batch["actions"][row]]
        target = quantiles(module.forward_target, "new_obs", row, "target_noise")
        judge = quantiles(module.forward_train, "new_obs", row, "next_noise") if double_q else target
        discount = 0.0 if batch["terminateds"][row] else config.gamma ** int(batch["n_step"][row])
        returns = batch["rewards"][row] + discount * target[judge.mean(-1).argmax()]
        error = 0.0
        for tau, value in zip(columns["noise"][row].tolist(), theta.tolist(), strict=True):
            u = returns - value
            huber = torch.where(u.abs() <= 1, 0.5 * u.square(), u.abs() - 0.5)
            error += ((tau - (u < 0).float()).abs() * huber).mean().item()
        assert metrics.td_error[row].item() == pytest.approx(error, rel=1e-4, abs=1e-5)


def test_recurrent_implicit_quantiles_resume_exactly(tmp_path: Path) -> None:
    overrides = ["module.q_distribution=implicit_quantile", "module.num_atoms=4", "tracking=none", "evaluation=none"]
    overrides += ["module.fcnet_hiddens=[8]", "module.lstm_cell_size=8", "algorithm.train_batch_size_per_learner=40"]
    overrides += ["algorithm.num_steps_sampled_before_learning_starts=100", "algorithm.training_intensity=10"]
    overrides += ["algorithm.min_sample_timesteps_per_iteration=160", "algorithm.value_rescaling=false"]
    make_trainer = partial(Trainer.from_experiment, "dqn_stateless_cartpole_lstm", overrides)
    assert_resumes_exactly(make_trainer, tmp_path, cuts=[1])


# -- learned in seconds ------------------------------------------------------------------------------------------------


class Bandit(gym.Env[Any, Any]):
    """One step: action 0 pays 0 or 20, the latter in three of four cases; action 1 always 10."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 10.0 if action == 1 else 20.0 * (self.np_random.random() < 0.75)
        return np.ones(1, np.float32), reward, True, False, {}


BANDIT = (
    *("algorithm=dqn", "module=double_q", f"env._target_={__name__}.Bandit", "evaluation=none", "tracking=none"),
    *("module.fcnet_hiddens=[8]", "algorithm.epsilon=1.0", "algorithm.grad_clip=null", "stop.training_iteration=99"),
    *("algorithm.lr=[[0,5e-2],[4000,1e-3]]", "algorithm.replay_buffers.replay._target_=runner.replay.ReplayBuffer"),
    *("env_runners.num_envs_per_env_runner=8", "env_runners.rollout_fragment_length=4"),
    *("algorithm.train_batch_size_per_learner=128", "algorithm.training_intensity=32"),
)


def learned(*overrides: str) -> tuple[Tensor, Tensor]:
    """Inputs (A, N) of the distributions after 4,000 steps, and Q (A,)."""
    with trainer_of(*BANDIT, *overrides) as trainer:
        for _ in range(4):
            trainer.train()
        with torch.no_grad():
            outputs = trainer.learners.modules["default_policy"].forward_train({"obs": torch.ones(1, 1)})
    return outputs["qf_dist_inputs"][0], outputs["qf_preds"][0]


def test_the_probabilities_of_a_bandit_are_learned() -> None:
    bounds = ("module.num_atoms=5", "module.v_min=0", "module.v_max=20")
    logits, q = learned("module.q_distribution=categorical", *bounds)
    expected = torch.tensor([[0.25, 0, 0, 0, 0.75], [0, 0, 1, 0, 0]])
    torch.testing.assert_close(logits.softmax(-1), expected, atol=0.06, rtol=0)
    torch.testing.assert_close(q, torch.tensor([15.0, 10.0]), atol=1.2, rtol=0)


def test_the_quantiles_of_a_bandit_are_learned() -> None:
    """At 1/12, 3/12, ... of the returns; Huber's loss moves them by less than its width, 1."""
    quantiles, _ = learned("module.q_distribution=quantile", "module.num_atoms=6")
    expected = torch.tensor([0.0, float("nan"), 20, 20, 20, 20])  # at 3/12 both are quantiles
    is_one = ~expected.isnan()
    torch.testing.assert_close(quantiles[0][is_one], expected[is_one], atol=1.0, rtol=0)
    torch.testing.assert_close(quantiles[1], torch.full((6,), 10.0), atol=0.5, rtol=0)


def test_noise_alone_explores_enough_to_learn_an_identity_environment() -> None:
    overrides = (
        *(
            "env._target_=tests.support.environments.MatchDiscrete",
            "module.v_max=3",
            "module.v_min=0",
            "algorithm.gamma=0.5",
        ),
        *("algorithm.lr=5e-3", "env_runners.metrics_num_episodes_for_smoothing=50", "module.num_atoms=21"),
        *("algorithm.num_steps_sampled_before_learning_starts=50", "algorithm.min_sample_timesteps_per_iteration=1000"),
        *("algorithm.train_batch_size_per_learner=32", "module.fcnet_hiddens=[16]", "algorithm.n_step=1"),
    )
    with rainbow_of(*overrides, "algorithm.training_intensity=8") as trainer:
        for _ in range(4):
            result = trainer.train()
    share = (result["env_runners/episode_return_mean"] or 0) / (result["env_runners/episode_len_mean"] or 1)
    assert share > 0.9
