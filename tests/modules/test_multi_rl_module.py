"""A critic for all agents, against values computed row by row; acting without it; encoders that modules share."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules import ActorCriticModule, CentralisedCritic, MultiRLModule, RLModule, RunAgents, SharedEncoders
from runner.modules.flat_parameters import FlatParameters, flat_values

BOX, DICE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(4)
ACTIONS = gym.spaces.Discrete(2)
SPACES: dict[str, Any] = {"a": BOX, "b": BOX, "c": DICE}  # a and b act by the module of boxes
NUM_ROWS = 11


def make_modules(**config: Any) -> dict[str, RLModule]:
    of_all = ModuleConfig(**{"fcnet_hiddens": [8], **config})
    return {id_: ActorCriticModule(space, ACTIONS, of_all) for id_, space in {"boxes": BOX, "dice": DICE}.items()}


ALL = RunAgents(SPACES)


def make_critic(agents: RunAgents = ALL, config: Any = None, **options: Any) -> CentralisedCritic:
    torch.manual_seed(0)
    critic = CentralisedCritic(make_modules(**(config or {})), **options)
    critic.use_agents(agents)
    return critic


def make_batch(leading: tuple[int, ...] = (NUM_ROWS,), agents: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    return {
        "obs": torch.randn(*leading, 3, generator=draw),
        "obs_of_agents": {
            "a": torch.randn(*leading, 3, generator=draw),
            "b": torch.randn(*leading, 3, generator=draw),
            "c": torch.randint(4, leading, generator=draw),
        },
        "agents_mask": torch.rand(*leading, 3, generator=draw) < 0.6,
        "agent_index": torch.tensor(agents)[torch.randint(len(agents), leading, generator=draw)],
        "state": torch.randn(*leading, 2, generator=draw),
    }


def value_by_hand(critic: CentralisedCritic, batch: dict[str, Any], row: int, number: int = 0) -> float:
    """One row's value from the critic's parameters: one-hot agent, what a, b and c saw, mask."""
    seen = [batch["obs_of_agents"][agent][row].tolist() for agent in "ab"]
    dice = np.eye(4)[int(batch["obs_of_agents"]["c"][row])].tolist()
    agent = np.eye(3)[int(batch["agent_index"][row])].tolist()
    mask = batch["agents_mask"][row].float().tolist()
    features = np.array([*agent, *seen[0], *seen[1], *dice, *mask])
    encoder, head = critic.critics[number]
    (hidden,), (last,) = encoder.layers, head.layers
    layer = [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in (hidden, last)]
    value = layer[1][0] @ np.tanh(layer[0][0] @ features + layer[0][1]) + layer[1][1]
    return float(value[0])


def test_values_are_of_what_all_agents_saw() -> None:
    critic, batch = make_critic(), make_batch()
    values = critic.compute_values({"boxes": batch})["boxes"]
    outputs = critic.forward_train({"boxes": batch})["boxes"]
    expected = [value_by_hand(critic, batch, row) for row in range(NUM_ROWS)]
    np.testing.assert_allclose(values.detach(), expected, atol=1e-6)
    np.testing.assert_array_equal(outputs["vf_preds"].detach(), values.detach())
    of_module = critic["boxes"].forward_train(batch)
    np.testing.assert_array_equal(outputs["action_dist_inputs"].detach(), of_module["action_dist_inputs"].detach())


def test_each_team_has_a_critic() -> None:
    critic = make_critic(RunAgents(SPACES, {"red": ["a", "c"], "blue": ["b"]}))
    assert len(critic.critics) == 2
    batch = make_batch(agents=(0, 1, 2))
    values = critic.compute_values({"boxes": batch})["boxes"]
    team = [0, 1, 0]
    expected = [value_by_hand(critic, batch, row, team[int(batch["agent_index"][row])]) for row in range(NUM_ROWS)]
    np.testing.assert_allclose(values.detach(), expected, atol=1e-6)
    of_red = batch["agent_index"] != 1
    (gradient,) = torch.autograd.grad(values[of_red].sum(), [critic.critics[1][0].layers[0].weight])
    assert not gradient.any(), "rows of red say nothing about the critic of blue"


def test_agents_in_no_team_share_a_critic() -> None:
    assert len(make_critic(RunAgents(SPACES, {"red": ["a"]})).critics) == 2


def test_a_critic_may_read_the_state() -> None:
    agents = RunAgents(SPACES, state_space=gym.spaces.Box(-1, 1, (2,), np.float32))
    critic, batch = make_critic(agents, reads="state"), make_batch()
    assert critic.train_inputs == ("state", "agent_index")
    values = critic.compute_values({"boxes": batch})["boxes"]
    other = {**batch, "obs": batch["obs"] + 1, "agents_mask": ~batch["agents_mask"]}
    np.testing.assert_array_equal(critic.compute_values({"boxes": other})["boxes"].detach(), values.detach())
    moved = critic.compute_values({"boxes": {**batch, "state": batch["state"] + 1}})["boxes"]
    assert (moved != values).all()
    with pytest.raises(ValueError, match="the environment does not define `state_space`"):
        make_critic(reads="state")
    with pytest.raises(ValueError, match="reads is not one of its choices"):
        make_critic(reads="all")


def test_modules_act_without_it() -> None:
    critic, obs = make_critic(), {"obs": make_batch()["obs"]}
    for name in ("forward_exploration", "forward_inference"):
        outputs = getattr(critic, name)({"boxes": obs})["boxes"]
        expected = getattr(critic["boxes"], name)(obs)
        np.testing.assert_array_equal(outputs["action_dist_inputs"].detach(), expected["action_dist_inputs"].detach())


def test_sequences_have_a_value_each_step() -> None:
    critic = make_critic(config={"use_lstm": True, "lstm_cell_size": 4})
    batch = make_batch((3, 4))
    rows: dict[str, Any] = {name: column.flatten(0, 1) for name, column in batch.items() if name != "obs_of_agents"}
    rows["obs_of_agents"] = {agent: column.flatten(0, 1) for agent, column in batch["obs_of_agents"].items()}
    values = critic.compute_values({"boxes": batch})["boxes"]
    assert values.shape == (3, 4)
    np.testing.assert_allclose(
        values.flatten().detach(), critic.compute_values({"boxes": rows})["boxes"].detach(), atol=1e-6
    )


def test_its_widths_are_the_modules_or_given() -> None:
    assert make_critic().critics[0][0].layers[0].weight.shape == (8, 3 + 6 + 4 + 3)
    assert make_critic(fcnet_hiddens=[5]).critics[0][0].num_outputs == 5


def test_encoders_are_shared_by_modules_with_equal_observations() -> None:
    modules = {**make_modules(), "more_boxes": make_modules()["boxes"]}
    shared: MultiRLModule = SharedEncoders(modules)
    assert shared["boxes"].encoder is shared["more_boxes"].encoder
    assert shared["boxes"].encoder is not shared["dice"].encoder
    assert shared["boxes"].pi is not shared["more_boxes"].pi
    assert CentralisedCritic({**make_modules(), "more": make_modules()["boxes"]}, share_encoders=True)["more"]


def test_encoders_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(ValueError, match="boxes and more have equal observations but different encoders"):
        SharedEncoders({**make_modules(), "more": make_modules(fcnet_hiddens=[4])["boxes"]})
    with pytest.raises(ValueError, match="does not have an `encoder` to share"):
        SharedEncoders({"plain": RLModule(BOX, ACTIONS, ModuleConfig())})


def test_each_modules_own_values_are_read_out_of_the_vector_of_all() -> None:
    """Frozen parameters and buffers, too; the vector of all keeps the parameters."""
    critic = make_critic()
    for module in critic.children():
        if isinstance(module, ActorCriticModule):
            next(module.parameters()).requires_grad_(False)
            module.register_buffer("mean", torch.rand(3))
    expected = {id_: FlatParameters(deepcopy(module)).to_numpy() for id_, module in critic.items()}
    of_all = FlatParameters(critic)
    assert {id_: flat_values(module).tolist() for id_, module in critic.items()} == {
        id_: values.tolist() for id_, values in expected.items()
    }
    assert of_all.has_module


def test_values_are_not_loaded_into_parameters_that_have_moved() -> None:
    module = make_modules()["boxes"]
    first = FlatParameters(module)
    values = first.to_numpy()
    first.load(values + 1)
    assert flat_values(module).tolist() == (values + 1).tolist()
    FlatParameters(module)
    with pytest.raises(RuntimeError, match="another FlatParameters holds its parameters"):
        first.load(values)
