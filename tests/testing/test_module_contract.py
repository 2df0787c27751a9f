"""`check_module`: our modules keep the contract, and each rule names the module that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules import APPOModule, DiscreteSACModule, DoubleQModule, IQLModule, RLModule, SACModule, TD3Module
from runner.testing import BrokenContract, check_module
from tests.testing.changed_classes import changed

BOX = gym.spaces.Box(-5.0, 5.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
CONTINUOUS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
OURS = {
    "APPO": (APPOModule, CONTINUOUS, {"free_log_std": True}),
    "APPO-memory": (APPOModule, DISCRETE, {"use_lstm": True}),
    "SAC": (SACModule, CONTINUOUS, {}),
    "SAC-memory": (SACModule, CONTINUOUS, {"use_lstm": True}),
    "DroQ": (SACModule, CONTINUOUS, {"critic_dropout": 0.1}),
    "TD3": (TD3Module, CONTINUOUS, {}),
    "TD3-memory": (TD3Module, CONTINUOUS, {"use_gru": True}),
    "DQN": (DoubleQModule, DISCRETE, {}),
    "DQN-noisy": (DoubleQModule, DISCRETE, {"noisy": True}),
    "DQN-memory": (DoubleQModule, DISCRETE, {"use_lstm": True}),
    "SAC-discrete": (DiscreteSACModule, DISCRETE, {}),
    "IQL": (IQLModule, CONTINUOUS, {"vf_share_layers": False}),
    "SimBa": (SACModule, CONTINUOUS, {"architecture": "simba"}),
    "SimbaV2": (SACModule, CONTINUOUS, {"architecture": "simba_v2"}),
}


@pytest.mark.parametrize("name", OURS)
def test_our_modules(name: str) -> None:
    module_class, actions, options = OURS[name]
    check_module(lambda: module_class(BOX, actions, ModuleConfig(fcnet_hiddens=[8], lstm_cell_size=4, **options)))


class Own(RLModule):
    """As a user may write it; nothing is wrong with it."""

    def __init__(self) -> None:
        super().__init__(BOX, DISCRETE, ModuleConfig())
        self.net = nn.Linear(3, 4)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        out = self.net(batch["obs"])
        return {"action_dist_inputs": out[..., :3], "vf_preds": out[..., 3]}


class Remembers(Own):
    """Adds up what it has seen; nothing is wrong with it."""

    is_stateful = True
    inputs = ("obs", "state_in")
    outputs = ("action_dist_inputs", "state_out")

    def get_initial_state(self) -> dict[str, Any]:
        return {"sum": torch.zeros(3)}

    def sums(self, batch: Mapping[str, Any]) -> Tensor:
        return batch["state_in"]["sum"][:, None] + batch["obs"].cumsum(1)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return super().forward_train({"obs": self.sums(batch)})

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        sums = self.sums(batch)
        return {**super().forward_exploration(batch), "state_out": {"sum": sums[:, -1]}}


def returning(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a module with changed outputs."""
    return changed(Own, forward_train=lambda self, batch: change(Own.forward_train(self, batch)))


def seeing(change: Callable[[Tensor], Tensor]) -> Any:
    """Return a module that computes its outputs from changed observations."""
    return changed(Own, forward_train=lambda self, batch: Own.forward_train(self, {"obs": change(batch["obs"])}))


