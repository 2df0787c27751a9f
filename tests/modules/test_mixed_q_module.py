"""QMIX and VDN: the mix by hand, agents that are not there, and loss and modules by their contracts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.algorithms import QMIXConfig
from runner.config.schemas import ModuleConfig
from runner.learners.qmix import QMIXLoss
from runner.modules.mixed_q_module import MixedQModule, MonotonicMixer
from runner.testing import check_loss, check_module
from runner.testing.sampled_items import make_batch

NUM_AGENTS, WIDTH, SIZES = 3, 4, [2, 4, 3]
ACTIONS = gym.spaces.MultiDiscrete(SIZES)
CONFIG = QMIXConfig(gamma=0.9)


def space(**others: gym.Space[Any]) -> gym.spaces.Dict:
    agents = gym.spaces.Box(-2, 2, (NUM_AGENTS, WIDTH), np.float32)
    return gym.spaces.Dict({"agents": agents, "mask": gym.spaces.MultiBinary(NUM_AGENTS), **others})


STATE = {"state": gym.spaces.Box(-1, 1, (5,), np.float32)}
MASKED = {"action_mask": gym.spaces.MultiBinary(sum(SIZES))}


def make(observation_space: Any = None, **config: Any) -> MixedQModule:
    torch.manual_seed(0)
    fields = {"fcnet_hiddens": [8], "fcnet_activation": "relu", "mixer_width": 6, **config}
    module = MixedQModule(observation_space or space(), ACTIONS, ModuleConfig(**fields))
    with torch.no_grad():
        for parameter in (*module.target_qf.parameters(), *module.target_mixer.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
    return module


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mixer": "sum"},
        {"dueling": True},
        {"action_mask_key": "action_mask", "observation_space": space(**MASKED)},
        {"use_lstm": True, "lstm_cell_size": 5},
        {"use_gru": True, "lstm_cell_size": 5, "action_mask_key": "action_mask", "observation_space": space(**MASKED)},
    ],
    ids=["qmix", "sum", "dueling", "masked", "lstm", "gru"],
)
def test_module_contract(config: dict[str, Any]) -> None:
    observation_space = config.pop("observation_space", space(**STATE))

    def made() -> MixedQModule:
        fields = {"fcnet_hiddens": [8], "mixer_width": 6, **config}
        return MixedQModule(observation_space, ACTIONS, ModuleConfig(**fields))

    check_module(made)


@pytest.mark.parametrize("mixer", ["qmix", "sum"])
@pytest.mark.parametrize("double_q", [True, False])
def test_loss_contract(mixer: str, double_q: bool) -> None:
    config = QMIXConfig(double_q=double_q)
    check_loss(QMIXLoss, config, lambda: make(mixer=mixer), is_compiled=True)


@pytest.mark.parametrize("kind", ["use_lstm", "use_gru"])
def test_each_agent_remembers_what_it_saw_alone(kind: str) -> None:
    """Sequences of all agents at once are torch's own recurrent layer, agent by agent, then the agent's head."""
    module = make(**{kind: True}, lstm_cell_size=5)
    num_sequences, length = 2, 4
    obs = {
        "agents": torch.randn(num_sequences, length, NUM_AGENTS, WIDTH),
        "mask": torch.ones(num_sequences, length, NUM_AGENTS),
    }
    state = {name: torch.randn(num_sequences, *value.shape) for name, value in module.get_initial_state().items()}
    outputs = module.forward_train({"obs": obs, "state_in": state})
    layer = (torch.nn.LSTM if kind == "use_lstm" else torch.nn.GRU)(8, 5, batch_first=True)
    for name, value in module.memory.named_parameters():  # type: ignore[union-attr]
        getattr(layer, f"{name}_l0").data.copy_(value)
    for agent in range(NUM_AGENTS):
        seen = torch.cat((obs["agents"][:, :, agent], torch.eye(NUM_AGENTS)[agent].expand(2, length, -1)), -1)
        before = tuple(value[:, agent].unsqueeze(0) for value in state.values())
        encoded = module.qf[0](seen.flatten(0, 1)).view(2, length, -1)
        features, _ = layer(encoded, before if kind == "use_lstm" else before[0])
        q = module.qf[1](features)[..., : SIZES[agent]]
        torch.testing.assert_close(outputs["qf_preds"][:, :, agent, : SIZES[agent]], q)


# numpy's product of so few numbers now and then warns of invalid values that are not there; NaN would fail the tests.
@np.errstate(invalid="ignore")
def mixed_by_hand(mixer: Any, q: Any, state: Any) -> float:
    """Q_tot of one row, with the hypernetworks' parameters as arrays."""
    if not isinstance(mixer, MonotonicMixer):
        return float(sum(q))

    def linear(layer: Any, x: Any) -> Any:
        return layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()

    width = mixer.second_weights.out_features
    first = np.abs(linear(mixer.first_weights, state)).reshape(len(q), width)
    hidden = q @ first + linear(mixer.first_bias, state)
    hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
    value = linear(mixer.value[2], np.maximum(linear(mixer.value[0], state), 0))
    return float(hidden @ np.abs(linear(mixer.second_weights, state)) + value[0])


