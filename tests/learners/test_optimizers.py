"""Several optimisers in one update, going on from a state, and modules that do not fit a loss."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from runner.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from runner.config.algorithms import (
    AlgorithmConfig,
    BCConfig,
    CQLConfig,
    DiscreteCQLConfig,
    IQLConfig,
    MARWILConfig,
)
from runner.config.errors import ConfigError, RunFailure
from runner.learners.bc import BCLoss
from runner.learners.cql import CQLLoss
from runner.learners.cql_discrete import DiscreteCQLLoss
from runner.learners.iql import IQLLoss
from runner.learners.loss import Loss, find_misfit
from runner.learners.marwil import MARWILLoss
from runner.modules import ActorCriticModule, DoubleQModule, IQLModule, RLModule, SACModule
from runner.modules.flat_parameters import FlatParameters
from runner.testing.module_learner import ModuleLearner
from tests.learners.loss_contract import CONTINUOUS, DISCRETE
from tests.learners.offline_modules import CONFIG, OBSERVATIONS, make, recorded_rows
from tests.learners.toy_mdps import Corridor, Line, make_learner, mostly_away, mostly_left, record, train_batch


@dataclass(frozen=True)
class Case:
    """An algorithm with a module and an action space that fit."""

    loss: type[Loss]
    config: AlgorithmConfig
    module: type[RLModule]
    space: gym.Space[Any]

    def learner(self, seed: int = 0) -> ModuleLearner:
        """A new one."""
        loss = self.loss(self.config)  # type: ignore[call-arg]
        streams = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        module = make(self.module, self.space, seed)
        return ModuleLearner(module, loss, self.config, streams[0], loss_stream=streams[1])


CASES = {
    "bc": Case(BCLoss, BCConfig(lr=1e-2), ActorCriticModule, DISCRETE),
    "marwil": Case(
        MARWILLoss, MARWILConfig(moving_average_sqd_adv_norm_update_rate=0.1), ActorCriticModule, CONTINUOUS
    ),
    "iql": Case(IQLLoss, IQLConfig(tau=0.1, target_network_update_freq=70, actor_lr=1e-2), IQLModule, CONTINUOUS),
    "iql discrete": Case(IQLLoss, IQLConfig(value_lr=[[0, 1e-2], [10, 0.0]]), IQLModule, DISCRETE),
    "cql": Case(CQLLoss, CQLConfig(bc_iters=4, num_actions=2, lagrangian=True), SACModule, CONTINUOUS),
    "cql discrete": Case(DiscreteCQLLoss, DiscreteCQLConfig(tau=0.1), DoubleQModule, DISCRETE),
}


def assert_goes_on(case: Case, straight: ModuleLearner, folder: Path) -> dict[str, Any]:
    """Save a new learner after three of six updates, compare it with one that continues; return its last metrics."""
    batches = [recorded_rows(case.space, seed=seed) for seed in range(6)]
    for step in range(3):
        straight.update(batches[step], step)
    save_checkpoint(folder / "checkpoint", {"learner": straight.get_state()}, {})
    state, _ = load_checkpoint(folder / "checkpoint")
    resumed = case.learner(seed=5)
    resumed.set_state(state["learner"])
    for step in range(3, 6):
        metrics = dict(straight.update(batches[step], step).metrics)
        assert resumed.update(batches[step], step).metrics == metrics
        assert np.array_equal(straight.get_weights(), resumed.get_weights())
    return metrics


@pytest.mark.parametrize("name", CASES)
def test_going_on_from_a_checkpoint_is_going_on(name: str, tmp_path: Path) -> None:
    case, straight = CASES[name], CASES[name].learner()
    assert_goes_on(case, straight, tmp_path)
    assert len(straight.get_weights()) == sum(value.numel() for value in straight.module.state_dict().values())


def test_each_optimiser_is_torch_adam_with_its_own_learning_rate_and_clipping() -> None:
    config = IQLConfig(actor_lr=1e-2, critic_lr=3e-3, value_lr=3e-2, grad_clip=0.2, tau=0.2)
    learner = Case(IQLLoss, config, IQLModule, CONTINUOUS).learner()
    module, loss = make(IQLModule, CONTINUOUS), IQLLoss(config)
    groups = module.parameter_groups()
    rates = {"actor": 1e-2, "critic": 3e-3, "value": 3e-2}
    optimizers = {name: torch.optim.Adam(group, lr=rates[name]) for name, group in groups.items()}
    for step in range(10):
        batch = recorded_rows(CONTINUOUS, seed=step)
        metrics = learner.update(batch, 0).metrics
        module.zero_grad()
        loss(module, batch).total_loss.backward()
        for name, group in groups.items():
            norm = nn.utils.clip_grad_norm_(group, 0.2)
            assert metrics[f"gradients_{name}_optimizer_global_norm"] == pytest.approx(norm.item(), rel=1e-3)
            assert metrics[f"{name}_optimizer_learning_rate"] == rates[name]
            optimizers[name].step()
        module.update_targets(config.tau)
    for ours, theirs in zip(learner.module.state_dict().values(), module.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=3e-4)


def test_a_learning_rate_of_0_holds_its_group_alone() -> None:
    case = CASES["cql"]
    learner = replace(case, config=replace(case.config, critic_lr=0.0)).learner()  # type: ignore[arg-type]
    before = {name: [p.clone() for p in group] for name, group in learner.module.parameter_groups().items()}
    learner.update(recorded_rows(CONTINUOUS), 0)
    changed = {
        name: not all(torch.equal(old, new) for old, new in zip(before[name], group, strict=True))
        for name, group in learner.module.parameter_groups().items()
    }
    assert changed == {"actor": True, "critic": False, "alpha": True}


def test_groups_lie_one_after_the_other_and_targets_behind_them() -> None:
    module = make(IQLModule, CONTINUOUS)
    groups = module.parameter_groups()
    expected = {name: torch.cat([p.detach().flatten() for p in group]) for name, group in groups.items()}
    targets = torch.cat([p.flatten() for p in module.target_critic.parameters()])
    flat = FlatParameters(module)
    for name, rows in flat.groups.items():
        assert torch.equal(flat.parameter.detach()[rows], expected[name])
    assert flat.groups["value"].stop == len(flat.parameter) == len(flat.gradient)
    assert np.array_equal(flat.to_numpy()[len(flat.parameter) :], targets.numpy())


def test_a_parameter_in_no_group_is_refused() -> None:
    class Forgetful(ActorCriticModule):
        def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
            return {"actor": list(self.encoder.parameters()), "value": list(self.vf.parameters())}

    module = Forgetful(OBSERVATIONS, DISCRETE, CONFIG)
    with pytest.raises(ValueError, match=r"one group of actor, value; not the case for vf_encoder\.layers.*pi\.layers"):
        FlatParameters(module)


def test_what_is_not_finite_names_all_learning_rates() -> None:
    learner, batch = CASES["iql"].learner(), recorded_rows(CONTINUOUS)
    batch["rewards"][3] = torch.nan
    with pytest.raises(RunFailure) as caught:
        learner.update(batch, 0)
    assert "algorithm.actor_lr or algorithm.critic_lr or algorithm.value_lr" in (caught.value.problem.fix or "")


# -- what a loss needs of a module -------------------------------------------------------------------------------------

ENVS = {"Corridor": Corridor, "Line": Line}


@pytest.mark.parametrize(
    ("overrides", "env", "expected"),
    [
        (
            ["algorithm=iql", "module=mlp"],
            "Line",
            r"IQLLoss needs clamped, compute_q_values, .*, which ActorCriticModule does not provide.*module=iql",
        ),
        (["algorithm=cql", "module=iql"], "Line", r"CQLLoss needs squashed, .*IQLModule does not provide.*module=sac"),
        (
            ["algorithm=cql_discrete", "module=mlp"],
            "Corridor",
            r"DiscreteCQLLoss needs qf_preds, .*ActorCriticModule does not provide",
        ),
        (["algorithm=ppo", "module=sac"], "Line", r"PPOLoss needs vf_preds, which SACModule does not provide"),
        (
            ["algorithm=marwil", "module=double_q"],
            "Corridor",
            r"MARWILLoss needs vf_preds, .*DoubleQModule does not provide",
        ),
        (["algorithm=cql", "module=sac"], "Corridor", r"Discrete\(2\).*a bounded float Box"),
        (
            ["algorithm=cql_discrete", "module=double_q"],
            "Line",
            r"DoubleQModule computes a Q value for each action.*Discrete",
        ),
        (
            ["algorithm=cql_discrete", "module=double_q", "module.use_gru=true"],
            "Corridor",
            r"DiscreteCQLLoss reads single steps, but DoubleQModule is stateful.*module\.use_gru=false",
        ),
        (
            ["algorithm=iql", "module=iql", "module.use_lstm=true"],
            "Line",
            r"IQLModule cannot be recurrent: module\.use_lstm",
        ),
        (["algorithm=iql", "module=iql", "module.vf_share_layers=true"], "Line", r"module\.vf_share_layers is true"),
        (
            ["algorithm=cql", "module=sac", "module.free_log_std=true"],
            "Line",
            r"free_log_std: SACModule does not support it",
        ),
        (
            [
                *("algorithm=cql", "module=sac"),
                "algorithm.learner_pipeline=[{discard: earlier_edits}, {remove: AddColumnsFromEpisodesToTrainBatch}]",
            ],
            "Line",
            r"CQLLoss reads .*new_obs, terminateds, which no connector of the learner pipeline writes",
        ),
    ],
)
def test_a_module_that_does_not_fit_is_refused(overrides: list[str], env: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_learner(*overrides, env=ENVS[env])
    assert re.search(expected, " ".join(str(caught.value).split()))


def test_other_groups_than_those_of_the_optimisers_are_refused() -> None:
    class OneGroup(IQLModule):
        def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
            return RLModule.parameter_groups(self)

    problem = find_misfit(IQLLoss, OneGroup(OBSERVATIONS, DISCRETE, CONFIG), IQLConfig())
    assert problem is not None
    assert problem.got == "default"
    assert problem.fix == "use module=iql, or a custom class with parameter groups actor, critic, value"


def test_an_algorithm_with_one_optimiser_trains_any_groups() -> None:
    """PPO goes on with a module that IQL has trained."""
    learner, _ = make_learner("algorithm=ppo", "module=iql", env=Corridor)
    assert isinstance(learner.module, IQLModule)


# -- what reaches a learner --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "module"), [("iql", "iql"), ("cql_discrete", "double_q")])
def test_next_observations_and_ends(name: str, module: str) -> None:
    learner, pipeline = make_learner(f"algorithm={name}", f"module={module}", env=Corridor)
    block = record(Corridor(), mostly_left, 80)
    batch = train_batch(learner, pipeline, block)
    assert block.is_terminated.any()
    assert block.is_truncated.any()
    start = 0
    for chunk, episode in enumerate(block):
        rows = slice(start, start + len(episode))
        np.testing.assert_array_equal(batch["obs"][rows], episode.get_observations()[:-1])
        np.testing.assert_array_equal(batch["new_obs"][rows], episode.get_observations()[1:])
        expected = np.zeros(len(episode), np.bool_)
        expected[-1] = block.is_terminated[chunk]
        np.testing.assert_array_equal(batch["terminateds"][rows], expected)
        start = rows.stop
    metrics = learner.update(batch, 0).metrics
    assert metrics["num_minibatch_updates"] == 1


@pytest.mark.parametrize(
    ("overrides", "env"),
    [(["algorithm=cql", "module=sac"], Line), (["algorithm=marwil"], Corridor), (["algorithm=bc"], Line)],
    ids=["cql", "marwil", "bc"],
)
def test_whole_pipelines(overrides: list[str], env: type[gym.Env[Any, Any]]) -> None:
    learner, pipeline = make_learner(*overrides, "module.fcnet_hiddens=[8]", env=env)
    block = record(env(), mostly_left if env is Corridor else mostly_away, 3)
    metrics = learner.update(train_batch(learner, pipeline, block), 0).metrics
    assert metrics["num_minibatch_updates"] == 1


def test_the_seed_of_the_run_gives_the_noise() -> None:
    streams = []
    for seed in (0, 0, 1):
        learner, _ = make_learner("algorithm=cql", "module=sac", f"seed={seed}", env=Line)
        streams.append(learner.trained.get_state()["loss_stream"]["state"]["state"])
    assert streams[0] == streams[1] != streams[2]
