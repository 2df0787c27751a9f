"""Modules that are evaluated together, with shared encoders or with critics that read data of other agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from runner.compat.torch_functions import submodules
from runner.config.errors import ChoiceError
from runner.modules.layers import make_head
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule

# Module id -> the module's batch, or its outputs.
Batches = Mapping[str, Mapping[str, Any]]
Outputs = dict[str, dict[str, Any]]

# Replaces a module id if parameters or states belong to all modules together.
ALL_MODULES = "__all_modules__"


@dataclass(frozen=True)
class RunAgents:
    """The agents of a run.

    Attributes:
        observation_spaces: agent id -> space of the observations in its episodes.
        teams: name of a team -> its agents; agents may be without a team.
        state_space: space of `state` in the environment's infos, or None.
    """

    observation_spaces: Mapping[str, gym.Space[Any]]
    teams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    state_space: gym.Space[Any] | None = None


class MultiRLModule(nn.Module):
    """The modules of a run by id, evaluated together; this class evaluates each module separately.

    Subclasses may share layers between modules (`one.encoder = other.encoder`) and add further networks, such as a
    common critic. They override the passes in which modules are evaluated together. A pass gets the batches of some or
    all modules. Rows of different modules are unrelated.

    Args:
        modules: module id -> module, made according to `module` and `multi_agent.modules`.

    Attributes:
        train_inputs: columns of each module's train batch that `forward_train` and `compute_values` read in addition to
            the module's `inputs`.
    """

    train_inputs: tuple[str, ...] = ()

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__()
        self._by_id = dict(modules)
        for module_id, module in self._by_id.items():
            self.add_module(_registered_name(module_id), module)

    def use_agents(self, agents: RunAgents) -> None:
        """Set the agents of the run, and make networks that depend on them; called once, before the first pass."""

    def __getitem__(self, module_id: str) -> RLModule:
        return self._by_id[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> Iterable[tuple[str, RLModule]]:
        """Return (module id, module) of each module."""
        return self._by_id.items()

    def forward_inference(self, batches: Batches) -> Outputs:
        """Return the outputs of each module for acting greedily; see `RLModule.forward_inference`."""
        return {module_id: self._by_id[module_id].forward_inference(batch) for module_id, batch in batches.items()}

    def forward_exploration(self, batches: Batches) -> Outputs:
        """Return the outputs of each module for acting and exploring; see `RLModule.forward_exploration`."""
        return {module_id: self._by_id[module_id].forward_exploration(batch) for module_id, batch in batches.items()}

    def forward_train(self, batches: Batches) -> Outputs:
        """Return the outputs of each module for its loss; see `RLModule.forward_train`."""
        return {module_id: self._by_id[module_id].forward_train(batch) for module_id, batch in batches.items()}

    def compute_values(self, batches: Batches) -> dict[str, Tensor]:
        """Return the values of each module's observations; see `RLModule.compute_values`."""
        return {module_id: self._by_id[module_id].compute_values(batch) for module_id, batch in batches.items()}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameter groups of all modules, merged by name; other learned parameters are in `default`."""
        groups: dict[str, list[nn.Parameter]] = {}
        seen: set[nn.Parameter] = set()
        named = [pair for module in self._by_id.values() for pair in module.parameter_groups().items()]
        for name, parameters in (*named, ("default", list(self.parameters()))):
            new = [one for one in dict.fromkeys(parameters) if one.requires_grad and one not in seen]
            if new:
                groups.setdefault(name, []).extend(new)
                seen.update(new)
        return groups

    def freeze_untrained(self, trained: Iterable[str]) -> None:
        """Freeze parameters that belong only to modules that are not trained."""
        trained = set(trained)
        of_modules = {one for module in self._by_id.values() for one in module.parameters()}
        of_trained = {one for module_id in trained for one in self._by_id[module_id].parameters()}
        parts = [part for name, part in self.named_children() if not name.startswith("[")]
        beside = {one for part in parts for one in part.parameters()} | set(self.parameters(recurse=False))
        for parameter in of_modules - of_trained - beside:
            parameter.requires_grad_(False)


def _registered_name(module_id: str) -> str:
    """Return a name for an id that is valid in state dicts and does not clash with an attribute."""
    return f"[{module_id.replace('.', '%2E')}]"


def parameters_by_module(learners: Mapping[str, Any]) -> dict[str, Any]:
    """Return module id -> parameters by name, from the state of each learner of a group."""
    if ALL_MODULES not in learners:
        return {module_id: state["module"] for module_id, state in learners.items()}
    found = {module_id: state["module"] for module_id, state in learners.items() if module_id != ALL_MODULES}
    for name, value in learners[ALL_MODULES]["module"].items():
        owner, _, rest = name.partition("].")
        if name.startswith("[") and rest:
            found.setdefault(owner[1:].replace("%2E", "."), {})[rest] = value
    return found


def member_of(together: MultiRLModule, module_id: str, joint_pass: JointPass | None = None) -> RLModule:
    """Return one of the modules, with passes through the MultiRLModule; see `_Member`."""
    return cast(RLModule, _Member(together, module_id, joint_pass))


def members_in(networks: Mapping[str, RLModule | MultiRLModule]) -> dict[str, RLModule]:
    """Return the modules by id, like `modules_in`; modules of a MultiRLModule use its passes."""
    found: dict[str, RLModule] = {}
    for key, network in networks.items():
        if isinstance(network, MultiRLModule):
            found |= {module_id: member_of(network, module_id) for module_id in network}
        else:
            found[key] = network
    return found


def modules_in(networks: Mapping[str, RLModule | MultiRLModule]) -> dict[str, RLModule]:
    """Return the modules by id, from a dict of modules or from a MultiRLModule under its key."""
    found: dict[str, RLModule] = {}
    for key, network in networks.items():
        found |= dict(network.items()) if isinstance(network, MultiRLModule) else {key: network}
    return found


class _Member:
    """One module of a `MultiRLModule`, with the interface of an RLModule; its passes use the MultiRLModule.

    Args:
        together: the MultiRLModule.
        module_id: id of this module.
        joint_pass: a training pass over the batches of several modules, or None if each pass has one batch.
    """

    def __init__(self, together: MultiRLModule, module_id: str, joint_pass: JointPass | None = None) -> None:
        self._together = together
        self._id = module_id
        self._module = together[module_id]
        self._joint_pass = joint_pass
        self.learner_inputs = tuple(dict.fromkeys((*self._module.learner_inputs, *together.train_inputs)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the module, so that a member is an instance of it."""
        return self._module.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `RLModule`."""
        return self._together.forward_inference({self._id: batch})[self._id]

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `RLModule`."""
        return self._together.forward_exploration({self._id: batch})[self._id]

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `RLModule`; with gradients, a batch of the joint pass is evaluated together with the others."""
        joint = self._joint_pass if torch.is_grad_enabled() else None  # its outputs are kept for the losses
        if joint is not None and joint.batches.get(self._id) is batch:
            return joint.outputs()[self._id]
        return self._together.forward_train({self._id: batch})[self._id]

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """See `RLModule`."""
        return self._together.compute_values({self._id: batch})[self._id]

    def outputs_at_steps(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `RLModule`."""
        return self._module.at_steps(self.forward_train(batch), batch)