def q_by_hand(qf: Any, obs: Any, agent: int) -> Any:
    """Q of one agent's actions: of its observation and its number."""
    encoder, head = qf
    x = torch.cat((obs["agents"][agent], torch.eye(NUM_AGENTS)[agent]))
    hidden = torch.relu(encoder.layers[0](x))
    return head.layers[0](hidden).detach().numpy()[: SIZES[agent]]


@pytest.mark.parametrize("mixer", ["qmix", "sum"])
@pytest.mark.parametrize("observation_space", [space(), space(**STATE)], ids=["observations", "state"])
def test_loss_row_by_row(mixer: str, observation_space: Any) -> None:
    """Double Q: each agent's next action is the best by its own Q, and agents that are not there are left out."""
    module = make(observation_space, mixer=mixer)
    batch = make_batch(module, 30)
    metrics = QMIXLoss(CONFIG)(module, {name: batch[name] for name in QMIXLoss.reads})
    losses = []
    for row in range(30):
        obs, new_obs = ({key: part[row] for key, part in batch[name].items()} for name in ("obs", "new_obs"))

        def state_of(seen: dict[str, Any]) -> Any:
            if "state" in seen:
                return seen["state"].numpy()
            return np.concatenate((seen["agents"].flatten().numpy(), seen["mask"].float().numpy()))

        q = np.array(
            [
                q_by_hand(module.qf, obs, agent)[int(batch["actions"][row][agent])] * float(obs["mask"][agent])
                for agent in range(NUM_AGENTS)
            ]
        )
        best = [int(q_by_hand(module.qf, new_obs, agent).argmax()) for agent in range(NUM_AGENTS)]
        next_q = np.array(
            [
                q_by_hand(module.target_qf, new_obs, agent)[best[agent]] * float(new_obs["mask"][agent])
                for agent in range(NUM_AGENTS)
            ]
        )
        bootstrap = mixed_by_hand(module.target_mixer, next_q, state_of(new_obs))
        discount = 0.0 if batch["terminateds"][row] else CONFIG.gamma ** int(batch["n_step"][row])
        y = float(batch["rewards"][row]) + discount * bootstrap
        losses.append(float(batch["weights"][row]) * (mixed_by_hand(module.mixer, q, state_of(obs)) - y) ** 2)
    assert metrics.total_loss.item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_what_all_do_best_is_what_each_does_best() -> None:
    """The mix is monotonic: over all joint actions, its greatest value is of each agent's best action."""
    module = make()
    obs = make_batch(module, 20)["obs"]
    obs["mask"] = torch.ones_like(obs["mask"])
    outputs = module.forward_train({"obs": obs})
    joint = torch.cartesian_prod(*(torch.arange(size) for size in SIZES))
    totals = torch.stack([module.mix(outputs, actions.expand(20, -1)) for actions in joint])
    best = module.mix(outputs, outputs["qf_preds"].argmax(-1))
    torch.testing.assert_close(totals.amax(0), best)


def test_agents_that_are_not_there_make_no_difference() -> None:
    module = make(space(**STATE))
    obs = make_batch(module, 10)["obs"]
    obs["mask"] = torch.tensor([1, 0, 1], dtype=obs["mask"].dtype).expand(10, -1)
    other = {**obs, "agents": obs["agents"].clone()}
    other["agents"][:, 1] += 1
    totals = [
        module.mix(module.forward_train({"obs": seen}), torch.tensor(actions).expand(10, -1))
        for seen in (obs, other)
        for actions in ([1, 0, 2], [1, 3, 2])
    ]
    for total in totals[1:]:
        torch.testing.assert_close(total, totals[0])


def test_actions_that_are_not_there_are_never_best() -> None:
    module = make(space(**MASKED), action_mask_key="action_mask")
    obs = make_batch(module, 10)["obs"]
    mask = torch.ones(10, sum(SIZES), dtype=torch.int8)
    mask[:, [0, 2, 3, 4, 6, 7]] = 0  # left: 1 of two, 3 of four, 2 of three
    outputs = module.forward_train({"obs": {**obs, "action_mask": mask}})
    assert outputs["qf_preds"].argmax(-1).tolist() == [[1, 3, 2]] * 10
    assert module.action_dist.mode(outputs["action_dist_inputs"]).tolist() == [[1, 3, 2]] * 10
    assert outputs["action_dist_inputs"].shape == (10, sum(SIZES))


@pytest.mark.parametrize(
    ("observation_space", "action_space", "config", "error", "message"),
    [
        (space(), gym.spaces.Discrete(3), {}, TypeError, "AgentsAsOne"),
        (gym.spaces.Box(-1, 1, (3,)), ACTIONS, {}, TypeError, "AgentsAsOne"),
        (space(), gym.spaces.MultiDiscrete([2, 2]), {}, TypeError, "of 3 agents, but actions of 2"),
        (space(), ACTIONS, {"noisy": True}, ValueError, "neither noisy layers"),
    ],
)
def test_what_it_cannot_use_is_refused(
    observation_space: Any, action_space: Any, config: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MixedQModule(observation_space, action_space, ModuleConfig(**config))
