"""PettingZoo's environments, parallel and turn-based, as a `MultiAgentEnv`."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from runner.config.errors import nearest_match
from runner.env_runners.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

# A checkpoint's configuration may name an environment; only modules of these packages are imported for it.
_PACKAGES = ("pettingzoo", "mpe2")


class PettingZooEnv(MultiAgentEnv):
    """An environment of the PettingZoo library.

    Args:
        name: its module, for example `pettingzoo.sisl.pursuit_v5` or `mpe2.simple_spread_v3`.
        kind: `parallel` (all agents act in each step), `turn_based` (PettingZoo's AEC: one agent a step), or `auto`:
            parallel where the module offers it.
        state: put the environment's state into each agent's info, for critics that read it.
        others: keyword arguments of the environment's constructor.

    Attributes:
        state_space: of the state; None: infos have none.

    Raises:
        ValueError: another package, an unknown module or kind, or an environment without a state.
    """

    def __init__(self, name: str, kind: str = "auto", state: bool = False, **others: Any) -> None:
        module = _import_module(name)
        if kind not in ("auto", "parallel", "turn_based"):
            raise ValueError(f"kind is auto, parallel or turn_based, not {kind!r}")
        self._is_parallel = hasattr(module, "parallel_env") if kind == "auto" else kind == "parallel"
        if self._is_parallel and not hasattr(module, "parallel_env"):
            raise ValueError(f"{name} has no parallel form, use kind: turn_based")
        self._env: Any = (module.parallel_env if self._is_parallel else module.env)(**others)
        self.metadata = {"render_fps": self._env.metadata.get("render_fps")}
        self.state_space = getattr(self._env, "state_space", None) if state else None
        if state and self.state_space is None:
            raise ValueError(f"{name} has no state_space, so that its state cannot be given")
        self.possible_agents = list(self._env.possible_agents)
        self.observation_spaces = {agent: self._env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: self._env.action_space(agent) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        if self._is_parallel:
            obs, infos = self._env.reset(seed=seed, options=options)
            return dict(obs), self._with_state(obs, infos)
        self._env.reset(seed=seed, options=options)
        self._ended: set[str] = set()
        agent = self._env.agent_selection
        obs = {agent: self._env.observe(agent)}
        return obs, self._with_state(obs, {agent: self._env.infos[agent]})

    def step(self, actions: AgentDict) -> StepDicts:
        """Step all agents, or the one whose turn it is."""
        if not self._is_parallel:
            return self._step_turn(actions)
        obs, rewards, terminateds, truncateds, infos = self._env.step(dict(actions))
        return dict(obs), dict(rewards), dict(terminateds), dict(truncateds), self._with_state(obs, infos)

    def state(self) -> Any:
        """Return the environment's state."""
        return self._env.state()

    def _with_state(self, obs: AgentDict, infos: AgentDict) -> AgentDict:
        """Return the infos, with the state for each agent that is observed."""
        if self.state_space is None:
            return dict(infos)
        state = self.state()
        return {**infos, **{agent: {**infos.get(agent, {}), "state": state} for agent in obs}}

    def _step_turn(self, actions: AgentDict) -> StepDicts:
        """Step the agent whose turn it is; observe the next one and all whose episodes ended by the step."""
        env = self._env
        env.step(actions[env.agent_selection])
        rewards = {agent: float(env.rewards[agent]) for agent in env.agents}
        terminateds = {agent: bool(env.terminations[agent]) for agent in env.agents}
        truncateds = {agent: bool(env.truncations[agent]) for agent in env.agents}
        ended = [agent for agent in env.agents if terminateds[agent] or truncateds[agent]]
        obs = {agent: env.observe(agent) for agent in ended if agent not in self._ended}
        infos = {agent: dict(env.infos[agent]) for agent in ended}
        self._ended.update(ended)
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # PettingZoo takes ended agents out one by one
        if env.agents:
            agent = env.agent_selection
            obs[agent], infos[agent] = env.observe(agent), dict(env.infos[agent])
        terminateds["__all__"] = not env.agents and not any(truncateds.values())
        truncateds["__all__"] = not env.agents and any(truncateds.values())
        return obs, rewards, terminateds, truncateds, self._with_state(obs, infos)

    def render(self) -> Any:
        """Return what the environment draws, a picture with `render_mode: rgb_array`."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _import_module(name: str) -> Any:
    package = name.partition(".")[0]
    if package not in _PACKAGES:
        raise ValueError(
            f"{name} is no module of {' or '.join(_PACKAGES)}; wrap other environments in a class of yours"
        )
    try:
        with warnings.catch_warnings():
            # 1.27 deprecates these modules for a registry, which the oldest version that we admit has not.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not name.startswith(missing):
            raise ValueError(f"{name} needs the package {missing}: pip install {missing}") from error
        hint = nearest_match(name.rpartition(".")[2], _siblings(name))
        raise ValueError(f"there is no {name}" + (f"; did you mean {hint}?" if hint else "")) from error
    if not (callable(getattr(module, "env", None)) or hasattr(module, "parallel_env")):
        raise ValueError(f"{name} is no environment: it has neither env nor parallel_env")
    return module


def _siblings(name: str) -> list[str]:
    import pkgutil

    try:
        parent = importlib.import_module(name.rpartition(".")[0])
    except ImportError:
        return []
    return [module.name for module in pkgutil.iter_modules(parent.__path__)]
