"""A learner of modules that share parameters, against a loop in plain torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.algorithms import PPOConfig
from runner.config.schemas import ModuleConfig
from runner.learners.gradients import GroupGradients
from runner.learners.learner import Learner
from runner.learners.ppo import PPOLoss
from runner.learners.train_batch import TrainBatch
from runner.learners.trained_module import TrainedModule
from runner.learners.trained_network import TrainedNetwork
from runner.modules import ActorCriticModule, MultiRLModule, RLModule
from runner.modules.multi_rl_module import ALL_MODULES, JointPass, member_of
from runner.testing.module_learner import ModuleLearner
from tests.support.joint_modules import SharedCritic, SharedEncoder

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(4)
CONFIG = PPOConfig(lr=1e-2, num_epochs=3, minibatch_size=16, grad_clip=0.5, use_kl_loss=False, entropy_coeff=0.01)
NUM_ROWS = {"p0": 50, "p1": 41}  # 3 minibatches of an epoch each, of other sizes


def make_modules(classes: type[MultiRLModule], seed: int = 0) -> MultiRLModule:
    torch.manual_seed(seed)
    config = ModuleConfig(fcnet_hiddens=[8])
    modules: dict[str, RLModule] = {id_: ActorCriticModule(OBS, ACTIONS, config) for id_ in NUM_ROWS}
    return classes(modules)


class SharedLearner(Learner):
    """A learner of one network, whose train batches are given as columns."""

    def update_on(self, batches: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
        return self.update(TrainBatch(batches), 0).metrics

    def gradients_of(self, batches: dict[str, dict[str, Any]]) -> GroupGradients:
        return self.gradients(TrainBatch(batches), 0)

    def vector(self) -> Any:
        return self.get_weights()[ALL_MODULES]


def make_learner(together: MultiRLModule, config: PPOConfig = CONFIG, trained: Any = tuple(NUM_ROWS)) -> SharedLearner:
    modules = [
        TrainedModule(id_, member_of(together, id_), PPOLoss(config), config, np.random.default_rng(number))
        for number, id_ in enumerate(NUM_ROWS)
        if id_ in trained
    ]
    return SharedLearner({ALL_MODULES: TrainedNetwork(together, modules, config)}, {}, trained)


def make_batches(seed: int = 0) -> dict[str, dict[str, Any]]:
    draw = torch.Generator().manual_seed(seed)
    batches = {}
    for module_id, n in NUM_ROWS.items():
        logits = torch.randn(n, 4, generator=draw)
        actions = torch.randint(4, (n,), generator=draw)
        batches[module_id] = {
            "obs": torch.randn(n, 3, generator=draw),
            "actions": actions,
            "action_dist_inputs": logits,
            "action_logp": logits.log_softmax(-1)[torch.arange(n), actions],
            "advantages": torch.randn(n, generator=draw),
            "value_targets": torch.randn(n, generator=draw),
            "obs_of_agents": {agent: torch.randn(n, 3, generator=draw) for agent in ("a", "b")},
            "agents_mask": torch.rand(n, 2, generator=draw) < 0.7,
        }
    return batches


def loss_by_hand(outputs: dict[str, Any], batch: dict[str, Any]) -> Any:
    log_pi = outputs["action_dist_inputs"].log_softmax(-1)
    logp = log_pi[torch.arange(len(log_pi)), batch["actions"]]
    ratio = (logp - batch["action_logp"]).exp()
    clipped = ratio.clamp(1 - CONFIG.clip_param, 1 + CONFIG.clip_param)
    policy_loss = -torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
    vf_loss = (outputs["vf_preds"] - batch["value_targets"]).square().clamp(max=CONFIG.vf_clip_param).mean()
    entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
    return policy_loss + CONFIG.vf_loss_coeff * vf_loss - CONFIG.entropy_coeff * entropy


def rows_of(batch: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {
        name: {key: leaf[rows] for key, leaf in column.items()} if isinstance(column, dict) else column[rows]
        for name, column in batch.items()
    }


def update_by_hand(together: MultiRLModule, num_updates: int) -> None:
    """Adam on each parameter once, of the sum of the losses of the k-th minibatches."""
    optimizer = torch.optim.Adam(together.parameters(), lr=CONFIG.lr)
    streams = {id_: np.random.default_rng(number) for number, id_ in enumerate(NUM_ROWS)}
    for number in range(num_updates):
        batches = make_batches(number)
        for _ in range(CONFIG.num_epochs):
            cut = {id_: np.array_split(streams[id_].permutation(n), 3) for id_, n in NUM_ROWS.items()}
            for k in range(3):
                parts = {id_: rows_of(batches[id_], cut[id_][k]) for id_ in NUM_ROWS}
                outputs = together.forward_train(parts)
                optimizer.zero_grad()
                sum(loss_by_hand(outputs[id_], parts[id_]) for id_ in NUM_ROWS).backward()
                torch.nn.utils.clip_grad_norm_(list(together.parameters()), CONFIG.grad_clip or 0.0)
                optimizer.step()


@pytest.mark.parametrize("classes", [SharedCritic, SharedEncoder])
def test_some_updates_are_those_of_a_loop_by_hand(classes: type[MultiRLModule]) -> None:
    together, by_hand = make_modules(classes), make_modules(classes)
    learner = make_learner(together)
    for number in range(3):
        metrics = learner.update_on(make_batches(number))
    update_by_hand(by_hand, 3)
    for (name, value), expected in zip(together.state_dict().items(), by_hand.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert {id_: of_one["num_minibatch_updates"] for id_, of_one in metrics.items()} == {"p0": 9, "p1": 9}


@pytest.mark.parametrize("classes", [SharedCritic, SharedEncoder])
def test_the_gradients_of_modules_add_up_to_the_gradient_of_the_sum(classes: type[MultiRLModule]) -> None:
    together = make_modules(classes)
    learner = make_learner(together)
    before = learner.vector()
    gradients = learner.gradients_of(make_batches())
    np.testing.assert_array_equal(learner.vector(), before)
    total = torch.from_numpy(sum(one.vector for one in gradients.modules.values()))  # type: ignore[arg-type]
    parameters = [one for group in together.parameter_groups().values() for one in group]
    outputs = together.forward_train(make_batches())
    loss = sum(loss_by_hand(outputs[id_], batch) for id_, batch in make_batches().items())
    expected = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, expected, strict=True)]
    torch.testing.assert_close(total, torch.cat([one.reshape(-1) for one in flat]), rtol=1e-4, atol=1e-6)


def test_applied_gradients_are_an_update_with_one_minibatch() -> None:
    config = PPOConfig(lr=1e-2, num_epochs=1, minibatch_size=None, grad_clip=0.5, use_kl_loss=False)
    updated, applied = (
        make_learner(make_modules(SharedCritic), config),
        make_learner(make_modules(SharedCritic), config),
    )
    by_update = updated.update_on(make_batches())
    by_gradients = applied.apply(applied.gradients_of(make_batches()), 0)
    np.testing.assert_allclose(applied.vector(), updated.vector(), rtol=1e-4, atol=1e-6)
    for module_id, metrics in by_gradients.items():
        assert metrics == pytest.approx(by_update[module_id], rel=1e-4, abs=1e-6)


def test_a_pass_without_gradients_is_not_the_joint_pass() -> None:
    together, batches = make_modules(SharedCritic), make_batches()
    joint = JointPass(together, batches)
    module = member_of(together, "p0", joint)
    with torch.no_grad():
        assert not module.forward_train(batches["p0"])["vf_preds"].requires_grad
    assert module.forward_train(batches["p0"])["vf_preds"].requires_grad
    assert module.forward_train(batches["p0"]) is joint.outputs()["p0"]


class NotesPasses(SharedCritic):
    """Records the number of modules in each training pass."""

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__(modules)
        self.num_modules: list[int] = []

    def forward_train(self, batches: Any) -> dict[str, dict[str, Any]]:
        self.num_modules.append(len(batches))
        return super().forward_train(batches)


def test_modules_are_evaluated_together_if_their_losses_draw_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOLoss, "draw_noise", lambda *_: {"noise": torch.zeros(1)})
    together: Any = make_modules(NotesPasses)
    make_learner(together).update_on(make_batches())
    assert together.num_modules == [2] * 9


def test_a_step_moves_a_shared_encoder_once() -> None:
    """With plain gradient descent: by the learning rate times the sum of the gradients, not twice."""
    from runner.config.optimizer import OptimizerConfig

    config = PPOConfig(
        lr=1.0, num_epochs=1, minibatch_size=None, use_kl_loss=False, optimizer=OptimizerConfig(name="sgd")
    )
    together = make_modules(SharedEncoder)
    learner = make_learner(together, config)
    gradients = learner.gradients_of(make_batches())
    before = learner.vector()
    learner.apply(gradients, 0)
    total = sum(one.vector for one in gradients.modules.values())
    np.testing.assert_allclose(before - learner.vector(), total, rtol=1e-3, atol=1e-6)
    encoder = {id(parameter) for parameter in together["p0"].encoder.parameters()}  # type: ignore[union-attr, operator]
    assert encoder <= {id(parameter) for parameter in together["p1"].parameters()}
    assert len(total) == sum(parameter.numel() for parameter in together.parameters())  # type: ignore[arg-type]


def test_modules_without_shared_parts_learn_as_each_by_itself() -> None:
    config = PPOConfig(lr=1e-2, num_epochs=2, minibatch_size=16, grad_clip=None, use_kl_loss=False)
    together, alone = make_modules(MultiRLModule), make_modules(MultiRLModule)
    learner = make_learner(together, config)
    updates = learner.update_on(make_batches())
    for number, module_id in enumerate(NUM_ROWS):
        one = ModuleLearner(alone[module_id], PPOLoss(config), config, np.random.default_rng(number))
        metrics = one.update(make_batches()[module_id], 0).metrics
        of_joint = {name: value for name, value in updates[module_id].items() if "norm" not in name}
        assert of_joint == pytest.approx({name: metrics[name] for name in of_joint})
    for name, value in together.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], msg=name)


def test_parameters_of_untrained_modules_alone_stay() -> None:
    together = make_modules(SharedEncoder)
    together.freeze_untrained(["p1"])
    before = {name: value.clone() for name, value in together.state_dict().items()}
    make_learner(together, trained=("p1",)).update_on({"p1": make_batches()["p1"]})
    moved = {name for name, value in together.state_dict().items() if not torch.equal(value, before[name])}
    assert any(name.startswith("[p0].encoder") for name in moved), "it is p1's encoder, too"
    assert any(name.startswith("[p1].pi") for name in moved)
    assert not any(name.startswith(("[p0].pi", "[p0].vf")) for name in moved)


def test_a_module_with_fewer_minibatches_takes_no_part_in_the_last_steps() -> None:
    batches = make_batches()
    batches["p1"] = rows_of(batches["p1"], slice(0, 5))
    updates = make_learner(make_modules(SharedCritic)).update_on(batches)
    assert {id_: one["num_minibatch_updates"] for id_, one in updates.items()} == {"p0": 9, "p1": 3}
    assert list(make_learner(make_modules(SharedCritic)).update_on({"p0": batches["p0"]})) == ["p0"]


def test_microbatches_give_the_same_step() -> None:
    plain, cut = (PPOConfig(lr=1e-2, num_epochs=1, microbatch_size=size, use_kl_loss=False) for size in (None, 7))
    learners = [make_learner(make_modules(SharedCritic), config) for config in (plain, cut)]
    for learner in learners:
        learner.update_on(make_batches())
    np.testing.assert_allclose(learners[0].vector(), learners[1].vector(), rtol=1e-3, atol=1e-5)


def test_a_state_goes_on_exactly() -> None:
    straight, first, second = (make_learner(make_modules(SharedCritic, seed)) for seed in (0, 0, 1))
    for number in range(2):
        straight.update_on(make_batches(number))
    first.update_on(make_batches(0))
    second.set_state(first.get_state())
    second.update_on(make_batches(1))
    np.testing.assert_array_equal(second.vector(), straight.vector())


def test_a_state_of_other_trained_modules_gives_parameters() -> None:
    one, both = make_modules(SharedEncoder), make_modules(SharedEncoder, 1)
    one.freeze_untrained(["p1"])
    first, second = make_learner(one, trained=("p1",)), make_learner(both)
    first.update_on(make_batches())
    second.set_state(first.get_state())
    for name, value in both.state_dict().items():
        assert torch.equal(value, one.state_dict()[name])
    assert set(second.update_on(make_batches())) == {"p0", "p1"}
