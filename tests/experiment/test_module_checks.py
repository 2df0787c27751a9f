"""A module of the user's that breaks what runners and losses rely on is refused when it is made, with its line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from runner.config.algorithms import A2CMetrics
from runner.config.errors import ConfigError
from runner.config.schemas import ModuleConfig
from runner.experiment.rehearsal import rehearse
from runner.learners.loss import Loss
from runner.module_building import build_modules
from runner.module_building.module_checks import ModuleCheck
from runner.modules import RLModule
from runner.pipelines import LearnerConnector, MonteCarloReturns, Requirements
from tests.support.configs import config_from

HERE = "tests.experiment.test_module_checks"
CARTPOLE = "+experiment=ppo_cartpole"


class Good(RLModule):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pi, self.vf = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward_train(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.pi(batch["obs"]), "vf_preds": self.vf(batch["obs"]).squeeze(-1)}


def training_with(make: Callable[[Any, Any], Any]) -> type[RLModule]:
    """Return a module whose `forward_train` returns something else, made from its two outputs."""

    class Altered(Good):
        def forward_exploration(self, batch: Any) -> Any:
            return {"action_dist_inputs": self.pi(batch["obs"])}

        def forward_train(self, batch: Any) -> Any:
            return make(*super().forward_train(batch).values())

    return Altered


def acting_with(make: Callable[[Any], Any]) -> type[RLModule]:
    """Return a module whose `forward_exploration` returns something else, made from `action_dist_inputs`."""

    class Altered(Good):
        def forward_exploration(self, batch: Any) -> Any:
            return make(self.pi(batch["obs"]))

    return Altered


NoOutput = acting_with(lambda _: {})
MisspeltOutput = acting_with(lambda inputs: {"action_dist_input": inputs})
NoneActed = acting_with(lambda _: None)
TupleActed = acting_with(lambda inputs: (inputs, None))
TooWide = acting_with(lambda inputs: {"action_dist_inputs": torch.cat([inputs, inputs], -1)})
OtherRows = acting_with(lambda inputs: {"action_dist_inputs": inputs[:3]})
NoRows = acting_with(lambda inputs: {"action_dist_inputs": inputs.mean(0)})
DoublesActed = acting_with(lambda inputs: {"action_dist_inputs": inputs.double()})
IntegersActed = acting_with(lambda inputs: {"action_dist_inputs": inputs.long()})
ArrayActed = acting_with(lambda inputs: {"action_dist_inputs": inputs.numpy()})
NoValues = training_with(lambda inputs, _: {"action_dist_inputs": inputs})
MisspeltValues = training_with(lambda inputs, values: {"action_dist_inputs": inputs, "vf_pred": values})
ColumnOfValues = training_with(lambda inputs, v: {"action_dist_inputs": inputs, "vf_preds": v.unsqueeze(-1)})
OneValue = training_with(lambda inputs, values: {"action_dist_inputs": inputs, "vf_preds": values.mean()})
NoneTrained = training_with(lambda *_: None)
TupleTrained = training_with(lambda *outputs: outputs)


class NoSuper(RLModule):
    def __init__(self, *_: Any) -> None:
        self.pi = nn.Linear(4, 2)


class NoSuperNorLayers(RLModule):
    def __init__(self, *_: Any) -> None:
        self.width = 3


class WithLock(Good):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lock = threading.Lock()


class NoParameters(RLModule):
    pass


class NoArguments(Good):
    def __init__(self) -> None:
        pass


def take_options(width: int = 3, depth: int = 2) -> None:
    """Take what `model_config` may hold."""


class Options(Good):
    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        take_options(**config.model_config)


class Raising(Good):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        raise LookupError("no such file")


class Memory(RLModule):
    is_stateful = True
    inputs = ("obs", "state_in")
    outputs = ("action_dist_inputs", "state_out")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cell, self.pi, self.vf = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2), nn.Linear(6, 1)

    def get_initial_state(self) -> Any:
        return {"h": torch.zeros(6)}

    def remember(self, batch: Any) -> Any:
        features, state = self.cell(batch["obs"], batch["state_in"]["h"].unsqueeze(0))
        return features, {"h": state.squeeze(0)}

    def forward_exploration(self, batch: Any) -> Any:
        features, state = self.remember(batch)
        return {"action_dist_inputs": self.pi(features), "state_out": state}

    def forward_train(self, batch: Any) -> Any:
        features, _ = self.remember(batch)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features).squeeze(-1)}


class OtherMemory(Memory):
    def remember(self, batch: Any) -> Any:
        features, state = super().remember(batch)
        return features, {"h": state["h"].unsqueeze(0)}


class RenamedMemory(Memory):
    def remember(self, batch: Any) -> Any:
        features, state = super().remember(batch)
        return features, {"hidden": state["h"]}


class TensorOfMemory(Memory):
    def get_initial_state(self) -> Any:
        return torch.zeros(6)


class DoublesOfMemory(Memory):
    def get_initial_state(self) -> Any:
        return {"h": torch.zeros(6, dtype=torch.float64)}


class NoMemoryAtAll(Memory):
    def get_initial_state(self) -> Any:
        return {}


class UndeclaredMemory(Memory):
    is_stateful = False


def parts_of(name: str, *overrides: str, experiment: str = CARTPOLE) -> Any:
    return build_modules(config_from(experiment, f"module._target_={HERE}.{name}", *overrides))


def report_of(name: str, *overrides: str, experiment: str = CARTPOLE) -> str:
    with pytest.raises(ConfigError) as caught:
        parts_of(name, *overrides, experiment=experiment)
    assert f"{Path(__file__)}:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("NoOutput", ["forward_exploration does not return action_dist_inputs", "got           an empty dict"]),
        (
            "MisspeltOutput",
            ["forward_exploration does not return action_dist_inputs", "did you mean  action_dist_input"],
        ),
        (
            "NoneActed",
            ["forward_exploration does not return a dict", "got           None", "a dict with action_dist_inputs"],
        ),
        ("TupleActed", ["forward_exploration does not return a dict", "got           tuple: (5, 2) float32"]),
        (
            "TooWide",
            [
                ".forward_exploration has the wrong shape",
                "got           (5, 4) float32",
                "expected      (5, 2) float32",
                "Categorical",
            ],
        ),
        ("OtherRows", ["has the wrong shape", "got           (3, 2) float32", "expected      (5, 2) float32"]),
        ("NoRows", ["has the wrong shape", "got           (2,) float32"]),
        ("DoublesActed", ["has the wrong dtype", "got           (5, 2) float64", "with .float()"]),
        ("IntegersActed", ["has the wrong dtype", "got           (5, 2) int64"]),
        ("ArrayActed", ["is not a tensor", "got           (5, 2) float32"]),
        (
            "NoValues",
            ["return vf_preds, which PPOLoss and GeneralAdvantageEstimation", "got           action_dist_inputs"],
        ),
        ("MisspeltValues", ["forward_train does not return vf_preds", "did you mean  vf_pred"]),
        ("ColumnOfValues", ["vf_preds returned by", "wrong shape", "(5, 1) float32", "(5,) float32", ".squeeze(-1)"]),
        ("OneValue", ["vf_preds returned by", "wrong shape", "got           () float32"]),
        ("NoneTrained", ["forward_train does not return a dict", "got           None", "action_dist_inputs, vf_preds"]),
        ("TupleTrained", ["forward_train does not return a dict", "got           tuple: (5, 2) float32, (5,) float32"]),
        (
            "NoSuper",
            ["NoSuper cannot be created", "call super().__init__(observation_space, action_space, config)"],
        ),
        ("NoSuperNorLayers", ["NoSuperNorLayers.__init__ does not call RLModule.__init__", "super().__init__("]),
        ("WithLock", ["WithLock cannot be copied: cannot pickle", "test_module_checks.py:", "remove the attribute"]),
        ("NoParameters", ["NoParameters does not have any parameters", "nn.ModuleList"]),
        ("NoArguments", ["takes 1 positional argument but 4 were given", "(self, observation_space, action_space"]),
        ("Raising", ["Raising cannot be created: LookupError: no such file"]),
        ("OtherMemory", ["does not match state_in", "h (1, 5, 6) float32", "h (5, 6) float32"]),
        ("RenamedMemory", ["does not match state_in", "hidden (5, 6) float32", "h (5, 6) float32"]),
        ("TensorOfMemory", ["get_initial_state does not return a dict of tensors", "got           (6,) float32"]),
        ("DoublesOfMemory", ["returns a state that is not a float32 tensor", "Tensor (6,) float64"]),
        ("NoMemoryAtAll", ["get_initial_state does not return a dict of tensors", "got           an empty dict"]),
        ("UndeclaredMemory", ["UndeclaredMemory.inputs contains state_in", "is_stateful = False"]),
    ],
)
def test_a_mistake_is_told(name: str, messages: list[str]) -> None:
    report = report_of(name)
    assert report.startswith("1 problem")
    for message in messages:
        assert message in report


class SqueezedInput(RLModule):
    """Returns (B,) instead of (B, 1) for the one input of its distribution."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pi = nn.Linear(4, 1)

    def forward_train(self, batch: Any) -> Any:
        return {"action_dist_inputs": self.pi(batch["obs"]).squeeze(-1)}


