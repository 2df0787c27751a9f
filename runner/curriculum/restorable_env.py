"""An environment whose running episode can be restored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from runner.env_runners.env_states import (
    defines_state,
    has_own_state,
    lasting_wrappers,
    layers_of,
    restore,
    state_of,
)
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.replayed_actions import as_given
from runner.episodes import nested


class RestorableEnv:
    """Steps an environment, and restores its episode from its own state or by replaying the actions so far.

    As in `SyncEnvironments`, its own state is used if none of its wrappers keeps lists or deques. Before a replay,
    wrappers get the state that they had when the episode began. An environment with several agents is a single layer.

    Args:
        env: a `gymnasium.Env` or a `MultiAgentEnv`.

    Attributes:
        env: the environment.
        has_begun: whether it was ever reset.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.has_begun = False
        self._has_several_agents = isinstance(env, MultiAgentEnv)
        self._layers = [env] if self._has_several_agents else layers_of(env)
        self._saves_state = all(map(defines_state, self._layers[:-1])) and has_own_state(self._layers[-1])
        self._lasting = [] if self._has_several_agents else lasting_wrappers(env)
        self._at_start: list[dict[str, Any]] = []
        self._actions: list[Any] = []

    def reset(self, seed: int | None, options: Mapping[str, Any]) -> Any:
        """Reset the environment, with options if there are any."""
        self.has_begun = True
        self._actions = []
        if not self._saves_state:
            self._at_start = [state_of(wrapper) for wrapper in self._lasting]
        return self.env.reset(seed=seed, **({"options": copy.deepcopy(dict(options))} if options else {}))

    def step(self, action: Any) -> Any:
        """Take a step."""
        if not self._saves_state:
            self._actions.append(copy.deepcopy(action))  # the environment may write into its own
        return self.env.step(action)

    def get_state(self, is_running: bool) -> dict[str, Any]:
        """Return the state that the next step depends on, or the next reset if no episode is running."""
        if self._saves_state:
            return {"layers": [state_of(layer) for layer in self._layers]}
        if not is_running:
            return {"lasting": [state_of(wrapper) for wrapper in self._lasting]}
        actions = list(self._actions) if self._has_several_agents or not self._actions else nested.stack(self._actions)
        return {"lasting": list(self._at_start), "actions": actions}

    def set_state(self, state: Mapping[str, Any], begin: Callable[[], Any]) -> None:
        """Restore a state of `get_state`.

        Args:
            state: state of an environment of the same kind.
            begin: resets as at the beginning of the episode that ran.
        """
        for wrapper, wrapper_state in zip(self._lasting, state.get("lasting", ()), strict=False):
            restore(wrapper, wrapper_state)
        begin()
        if "layers" in state:
            for layer, layer_state in zip(self._layers, state["layers"], strict=True):
                restore(layer, layer_state)
        elif "actions" in state:
            actions = state["actions"]
            for action in actions if isinstance(actions, list) else nested.unstack(actions):
                given = as_given(action, self.env.action_spaces) if self._has_several_agents else action
                self.step(copy.deepcopy(given))
        else:  # no episode ran
            for wrapper, wrapper_state in zip(self._lasting, state["lasting"], strict=False):
                restore(wrapper, wrapper_state)