NamesNoTuple = changed(Own, outputs=["action_dist_inputs"])
ForgetsItsOutputs = changed(Own, train_outputs=("vf_preds",))
ActsWithMore = changed(Own, forward_exploration=Own.forward_train)
ValuesOtherwise = changed(Own, compute_values=lambda self, batch: 2 * Own.compute_values(self, batch))
LearnsTwice = changed(Own, parameter_groups=lambda self: {"policy": list(self.parameters()), "value": [self.net.bias]})
HasColumnsOfValues = returning(lambda outputs: outputs | {"vf_preds": outputs["vf_preds"][:, None]})
IsDouble = returning(lambda outputs: {name: output.double() for name, output in outputs.items()})
DividesByZero = returning(lambda outputs: outputs | {"vf_preds": outputs["vf_preds"] / 0})
LearnsNothing = returning(lambda outputs: {name: output.detach() for name, output in outputs.items()})
IgnoresObservations = seeing(lambda obs: 0 * obs)
NormalisesOverRows = seeing(lambda obs: obs - obs.mean(0))
DrawsFromTorch = seeing(lambda obs: obs + torch.randn(3))
WritesIntoObs = seeing(lambda obs: obs.clamp_(-1, 1))
ForgetsStateIn = changed(Remembers, inputs=("obs",))
HasNoMemory = changed(Remembers, is_stateful=False)
RemembersItsMemoryOnly = changed(
    Remembers, sums=lambda self, batch: batch["state_in"]["sum"][:, None] + 0 * batch["obs"]
)
BeginsInDouble = changed(Remembers, get_initial_state=lambda self: {"sum": torch.zeros(3, dtype=torch.float64)})


class IsTooWide(Own):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        out = self.net(batch["obs"])
        return {"action_dist_inputs": out, "vf_preds": out[..., 3]}


class HasNoValues(Own):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"action_dist_inputs": self.net(batch["obs"])[..., :3]}


class ComputesValues(HasNoValues):
    """Gives values by `compute_values` alone; nothing is wrong with it."""

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        return self.net(batch["obs"])[..., 3]


class ActsOtherwise(Own):
    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"action_dist_inputs": 2 * super().forward_exploration(batch)["action_dist_inputs"]}


class ValuesAllAlike(Own):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = super().forward_train(batch)
        return outputs | {"vf_preds": 0 * outputs["vf_preds"] + self.net.bias[3]}


