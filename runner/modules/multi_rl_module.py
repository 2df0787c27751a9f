"""A module of modules: all modules of a run, evaluated together; and agents that learn with a critic that sees more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from runner.compat.torch_functions import submodules
from runner.config.errors import ChoiceError
from runner.modules.actor_critic_module import head_options
from runner.modules.layers import MLP
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule

# Module id -> the module's batch, or its outputs.
Batches = Mapping[str, Mapping[str, Any]]
Outputs = dict[str, dict[str, Any]]

# Stands for a module id where parameters or states are of all modules together.
ALL_MODULES = "__all_modules__"


@dataclass(frozen=True)
class RunAgents:
    """The agents of a run.

    Attributes:
        observation_spaces: agent id -> space of the observations that its episodes hold.
        teams: name of a team -> its agents; not every agent is in one.
        state_space: of what the environment's infos hold as `state`; None: they hold none.
    """

    observation_spaces: Mapping[str, gym.Space[Any]]
    teams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    state_space: gym.Space[Any] | None = None


class MultiRLModule(nn.Module):
    """The modules of a run by id, evaluated together; this one evaluates each module by itself.

    A class of one's own may let modules share parts (`one.encoder = other.encoder`), may have parts besides them (a
    critic for all), and overrides the passes in which modules are evaluated together. A pass gets the batches of the
    modules that take part, perhaps of one alone; rows of different modules do not belong together.

    Args:
        modules: module id -> module, made as `module` and `multi_agent.modules` say.

    Attributes:
        train_inputs: columns of each module's train batch that `forward_train` and `compute_values` read besides the
            module's `inputs`.
    """

    train_inputs: tuple[str, ...] = ()

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__()
        self._by_id = dict(modules)
        for module_id, module in self._by_id.items():
            self.add_module(_registered_name(module_id), module)

    def use_agents(self, agents: RunAgents) -> None:
        """Take the agents of the run, and make what depends on them; called once, before the first pass."""

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
        """Return the parameter groups of all modules, joined by name; other parameters that are learned: `default`."""
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
        """Freeze the parameters that belong to modules only, none of which is trained."""
        trained = set(trained)
        of_modules = {one for module in self._by_id.values() for one in module.parameters()}
        of_trained = {one for module_id in trained for one in self._by_id[module_id].parameters()}
        parts = [part for name, part in self.named_children() if not name.startswith("[")]
        beside = {one for part in parts for one in part.parameters()} | set(self.parameters(recurse=False))
        for parameter in of_modules - of_trained - beside:
            parameter.requires_grad_(False)


def _registered_name(module_id: str) -> str:
    """Return a name for state dicts, which torch admits for any id and no attribute has."""
    return f"[{module_id.replace('.', '%2E')}]"


def parameters_by_module(learners: Mapping[str, Any]) -> dict[str, Any]:
    """Return module id -> parameters by name, from the state of each learner of a group."""
    if ALL_MODULES not in learners:
        return {module_id: state["module"] for module_id, state in learners.items()}
    found: dict[str, Any] = {}
    for name, value in learners[ALL_MODULES]["module"].items():
        owner, _, rest = name.partition("].")
        if name.startswith("[") and rest:
            found.setdefault(owner[1:].replace("%2E", "."), {})[rest] = value
    return found


def member_of(together: MultiRLModule, module_id: str, joint_pass: JointPass | None = None) -> RLModule:
    """Return one of the modules, whose passes are passes of the MultiRLModule; see `_Member`."""
    return cast(RLModule, _Member(together, module_id, joint_pass))


def members_in(networks: Mapping[str, RLModule | MultiRLModule]) -> dict[str, RLModule]:
    """Return the modules by id, like `modules_in`; passes of the modules of a MultiRLModule are its passes."""
    found: dict[str, RLModule] = {}
    for key, network in networks.items():
        if isinstance(network, MultiRLModule):
            found |= {module_id: member_of(network, module_id) for module_id in network}
        else:
            found[key] = network
    return found


def modules_in(networks: Mapping[str, RLModule | MultiRLModule]) -> dict[str, RLModule]:
    """Return the modules by id, of modules by id or of a MultiRLModule under its key."""
    found: dict[str, RLModule] = {}
    for key, network in networks.items():
        found |= dict(network.items()) if isinstance(network, MultiRLModule) else {key: network}
    return found


class _Member:
    """One module of a `MultiRLModule`, with the methods of an RLModule: its passes are the MultiRLModule's.

    Args:
        together: the MultiRLModule.
        module_id: of this module.
        joint_pass: a training pass of the batches of several modules; None: each pass is of one batch.
    """

    def __init__(self, together: MultiRLModule, module_id: str, joint_pass: JointPass | None = None) -> None:
        self._together = together
        self._id = module_id
        self._module = together[module_id]
        self._joint_pass = joint_pass
        self.inputs = tuple(dict.fromkeys((*self._module.inputs, *together.train_inputs)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the module: a member is an instance of it."""
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
        """See `RLModule`; a batch of the joint pass is evaluated with the others, where gradients are wanted."""
        joint = self._joint_pass if torch.is_grad_enabled() else None  # what it gives is kept for the losses
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
    """A training pass of the batches of several modules at once, made when the first loss asks for it.

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
