"""Samplers for simulators: they take observations, return actions, and send episodes when they are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .answers import RLlinkError, ServerConfig, Weights

if TYPE_CHECKING:
    from .local_policy import LocalPolicy

_REFUSED_AS_OLD = ("stale_weights", "unknown_weights")


class Requests(Protocol):
    """The requests of a `Client` that samplers use.

    Attributes:
        extensions: name -> options of the extensions that the server granted.
    """

    extensions: dict[str, dict[str, Any]]

    def get_config(self) -> ServerConfig: ...

    def get_state(self) -> Weights: ...

    def send_episodes(self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None) -> int: ...

    def send_episodes_and_get_state(
        self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None
    ) -> Weights: ...

    def get_actions(self, episodes: Sequence[Mapping[str, Any]], explore: bool = True) -> list[Any]: ...


class RemoteSampler:
    """Requests actions from the server, with one request per step.

    Args:
        client: a connected client with the extension `actions`.
        explore: whether actions are sampled; otherwise the most likely ones are chosen.
    """

    def __init__(self, client: Requests, explore: bool = True) -> None:
        if "actions" not in client.extensions:
            raise ValueError("the server has not granted the extension actions")
        self._client = client
        self._explore = explore
        self._agents: dict[str, set[str]] = {}  # env episode -> its agents

    def begin(self, episode: str, obs: Any, agent_id: str | None = None, task: str | None = None) -> Any:
        """Begin an episode (of a task if the run uses tasks), and return its first action."""
        observed = {"id": episode, "obs": obs}
        if agent_id is not None:
            self._agents.setdefault(episode, set()).add(agent_id)
        return self._act(observed if task is None else {**observed, "task": task}, agent_id)

    def step(
        self,
        episode: str,
        obs: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        agent_id: str | None = None,
        env_continues: bool = False,
    ) -> Any:
        """Add a step and return the next action, or None if the episode is over; see `LocalSampler.step`."""
        flags = {"is_terminated": bool(terminated), "is_truncated": bool(truncated)}
        if agent_id is not None and (terminated or truncated):
            self._agents.get(episode, set()).discard(agent_id)
            if not self._agents.get(episode):
                self._agents.pop(episode, None)
                flags |= _env_end(self._client, env_continues)
        try:
            return self._act({"id": episode, "obs": obs, "reward": float(reward), **flags}, agent_id)
        except RLlinkError as error:
            if error.code != "unknown_episode":
                raise
            # After a restart of the server, the episode begins here for the server.
            return None if terminated or truncated else self.begin(episode, obs, agent_id)

    def _act(self, observed: dict[str, Any], agent_id: str | None) -> Any:
        if agent_id is not None:
            observed["agent_id"] = agent_id
        return self._client.get_actions([observed], self._explore)[0]


class _Chunk:
    """The unsent part of an episode."""

    def __init__(self, id_: str, obs: Any, state: Any, task: str | None) -> None:
        self.id = id_
        self.task = task
        self.state = state
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("actions", "rewards", "action_logp", "action_dist_inputs")
        }
        self.obs = [obs]
        self.newest_reward = 0.0
        self.t_started = 0

    def message(self, agent_id: str | None, terminated: bool = False, truncated: bool = False) -> dict[str, Any]:
        num_steps = self.num_steps  # the step of the last action may be incomplete
        message: dict[str, Any] = {
            "id": self.id,
            "obs": _packed(self.obs),
            **{name: _packed(values[:num_steps]) for name, values in self.columns.items() if values[0] is not None},
            "is_terminated": terminated,
            "is_truncated": truncated,
            "t_started": self.t_started,
        }
        if self.task is not None and self.t_started == 0:
            message["task"] = self.task
        return message if agent_id is None else {**message, "agent_id": agent_id}

    @property
    def num_steps(self) -> int:
        return len(self.columns["rewards"])

    def forget_sent(self) -> None:
        """Drop the sent steps."""
        num_steps = self.num_steps
        self.t_started += num_steps
        self.obs = self.obs[-1:]
        self.columns = {name: values[num_steps:] for name, values in self.columns.items()}


class LocalSampler:
    """Chooses actions with the policy of the server, and sends episodes back.

    Messages contain `env_steps_per_sample` env steps or slightly more. If the server forces on-policy sampling, the
    step that completes a message waits for the next weights; otherwise new weights are fetched as soon as they exist.

    Args:
        client: a connected client.
        rng: random generator for samples.
        explore: whether actions are sampled; otherwise the most likely ones are chosen.

    Attributes:
        weights_seq_no: number of the weights in use.
    """

    def __init__(self, client: Requests, rng: np.random.Generator, explore: bool = True) -> None:
        self._client = client
        self._rng = rng
        self._explore = explore
        self._config = client.get_config()
        self._chunks: dict[tuple[str | None, str], _Chunk] = {}
        self._ready: list[dict[str, Any]] = []
        self._num_ready = 0.0
        self._policies: dict[str | None, LocalPolicy] = {}
        self._take(client.get_state())

    def begin(self, episode: str, obs: Any, agent_id: str | None = None, task: str | None = None) -> Any:
        """Begin an episode (of a task if the run uses tasks), and return its first action."""
        key = agent_id, episode
        self._chunks[key] = _Chunk(episode, _copied(obs), None, task)
        return self._act(key)

    def step(
        self,
        episode: str,
        obs: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        agent_id: str | None = None,
        env_continues: bool = False,
    ) -> Any:
        """Add a step and return the next action, or None if the episode is over.

        Args:
            episode: name of the episode; with several agents, of the env episode.
            obs: the observation after the step.
            reward: reward of the step.
            terminated, truncated: whether and how the agent's episode ends.
            agent_id: the agent, or None with a single agent.
            env_continues: whether further agents will begin in the env episode, although all current agents end.
        """
        key = agent_id, episode
        chunk = self._chunks[key]
        chunk.obs.append(_copied(obs))
        chunk.columns["rewards"].append(float(reward))
        chunk.newest_reward = float(reward)
        self._num_ready += 1 / len(self._config.agents or [None])  # in env steps; each agent contributes a part of one
        is_done = bool(terminated or truncated)
        if is_done:
            is_truncated = bool(truncated) and not terminated
            message = chunk.message(agent_id, bool(terminated), is_truncated)
            del self._chunks[key]
            if agent_id is not None and all(name != episode for _, name in self._chunks):
                message |= _env_end(self._client, env_continues)
            self._ready.append(message)
        if self._num_ready >= self._config.env_steps_per_sample:
            self.flush()
        return None if is_done else self._act(key)

    def flush(self) -> None:
        """Send all steps now."""
        for (agent_id, _), chunk in self._chunks.items():
            if chunk.num_steps:
                self._ready.append(chunk.message(agent_id))
                chunk.forget_sent()
        episodes, self._ready, self._num_ready = self._ready, [], 0.0
        if episodes:
            self._send(episodes)

    def _send(self, episodes: list[dict[str, Any]]) -> None:
        try:
            if self._config.force_on_policy:
                self._take(self._client.send_episodes_and_get_state(episodes, self.weights_seq_no))
            elif self._client.send_episodes(episodes, self.weights_seq_no) != self.weights_seq_no:
                self._take(self._client.get_state())
        except RLlinkError as error:
            if error.code not in _REFUSED_AS_OLD:
                raise
            # These steps are lost; `t_started` of the next chunks shows the gap to the server.
            self._take(self._client.get_state())

    def _take(self, weights: Weights) -> None:
        from .local_policy import LocalPolicy

        self.weights_seq_no = weights.seq_no
        self._policies = {module_id: LocalPolicy(content) for module_id, content in weights.files.items()}

    def _act(self, key: tuple[str | None, str]) -> Any:
        chunk = self._chunks[key]
        policy = self._policies[None if key[0] is None else self._module_of(key[0])]
        action, extra = policy.act(chunk.obs[-1], chunk.state, self._explore, self._rng, chunk.newest_reward)
        chunk.state = extra["state_out"]
        chunk.columns["actions"].append(extra["unclipped_actions"])
        for name in ("action_logp", "action_dist_inputs"):
            chunk.columns[name].append(extra[name])
        return action

    def _module_of(self, agent_id: str) -> str:
        assert self._config.agents is not None
        return str(self._config.agents[agent_id]["module"])


def _env_end(client: Requests, env_continues: bool) -> dict[str, bool]:
    """Return the message keys that report the end of an env episode, if it ends and the server supports them."""
    return {} if env_continues or "env_ends" not in client.extensions else {"is_env_done": True}


def _copied(obs: Any) -> Any:
    """Copy an observation, because the simulator may overwrite it."""
    if isinstance(obs, Mapping):
        return {key: _copied(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_copied(part) for part in obs)
    return np.array(obs)


def _packed(items: list[Any]) -> Any:
    """Stack arrays to one array; nested items stay a list."""
    return items if isinstance(items[0], (Mapping, tuple)) else np.stack([np.asarray(item) for item in items])
