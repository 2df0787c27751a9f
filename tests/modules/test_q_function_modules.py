"""Policies and Q functions that read one memory: what they see of sequences, and where gradients go."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from runner.config.algorithms import DiscreteSACConfig, SACConfig, TD3Config, TQCConfig
from runner.config.schemas import ModuleConfig
from runner.learners.sac import SACLoss
from runner.learners.sac_discrete import DiscreteSACLoss
from runner.learners.td3 import TD3Loss
from runner.learners.tqc import TQCLoss
from runner.modules import DiscreteSACModule, SACModule, TD3Module
from runner.modules.q_function_modules import RecallingModule

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
MASKED = gym.spaces.Dict(mask=gym.spaces.MultiBinary(3), obs=VECTOR)
ARM = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
THREE = gym.spaces.Discrete(3)
# Sequences of five and two steps; the first begins with a step of burn-in.
MASK = torch.tensor([[False, True, True, True, True], [True, True, False, False, False]])
CASES = {
    "sac": (SACModule, ARM, SACLoss(SACConfig())),
    "tqc": (SACModule, ARM, TQCLoss(TQCConfig(top_quantiles_to_drop_per_net=0))),
    "td3": (TD3Module, ARM, TD3Loss(TD3Config(policy_delay=1))),
    "sac_discrete": (DiscreteSACModule, THREE, DiscreteSACLoss(DiscreteSACConfig())),
}


def make(kind: type[RecallingModule], space: gym.Space[Any], memory: str = "use_lstm", **options: Any) -> Any:
    observations = MASKED if "action_mask_key" in options else VECTOR
    config = ModuleConfig(fcnet_hiddens=[6], lstm_cell_size=5, **{memory: True}, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = kind(observations, space, config)
        with torch.no_grad():  # the targets are other networks
            for target, _ in module.target_networks():
                for parameter in target.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def sequences(module: Any, actions: Tensor | None = None) -> dict[str, Any]:
    stream = torch.Generator().manual_seed(1)
    obs, new_obs = (torch.randn((2, 5, 3), generator=stream) for _ in range(2))
    states = [{name: torch.randn((2, 5), generator=stream) for name in module.get_initial_state()} for _ in range(2)]
    num_rows = int(MASK.sum())
    return {
        "obs": obs,
        "new_obs": new_obs,
        "state_in": states[0],
        "new_state_in": states[1],
        "loss_mask": MASK,
        "actions": torch.rand((num_rows, 2), generator=stream) if actions is None else actions,
        "rewards": torch.randn(num_rows, generator=stream),
        "weights": torch.ones(num_rows),
        "terminateds": torch.zeros(num_rows, dtype=torch.bool),
        "n_step": torch.ones(num_rows, dtype=torch.int64),
    }


def step_by_step(recall: Any, obs: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Features (V, H) of the env steps, from the encoder and the cell, one step of one sequence at a time."""
    found = []
    for number in range(2):
        now = {name: leaf[number : number + 1] for name, leaf in state.items()}
        for step in range(5):
            now = recall.memory._step(recall.encoder.forward(obs[number, step : step + 1]), now)
            if MASK[number, step]:
                found.append(now["h"][0])
    return torch.stack(found)


@pytest.mark.parametrize("memory", ["use_lstm", "use_gru"])
def test_env_steps_are_seen_as_the_memory_recalls_them(memory: str) -> None:
    module = make(SACModule, ARM, memory)
    batch = sequences(module)
    seen = module.seen(batch)
    expected = step_by_step(module.recall, batch["obs"], batch["state_in"])
    torch.testing.assert_close(seen.obs, expected)
    for recall, found in ((module.recall, seen.new_obs), (module.target_recall, seen.target_obs)):
        torch.testing.assert_close(found, step_by_step(recall, batch["new_obs"], batch["new_state_in"]))
        assert not found.requires_grad
    theta = module.outputs_at_steps(batch)["action_dist_inputs"]
    torch.testing.assert_close(theta, module.dist_inputs(seen.obs))