class JointPass:
    """A training pass over the batches of several modules, computed when the first loss needs it.

    Attributes:
        together: the modules.
        batches: module id -> batch.
    """

    def __init__(self, together: MultiRLModule, batches: Batches) -> None:
        self.together = together
        self.batches = batches
        self._outputs: Outputs | None = None

    def outputs(self) -> Outputs:
        """Return the outputs of all modules."""
        if self._outputs is None:
            self._outputs = self.together.forward_train(self.batches)
        return self._outputs


_READS = ("observations", "state")


class SharedEncoders(MultiRLModule):
    """Modules that share the encoders of equal observations, with separate recurrent layers and heads.

    Raises:
        ValueError: a module does not have an `encoder`, or encoders of equal observations differ.
    """

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__(modules)
        _share_encoders(modules)


class CentralisedCritic(MultiRLModule):
    """V(o_1, ..., o_A, i) of the observations of all agents, or V(s, i) of the state, for the rows of agent i.

    Only training uses the critic, so each module acts without it. There is one critic for all agents, or one for each
    team of `multi_agent.teams` and one for the agents without a team. Observations of absent agents are zeros, and
    marked by a mask. Widths, activations and initialisers come from the first module's configuration. The modules' own
    value functions are not trained.

    Args:
        modules: see `MultiRLModule`.
        reads: `observations` of all agents (written by `AddObservationsOfAllAgentsToTrainBatch`), or `state` (written
            by `AddStatesFromInfosToTrainBatch`).
        share_encoders: whether modules with equal observations share the encoder of their policies.
        fcnet_hiddens: widths of the critic's hidden layers; null: the widths of the first module's encoder.

    Raises:
        ValueError: `reads` is unknown, or encoders cannot be shared.
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
            ValueError: the critic reads the state, but the environment does not define one.
        """
        ids = list(agents.observation_spaces)
        seen: dict[str, gym.Space[Any]] = {"agent": gym.spaces.Discrete(len(ids))}
        if not self._reads_state:
            seen["mask"] = gym.spaces.MultiBinary(len(ids))
            seen["agents"] = gym.spaces.Dict(dict(agents.observation_spaces))
        elif agents.state_space is None:
            raise ValueError("the critic reads the state, but the environment does not define `state_space`")
        else:
            seen["state"] = agents.state_space
        team_of = {agent: team for team, members in agents.teams.items() for agent in members}
        names = list(dict.fromkeys(team_of.get(agent) for agent in ids))
        self.critics.extend(_Critic(gym.spaces.Dict(seen), self._config) for _ in names)
        places = [names.index(team_of.get(agent)) for agent in ids]
        self.register_buffer("_critic_of_agent", torch.tensor(places), persistent=False)

    def forward_train(self, batches: Batches) -> Outputs:
        """Return the outputs of each module, with `vf_preds` from the critic."""
        outputs, values = super().forward_train(batches), self.compute_values(batches)
        return {module_id: {**outputs[module_id], "vf_preds": values[module_id]} for module_id in batches}

    def compute_values(self, batches: Batches) -> dict[str, Tensor]:
        """Return (B,) values of the rows of each module; if stateful (S, L)."""
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
    """An encoder of the critic's inputs, and a value head with output (B, 1)."""

    def __init__(self, space: gym.spaces.Dict, config: Any) -> None:
        encoder = ObservationEncoder(space, config)
        super().__init__(encoder, make_head(encoder.num_outputs, config, 1))

    def forward(self, seen: Any) -> Tensor:
        """Return values (B,), where B is the product of all leading dimensions."""
        layers = submodules(self)
        values: Tensor = layers["1"](layers["0"](seen))
        return values.squeeze(-1)


def _share_encoders(modules: Mapping[str, RLModule]) -> None:
    """Make modules with equal observations use the encoder of the first of them; see `SharedEncoders`."""
    first_of: list[tuple[gym.Space[Any], str, Any]] = []
    for module_id, module in modules.items():
        encoder = getattr(module, "encoder", None)
        if not isinstance(encoder, nn.Module):
            raise ValueError(f"module {module_id}, a {type(module).__name__}, does not have an `encoder` to share")
        same = next(((id_, one) for space, id_, one in first_of if space == module.observation_space), None)
        if same is None:
            first_of.append((module.observation_space, module_id, encoder))
            continue
        shapes, others = ([tuple(one.shape) for one in part.parameters()] for part in (encoder, same[1]))
        if shapes != others or repr(encoder) != repr(same[1]):
            raise ValueError(f"modules {same[0]} and {module_id} have equal observations but different encoders")
        module.encoder = same[1]