class BeginsWithZeros(Own):
    """Nothing is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.net.weight)


class CountsCalls(Own):
    num_calls = 0

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        self.num_calls += 1
        return super().forward_train({"obs": batch["obs"] + self.num_calls})


class KeepsATensor(Own):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.randn(3)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return super().forward_train({"obs": batch["obs"] * self.scale})


class BeginsAtRandom(Own):
    def __init__(self) -> None:
        super().__init__()
        self.net.bias.data[:] = torch.from_numpy(np.random.default_rng().random(4, np.float32))


class LearnsItsTarget(Own):
    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Linear(3, 4)

    def target_networks(self) -> Any:
        return [(self.target, self.net)]


class NeverFollows(LearnsItsTarget):
    def __init__(self) -> None:
        super().__init__()
        self.target.requires_grad_(False)

    def update_targets(self, tau: float) -> None:
        pass


class DrawsAnyNoise(Own):
    num_noise = 2

    def draw_noise(self, stream: Any, leading: tuple[int, ...]) -> Any:
        return np.random.default_rng().random((*leading, 2), np.float32)


DrawsDoubleNoise = changed(DrawsAnyNoise, draw_noise=lambda self, stream, leading: stream.random((*leading, 2)))


class ActsElsewhere(Own):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.MultiDiscrete([3, 3])


class ForgetsAnAxis(Remembers):
    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = super().forward_exploration(batch)
        return outputs | {"state_out": {"sum": self.sums(batch)}}


class ValuesWithoutMemory(Remembers):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        values = self.net(batch["obs"].cumsum(1))[..., 3]
        return super().forward_train(batch) | {"vf_preds": values}


class ValuesSingleStepsOtherwise(Remembers):
    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        values = super().compute_values(batch)
        return values if values.shape[1] > 1 else values + 1


class ForgetsItsState(Remembers):
    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return super().forward_exploration(batch) | {"state_out": {"sum": batch["state_in"]["sum"] * 1}}


@pytest.mark.parametrize("module_class", [Own, Remembers, BeginsWithZeros, ComputesValues])
def test_modules_of_users(module_class: type[Own]) -> None:
    check_module(module_class)


class Predicts(RLModule):
    """An auxiliary module: a model of the next observation and the reward. Nothing is wrong with it."""

    train_outputs: tuple[str, ...] = ("predictions",)
    inputs: tuple[str, ...] = ("obs", "actions", "rewards")

    def __init__(self) -> None:
        super().__init__(BOX, CONTINUOUS, ModuleConfig())
        self.net = nn.Linear(6, 3)

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        inputs = torch.cat((batch["obs"], batch["actions"], batch["rewards"].unsqueeze(-1)), -1)
        return {"predictions": self.net(inputs)}


class PredictsAverages(Predicts):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"predictions": super().forward_train(batch)["predictions"].mean(0, keepdim=True)}


class PredictsBlindly(Predicts):
    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return super().forward_train(batch | {"obs": torch.zeros_like(batch["obs"])})


LacksPredictions = changed(Predicts, train_outputs=("predictions", "errors"))


def test_an_auxiliary_module_need_not_act() -> None:
    check_module(Predicts)


@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (PredictsAverages, "forward_train returns a different predictions for a row alone"),
        (PredictsBlindly, "forward_train returns the same predictions for different observations"),
        (LacksPredictions, "forward_train does not return errors"),
        (ForgetsItsOutputs, "`train_outputs` lacks action_dist_inputs, which forward_train returns"),
        (NamesNoTuple, "outputs is not a tuple of column names"),
        (ForgetsStateIn, "`inputs` must contain state_in if and only if the module is stateful"),
        (HasNoMemory, "get_initial_state must be empty if and only if the module is stateless"),
        (ActsWithMore, "forward_exploration does not return the columns in `outputs`"),
        (IsTooWide, "forward_train returns action_dist_inputs with a wrong shape or dtype"),
        (HasColumnsOfValues, "forward_train returns vf_preds with a wrong shape or dtype"),
        (IsDouble, "forward_inference returns action_dist_inputs with a wrong shape or dtype"),
        (DividesByZero, "vf_preds returned by forward_train is not finite"),
        (HasNoValues, "forward_train does not return vf_preds"),
        (LearnsNothing, "no output of forward_train has a gradient"),
        (ActsOtherwise, "forward_train and forward_exploration return different action_dist_inputs"),
        (ValuesOtherwise, "compute_values does not return the `vf_preds` of forward_train"),
        (IgnoresObservations, "forward_train returns the same action_dist_inputs for different observations"),
        (ValuesAllAlike, "forward_train returns the same vf_preds for different observations"),
        (RemembersItsMemoryOnly, "forward_train returns the same action_dist_inputs for different observations"),
        (NormalisesOverRows, "forward_inference returns a different action_dist_inputs for a row alone"),
        (DrawsFromTorch, "forward_train draws from the global random generators"),
        (CountsCalls, "forward_train returns different outputs for the same batch"),
        (WritesIntoObs, "forward_train writes into obs of its batch"),
        (KeepsATensor, "a module with the weights of another one returns different outputs"),
        (BeginsAtRandom, "two modules made with the same seed differ"),
        (LearnsTwice, "parameter net.bias is in 2 groups"),
        (LearnsItsTarget, "parameter weight of a target network is learned"),
        (NeverFollows, r"targets differ from their networks after update_targets\(1\)"),
        (DrawsAnyNoise, "draw_noise returns different noise for the same stream"),
        (DrawsDoubleNoise, "draw_noise returns a wrong shape or dtype"),
        (ActsElsewhere, "actions of action_dist do not have the shape of the action space"),
        (BeginsInDouble, "the initial state is not a float32 tensor"),
        (ForgetsAnAxis, "state_out does not match state_in"),
        (
            ValuesWithoutMemory,
            "forward_train over a sequence returns different vf_preds than forward_train step by step",
        ),
        (ValuesSingleStepsOtherwise, "over a sequence returns different vf_preds than compute_values step by step"),
        (
            ForgetsItsState,
            "forward_train over a sequence returns different action_dist_inputs than acting step by step",
        ),
    ],
)
def test_refuses(module_class: type[RLModule], message: str) -> None:
    with pytest.raises(BrokenContract, match=message) as caught:
        check_module(module_class)
    assert str(caught.value).startswith(f"{module_class.__name__} breaks ")
