"""One loss for each optimiser, networks that a loss only reads, and losses that train what they should not."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.errors import RunFailure
from runner.config.fields import option
from runner.config.schemas import ModuleConfig
from runner.learners.learner import Learner
from runner.learners.loss import Loss
from runner.learners.train_batch import TrainBatch
from runner.learners.trained_module import TrainedModule
from runner.learners.trained_network import TrainedNetwork
from runner.modules import MultiRLModule, RLModule, frozen
from runner.modules.layers import GRU, LSTM, MLP, LayerOptions
from runner.modules.multi_rl_module import ALL_MODULES, member_of
from runner.modules.observation_encoder import ObservationEncoder
from runner.testing import BrokenContract, check_loss
from runner.testing.module_learner import ModuleLearner
from tests.conftest import ROOT

OBS, ACTIONS = gym.spaces.Box(-5.0, 5.0, (3,), np.float32), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class ActorAndCritic(RLModule):
    """A deterministic policy, and a Q function of its actions."""

    train_outputs = ("action_dist_inputs",)

    def __init__(self, *spaces: Any) -> None:
        super().__init__(*spaces)
        self.actor = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"actor": list(self.actor.parameters()), "critic": list(self.critic.parameters())}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"action_dist_inputs": self.actor(batch["obs"])}

    def q(self, obs: Any, actions: Any) -> Any:
        return self.critic(torch.cat([obs, actions], -1)).squeeze(-1)


@dataclass(frozen=True)
class Metrics(LossMetrics):
    actor_loss: Any
    critic_loss: Any


@dataclass(frozen=True)
class Config(AlgorithmConfig):
    actor_lr: float = option(0.01, "learning rate of the policy", above=0)
    critic_lr: float = option(0.02, "learning rate of the Q function", above=0)

    metrics: ClassVar[type[LossMetrics]] = Metrics
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr"}


class Separate(Loss):
    """The actor's loss reaches the critic, whose gradient is taken of the critic's loss alone."""

    reads = ("obs", "actions", "rewards")

    def __init__(self, config: Config) -> None:
        pass

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> Metrics:
        actions = module.actor(batch["obs"]).tanh()[:, :2]
        actions = torch.cat([actions, actions], -1)[:, :2] + 0.1 * module.actor(batch["obs"])[:, 2:]
        actor_loss = -self.q_of(module, batch["obs"], actions).mean()
        critic_loss = (module.q(batch["obs"], batch["actions"]) - batch["rewards"]).square().mean()
        return self.record(actor_loss, critic_loss)

    def q_of(self, module: Any, obs: Any, actions: Any) -> Any:
        return module.q(obs, actions)

    def record(self, actor_loss: Any, critic_loss: Any) -> Metrics:
        losses = {"actor": actor_loss, "critic": critic_loss}
        return Metrics(None, actor_loss, critic_loss, losses=losses)


class Mixed(Separate):
    """The fault that `losses` avoids."""

    def record(self, actor_loss: Any, critic_loss: Any) -> Metrics:
        return Metrics(actor_loss + critic_loss, actor_loss, critic_loss)


class MixedInSilence(Mixed):
    def record(self, actor_loss: Any, critic_loss: Any) -> Metrics:
        return Metrics(0.5 * (actor_loss + critic_loss), actor_loss.detach(), critic_loss.detach())


class FrozenInContext(Mixed):
    def q_of(self, module: Any, obs: Any, actions: Any) -> Any:
        with frozen(module.critic):
            return module.q(obs, actions)


class FrozenCall(Mixed):
    def q_of(self, module: Any, obs: Any, actions: Any) -> Any:
        return frozen(module.critic)(torch.cat([obs, actions], -1)).squeeze(-1)


def make_module() -> ActorAndCritic:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ActorAndCritic(OBS, ACTIONS, ModuleConfig())


def make_batch(num_rows: int = 16, seed: int = 0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"obs": (num_rows, 3), "actions": (num_rows, 2), "rewards": (num_rows,)}
    return {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}


def learner_of(loss: type[Loss], config: Config = Config(), is_compiled: bool = False) -> ModuleLearner:
    stream = np.random.default_rng(0)
    return ModuleLearner(make_module(), loss(config), config, stream, is_compiled=is_compiled)  # type: ignore[call-arg]


def expected_gradient(batch: Mapping[str, Any]) -> Any:
    """By two backward passes of two losses over whole copies."""
    gradients = {}
    for name in ("actor", "critic"):
        module = make_module()
        losses: Any = Separate(Config())(module, batch).losses
        losses[name].backward()
        group = module.parameter_groups()[name]
        gradients[name] = torch.cat([one.grad.reshape(-1) for one in group if one.grad is not None])
    return torch.cat([gradients["actor"], gradients["critic"]]).numpy()


@pytest.mark.parametrize("loss", [Separate, FrozenInContext, FrozenCall])
@pytest.mark.parametrize("microbatch_size", [None, 5])
def test_each_optimizer_gets_the_gradient_of_its_loss(loss: type[Loss], microbatch_size: int | None) -> None:
    learner = learner_of(loss, Config(microbatch_size=microbatch_size))
    gradients = learner.gradients(make_batch(), 0)
    np.testing.assert_allclose(gradients.vector, expected_gradient(make_batch()), rtol=1e-5, atol=1e-6)
    parts = gradients.metrics["actor_loss"] + gradients.metrics["critic_loss"]
    assert gradients.metrics["total_loss"] == pytest.approx(parts)
    assert "losses" not in gradients.metrics


def test_the_mixed_loss_has_another_gradient() -> None:
    assert not np.allclose(learner_of(Mixed).gradients(make_batch(), 0).vector, expected_gradient(make_batch()))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Separate, FrozenInContext])
def test_compiled_updates_equal_eager_ones(loss: type[Loss]) -> None:
    eager, compiled = learner_of(loss), learner_of(loss, is_compiled=True)
    for seed in range(3):
        for one in (eager, compiled):
            one.update(make_batch(seed=seed), 0)
        np.testing.assert_allclose(compiled.get_weights(), eager.get_weights(), rtol=1e-4, atol=1e-6)


def test_an_optimizer_that_is_left_out_gets_no_gradient() -> None:
    class CriticOnly(Separate):
        def record(self, actor_loss: Any, critic_loss: Any) -> Metrics:
            return Metrics(None, actor_loss.detach(), critic_loss, losses={"critic": critic_loss})

    vector = learner_of(CriticOnly).gradients(make_batch(), 0).vector
    num_actor = sum(one.numel() for one in make_module().actor.parameters())
    assert not vector[:num_actor].any()
    np.testing.assert_allclose(vector[num_actor:], expected_gradient(make_batch())[num_actor:], rtol=1e-5, atol=1e-6)


def test_modules_that_learn_together() -> None:
    together = MultiRLModule({"one": make_module(), "other": make_module()})
    modules = [
        TrainedModule(id_, member_of(together, id_), Separate(Config()), Config(), np.random.default_rng(0))  # type: ignore[arg-type]
        for id_ in together
    ]
    learner = Learner({ALL_MODULES: TrainedNetwork(together, modules, Config())}, {}, list(together))
    batches = {"one": make_batch(), "other": make_batch(8, seed=1)}
    vectors = {id_: found.vector for id_, found in learner.gradients(TrainBatch(batches), 0).modules.items()}
    for module_id, batch in batches.items():
        expected = np.sort(expected_gradient(batch))
        got = np.sort(vectors[module_id][vectors[module_id] != 0.0])
        np.testing.assert_allclose(got, expected[expected != 0.0], rtol=1e-5, atol=1e-6)
    learner.update(TrainBatch(batches), 0)


@pytest.mark.parametrize(
    ("losses", "what"),
    [
        ({"acter": 1}, "Given returns a loss for acter, which is not an optimiser of the algorithm"),
        ([1, 2], "Given returns losses that are not a dict of optimisers"),
        ({}, "Given returns losses that are not a dict of optimisers"),
        ({"actor": 1}, "Given returns a loss for actor that is not a tensor"),
        ({"actor": torch.ones(())}, "Given returns a loss for actor without a gradient"),
        ({"actor": torch.ones(3)}, "Given returns a loss for actor of several numbers"),
    ],
)
def test_losses_that_cannot_be_used(losses: Any, what: str) -> None:
    class Given(Separate):
        def record(self, actor_loss: Any, critic_loss: Any) -> Metrics:
            return Metrics(None, actor_loss, critic_loss, losses=losses)

    with pytest.raises(RunFailure) as caught:
        learner_of(Given).update(make_batch(), 0)
    assert caught.value.problem.what == what


@pytest.mark.parametrize("loss", [Separate, FrozenInContext, FrozenCall])
def test_check_loss_accepts(loss: type[Loss]) -> None:
    check_loss(loss, Config(), lambda: ActorAndCritic(OBS, ACTIONS, ModuleConfig()), is_compiled=True)


def test_the_documented_example(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/tutorials/custom_algorithm.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "parameter_groups" in block)
    example: Any = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where dataclasses look for what their fields name
    exec(compile(code, "algorithm.md", "exec"), vars(example))
    spaces = gym.spaces.Box(-5.0, 5.0, (3,), np.float32), gym.spaces.Discrete(2)
    check_loss(
        example.ActorCriticLoss,
        example.ActorCriticConfig(),
        lambda: example.ActorAndCritic(*spaces, ModuleConfig()),
        is_compiled=True,
    )


@pytest.mark.parametrize(("loss", "term"), [(Mixed, "actor_loss"), (MixedInSilence, "a term of total_loss")])
def test_check_loss_finds_a_term_that_reaches_another_optimizer(loss: type[Loss], term: str) -> None:
    with pytest.raises(BrokenContract) as caught:
        check_loss(loss, Config(), make_module)
    (problem,) = caught.value.problems
    assert problem.what == f"{term} reaches the parameters of several optimisers: actor, critic" or problem.what == (
        f"{term} reaches the parameters of several optimisers: critic, actor"
    )
    assert "runner.modules.frozen(network)" in str(problem.fix)


@pytest.mark.parametrize("network", [nn.Linear(3, 2), nn.LSTM(3, 2), nn.GRU(3, 2), nn.Sequential(nn.Linear(3, 2))])
def test_gradients_pass_through_a_frozen_network_to_its_inputs(network: nn.Module) -> None:
    inputs = torch.randn(4, 3, requires_grad=True)
    outputs, expected = frozen(network)(inputs), network(inputs)
    first, other = (one[0] if isinstance(one, tuple) else one for one in (outputs, expected))
    torch.testing.assert_close(first, other)
    first.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.any()
    assert all(one.grad is None for one in network.parameters())
    other.sum().backward()
    assert all(one.grad is not None for one in network.parameters())


@pytest.mark.parametrize(
    ("network", "shape", "compute"),
    [
        (
            MLP(3, [4], LayerOptions("tanh", sigma0=0.5), 2),
            (5, 3),
            lambda network, inputs: network.forward_with_noise(inputs, torch.ones(5, network.num_noise)),
        ),
        (
            LSTM(3, 4),
            (5, 2, 3),
            lambda network, inputs: network(inputs, {"h": torch.zeros(5, 4), "c": torch.zeros(5, 4)})[0],
        ),
        (GRU(3, 4), (5, 1, 3), lambda network, inputs: network(inputs, {"h": torch.zeros(5, 4)})[0]),
        (
            ObservationEncoder(gym.spaces.Box(0.0, 1.0, (8, 8, 1), np.float32), ModuleConfig()),
            (5, 8, 8, 1),
            lambda network, inputs: network(inputs),
        ),
    ],
)
def test_gradients_pass_through_frozen_layers_of_built_in_modules(
    network: nn.Module, shape: tuple[int, ...], compute: Callable[[Any, Any], Any]
) -> None:
    inputs = torch.rand(shape, requires_grad=True)
    with frozen(network):
        outputs = compute(network, inputs)
    expected = compute(network, inputs)
    torch.testing.assert_close(outputs, expected)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.any()
    assert all(one.grad is None for one in network.parameters())
    expected.sum().backward()
    assert all(one.grad is not None for one in network.parameters())


def test_a_frozen_network_is_as_before_after_an_error() -> None:
    network, own = nn.Linear(3, 2), {}
    own = dict(network.named_parameters())
    freezing = frozen(network)
    with freezing, freezing:
        assert not any(one.requires_grad for one in network.parameters())
    with pytest.raises(RuntimeError, match="shapes"):
        freezing(torch.zeros(4, 5))
    assert all(network.get_parameter(name) is one for name, one in own.items())
    with pytest.raises(TypeError, match=r"frozen takes a torch\.nn\.Module, got function"):
        frozen(make_module)  # type: ignore[arg-type]


def test_a_record_without_losses_is_as_before() -> None:
    record = Metrics(torch.ones(()), torch.zeros(()), torch.zeros(()))
    assert replace(record).reported() == {"total_loss": 1, "actor_loss": 0, "critic_loss": 0}
    assert Metrics.names() == ("total_loss", "actor_loss", "critic_loss")