def test_a_single_input_needs_its_axis() -> None:
    module = SqueezedInput(spaces.Box(-1.0, 1.0, (4,)), spaces.MultiBinary(1), ModuleConfig())
    (problem,) = ModuleCheck(module).acting()
    assert "has the wrong shape" in problem.what
    assert problem.got == "(5,) float32"
    assert str(problem.expected).startswith("(5, 1) float32")


def test_an_unknown_option() -> None:
    report = report_of("Options", "+module.model_config.widht=3")
    for message in ("Options cannot be created", "'widht'", "expected      depth, width", "did you mean  width"):
        assert message in report


class Particular(Good):
    """Reads a column that no space describes."""

    def forward_train(self, batch: Any) -> Any:
        return super().forward_train({"obs": torch.eye(4)[batch["goal"]]})


class Random(Good):
    calls = 0

    def forward_train(self, batch: Any) -> Any:
        type(self).calls += 1
        torch.rand(3)
        return super().forward_train(batch)


class WithNorm(Good):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.norm = nn.BatchNorm1d(4)

    def forward_train(self, batch: Any) -> Any:
        return super().forward_train({"obs": self.norm(batch["obs"])})


@pytest.mark.parametrize("name", ["Good", "Memory", "Particular", "WithNorm"])
def test_good_modules_are_made_and_stay_as_they_are(name: str) -> None:
    module = parts_of(name)["default_policy"].module
    assert type(module).__name__ == name
    assert module.training
    if isinstance(module, WithNorm):
        assert module.norm.running_mean is not None
        assert (module.norm.running_mean == 0).all()


