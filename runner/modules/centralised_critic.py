"""Modules of agents that act alone and learn with a critic that sees more: the observations of all, or the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from runner.compat.torch_functions import submodules
from runner.config.errors import ChoiceError
from runner.modules.actor_critic_module import head_options
from runner.modules.mlp import MLP
from runner.modules.multi_rl_module import Batches, MultiRLModule, Outputs, RunAgents
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule

_READS = ("observations", "state")


class SharedEncoders(MultiRLModule):
    """Modules that share the encoders of equal observations; their memories and heads are their own.

    Raises:
        ValueError: a module has no `encoder`, or encoders of equal observations differ.
    """

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__(modules)
        _share_encoders(modules)


class CentralisedCritic(MultiRLModule):
    """V(o_1, ..., o_A, i) of the observations of all agents, or V(s, i) of the state, for the rows of agent i.

    The critic reads the train batch alone, so that each module acts without it. There is one for all agents, or one for
    each team of `multi_agent.teams` and one for the agents in none. Observations of agents that are not there are
    zeros, and a mask says so. Its widths, activations and initialisers are of the first module's configuration. The
    modules' own value functions stay untrained.

    Args:
        modules: see `MultiRLModule`.
        reads: `observations` of all agents (`AddObservationsOfAllAgentsToTrainBatch` writes them), or `state`
            (`AddStatesFromInfosToTrainBatch` does).
        share_encoders: modules with equal observations share the encoder of their policies.
        fcnet_hiddens: widths of the critic's hidden layers; null: as many as the first module's encoder has.

    Raises:
        ValueError: unknown `reads`, or encoders that cannot be shared.
    """

    def __init__(
        self,
        modules: Mapping[str, RLModule],
        reads: str = "observations",
        share_encoders: bool = False,
        fcnet_hiddens: Sequence[int] | None = None,
    ) -> None:
        super().__init__(modules)
        if reads not in _READS:
            raise ChoiceError("reads", reads, _READS)
        if share_encoders:
            _share_encoders(modules)
        self._reads_state = reads == "state"
        seen = ("state",) if self._reads_state else ("obs_of_agents", "agents_mask")
        self.train_inputs = (*seen, "agent_index")
        config = next(iter(modules.values())).config
        self._config = config if fcnet_hiddens is None else replace(config, fcnet_hiddens=list(fcnet_hiddens))
        self.critics = nn.ModuleList()

    def use_agents(self, agents: RunAgents) -> None:
        """Make the critics; see `MultiRLModule`.

        Raises:
            ValueError: the critic reads the state, and the environment has none.
        """
        ids = list(agents.observation_spaces)
        seen: dict[str, gym.Space[Any]] = {"agent": gym.spaces.Discrete(len(ids))}
        if not self._reads_state:
            seen["mask"] = gym.spaces.MultiBinary(len(ids))
            seen["agents"] = gym.spaces.Dict(dict(agents.observation_spaces))
        elif agents.state_space is None:
            raise ValueError("the critic reads the state, and the environment has no `state_space`")
        else:
            seen["state"] = agents.state_space
        team_of = {agent: team for team, members in agents.teams.items() for agent in members}
        names = list(dict.fromkeys(team_of.get(agent) for agent in ids))
        self.critics.extend(_Critic(gym.spaces.Dict(seen), self._config) for _ in names)
        places = [names.index(team_of.get(agent)) for agent in ids]
        self.register_buffer("_critic_of_agent", torch.tensor(places), persistent=False)

    def forward_train(self, batches: Batches) -> Outputs:
        """Return the outputs of each module, with `vf_preds` of the critic."""
        outputs, values = super().forward_train(batches), self.compute_values(batches)
        return {module_id: {**outputs[module_id], "vf_preds": values[module_id]} for module_id in batches}

    def compute_values(self, batches: Batches) -> dict[str, Tensor]:
        """Return (B,) values of the rows of each module; with memory (S, L)."""
        return {module_id: self._values(batch) for module_id, batch in batches.items()}

    def _values(self, batch: Mapping[str, Any]) -> Tensor:
        agent: Tensor = batch["agent_index"]
        seen = {"agent": agent}
        if self._reads_state:
            seen["state"] = batch["state"]
        else:
            seen |= {"mask": batch["agents_mask"], "agents": batch["obs_of_agents"]}
        if len(self.critics) == 1:
            only: Tensor = self.critics[0](seen)
            return only.reshape(agent.shape)
        values = torch.stack([critic(seen) for critic in self.critics], -1)  # (B, critics)
        chosen = self._critic_of_agent[agent.reshape(-1).long()]
        return values.gather(-1, chosen.unsqueeze(-1)).reshape(agent.shape)

    _critic_of_agent: Tensor


class _Critic(nn.Sequential):
    """An encoder of what the critic sees, and a value head: (B, 1) of it."""

    def __init__(self, space: gym.spaces.Dict, config: Any) -> None:
        encoder = ObservationEncoder(space, config)
        super().__init__(encoder, MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), 1))

    def forward(self, seen: Any) -> Tensor:
        """Return values (B,), B all leading rows."""
        layers = submodules(self)
        values: Tensor = layers["1"](layers["0"](seen))
        return values.squeeze(-1)


def _share_encoders(modules: Mapping[str, RLModule]) -> None:
    """Let modules with equal observations have the encoder of the first of them; see `SharedEncoders`."""
    first_of: list[tuple[gym.Space[Any], str, Any]] = []
    for module_id, module in modules.items():
        encoder = getattr(module, "encoder", None)
        if not isinstance(encoder, nn.Module):
            raise ValueError(f"module {module_id}, a {type(module).__name__}, has no `encoder` to share")
        same = next(((id_, one) for space, id_, one in first_of if space == module.observation_space), None)
        if same is None:
            first_of.append((module.observation_space, module_id, encoder))
            continue
        shapes, others = ([tuple(one.shape) for one in part.parameters()] for part in (encoder, same[1]))
        if shapes != others or repr(encoder) != repr(same[1]):
            raise ValueError(f"modules {same[0]} and {module_id} have equal observations, but other encoders")
        module.encoder = same[1]