def test_acting_goes_on_from_the_state_before() -> None:
    module = make(TD3Module, ARM)
    obs, state = torch.randn(2, 4, 3), {name: torch.zeros(2, 5) for name in ("h", "c")}
    whole = module.forward_train({"obs": obs, "state_in": state})["action_dist_inputs"]
    for step in range(4):
        outputs = module.forward_exploration({"obs": obs[:, step : step + 1], "state_in": state})
        state = outputs["state_out"]
        torch.testing.assert_close(outputs["action_dist_inputs"][:, 0], whole[:, step])


def test_masks_are_seen_beside_the_features() -> None:
    module = make(DiscreteSACModule, THREE, action_mask_key="mask")
    batch = sequences(module, torch.zeros(int(MASK.sum()), dtype=torch.int64))
    masks = torch.ones(2, 5, 3, dtype=torch.int8)
    masks[..., 1] = 0
    batch |= {"obs": {"obs": batch["obs"], "mask": masks}, "new_obs": {"obs": batch["new_obs"], "mask": masks}}
    logits = module.dist_inputs(module.seen(batch).obs)
    assert logits.shape == (int(MASK.sum()), 3)
    assert (logits[:, 1] < -1e6).all()
    assert (logits[:, [0, 2]] > -1e6).all()


@pytest.mark.parametrize("name", CASES)
def test_the_memory_learns_with_the_q_functions_alone(name: str) -> None:
    kind, space, loss = CASES[name]
    options = {"q_distribution": "quantile", "num_atoms": 3} if name == "tqc" else {}
    module = make(kind, space, **options)
    groups = module.parameter_groups()
    recall = {id(parameter) for parameter in module.recall_parameters()}
    assert recall <= {id(parameter) for parameter in groups["critic"]}
    learned = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(learned) == sorted(id(one) for one in module.parameters() if one.requires_grad)

    loss.use_stream(np.random.default_rng(0))
    actions = torch.zeros(int(MASK.sum()), dtype=torch.int64) if space is THREE else None
    batch = sequences(module, actions)
    metrics = loss(module, batch | loss.draw_noise(module, batch))

    def gradients(of: Tensor) -> dict[int, float]:
        parameters = [one for one in module.parameters() if one.requires_grad]
        found = torch.autograd.grad(of, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(parameters, found, strict=True)
        return {id(one): 0.0 if gradient is None else float(gradient.abs().sum()) for one, gradient in pairs}

    of_critic, of_policy = gradients(metrics.qf_loss), gradients(metrics.policy_loss)
    assert all(of_critic[one] > 0 for one in recall)
    assert all(of_policy[one] == 0 for one in recall)
    assert any(of_policy[id(one)] > 0 for one in groups["actor"])


def test_without_memory_observations_are_seen_themselves() -> None:
    module: Any = SACModule(VECTOR, ARM, ModuleConfig(fcnet_hiddens=[6]))
    obs, new_obs = torch.randn(4, 3), torch.randn(4, 3)
    seen = module.seen({"obs": obs, "new_obs": new_obs})
    assert seen.obs is obs
    assert seen.new_obs is seen.target_obs is new_obs
    assert module.recall_parameters() == []


def test_images_are_encoded_once() -> None:
    """The filters are the memory's: policy and Q functions read its features."""
    images = gym.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    module = SACModule(images, ARM, ModuleConfig(fcnet_hiddens=[6], conv_filters=[[4, 4, 2]], use_gru=True))
    obs = torch.zeros((2, 3, 10, 10, 1), dtype=torch.uint8)
    outputs = module.forward_train({"obs": obs, "state_in": {"h": torch.zeros(2, 256)}})
    assert outputs["action_dist_inputs"].shape == (2, 3, 4)


def test_a_density_needs_bounds_that_differ() -> None:
    fixed = gym.spaces.Box(np.array([-1.0, 0.5], np.float32), np.array([1.0, 0.5], np.float32))
    for space in (fixed, gym.spaces.Dict(arm=ARM, fixed=fixed)):
        with pytest.raises(TypeError, match=r"SACModule learns densities of actions, but bounds of .* are equal"):
            make(SACModule, space)
    outputs = make(TD3Module, fixed).squashed.mode(torch.zeros(1, 4))
    assert outputs.tolist() == [[0.0, 0.5]]