def test_no_random_number_of_the_process_is_drawn() -> None:
    before = torch.get_rng_state()
    parts_of("Random")
    assert Random.calls == 2
    assert torch.equal(before, torch.get_rng_state())


class ValuesOfTheirOwn(NoValues):
    """Gives values by `compute_values` alone."""

    def compute_values(self, batch: Any) -> Any:
        return self.vf(batch["obs"]).squeeze(-1)


class PolicyLoss(Loss):
    """Needs advantages, and no values."""

    reads = ("obs", "actions", "advantages")

    def __init__(self, config: Any) -> None:
        pass

    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> A2CMetrics:
        theta = module.outputs_at_steps(batch)["action_dist_inputs"]
        loss = -(module.action_dist.log_prob(theta, batch["actions"]) * batch["advantages"]).mean()
        return A2CMetrics(loss, loss, torch.tensor(0.0), None)


class ActorLoss(PolicyLoss):
    """Also needs an output that modules do not have by default."""

    needs = ("vf_preds",)


A2C = "+experiment=a2c_cartpole"


def test_values_are_needed_only_by_what_reads_them() -> None:
    overrides = [A2C, f"algorithm.loss={HERE}.PolicyLoss", f"module._target_={HERE}.ValuesOfTheirOwn"]
    rehearse(config_from(*overrides))


def test_what_needs_values_is_named() -> None:
    report = " ".join(report_of("NoValues", f"algorithm.loss={HERE}.PolicyLoss", experiment=A2C).split())
    assert "does not return vf_preds, which GeneralAdvantageEstimation (through compute_values, which" in report
    assert "PolicyLoss" not in report
    report = report_of("ValuesOfTheirOwn", f"algorithm.loss={HERE}.ActorLoss", experiment=A2C)
    assert "does not return vf_preds, which ActorLoss needs" in report


class ReadsTemperature(LearnerConnector):
    """Reads an output that no module of runner has."""

    requires = Requirements(needs=("log_temperature",))

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch


def test_a_connector_names_what_it_needs() -> None:
    edit = f"connectors.learner=[{{append: {{_target_: {HERE}.ReadsTemperature}}}}]"
    assert "does not return log_temperature, which ReadsTemperature needs" in report_of("Good", edit)


def test_values_of_a_baseline_that_is_not_used_are_not_needed() -> None:
    assert MonteCarloReturns(0.9, use_baseline=False).requires.needs == ()
    assert MonteCarloReturns(0.9, use_baseline=True).requires.needs == ("compute_values",)
