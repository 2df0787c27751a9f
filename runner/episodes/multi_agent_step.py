"""One env step of several agents, as an environment reports it, and what is not allowed in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.episodes.multi_agent_fields import ALL, AgentID, MultiAgentFields
from runner.episodes.single_agent_episode import SingleAgentEpisode


@dataclass(slots=True)
class MultiAgentStep:
    """What agents did and what came back, each by agent id; a key that is there counts, whatever its value."""

    observations: Mapping[AgentID, Any]
    actions: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, Any]
    infos: Mapping[AgentID, Any]
    terminateds: Mapping[AgentID, Any]
    truncateds: Mapping[AgentID, Any]
    extra_model_outputs: Mapping[AgentID, dict[str, Any]]

    def agent_ids(self, episode: MultiAgentFields) -> list[AgentID]:
        """Return all agents that this step concerns: every one of `episode` if `__all__` is flagged."""
        ids = dict.fromkeys(self.observations)
        for agents in (self.actions, self.rewards, self.extra_model_outputs, self.terminateds, self.truncateds):
            if agents:
                ids.update(dict.fromkeys(agents))
        if ALL in ids:
            del ids[ALL]
            if self.terminateds.get(ALL) or self.truncateds.get(ALL):
                ids.update(dict.fromkeys(episode.agent_episodes))
        return list(ids)

    def flags_of(self, agent_id: AgentID) -> tuple[bool, bool]:
        """Return terminated and truncated: the agent's flags, or the flags of `__all__` if it has no flag set.

        An environment that sets `terminateds["__all__"]` to say "over" when a time limit has truncated each agent
        does not terminate them by it.
        """
        if not self.terminateds and not self.truncateds:
            return False, False
        flags = bool(self.terminateds.get(agent_id)), bool(self.truncateds.get(agent_id))
        return flags if any(flags) else (bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL)))


def check_step(episode: MultiAgentFields, step: MultiAgentStep, agent_ids: list[AgentID]) -> None:
    """Raise `ValueError` naming agent and env step for data that no trajectory can hold; nothing is changed."""
    for agent_id in agent_ids:
        problem = _problem(episode, step, agent_id)
        if problem is not None:
            at = f"env step {episode.env_t} of episode {episode.id_}"
            raise ValueError(f"add_env_step: agent {agent_id!r} {problem} ({at})")


def _problem(episode: MultiAgentFields, step: MultiAgentStep, agent_id: AgentID) -> str | None:
    agent_episode = episode.agent_episodes.get(agent_id)
    if agent_episode is None:
        if agent_id in episode._ended_agents:
            return _problem_after_end(step, agent_id)
        if agent_id in step.actions:
            return "acted, but has had no observation to act on; allowed: actions after the first observation"
        return None
    if agent_episode.is_done:
        return _problem_after_end(step, agent_id)
    waits = agent_id in episode._hanging_actions_end
    problem = _problem_of_action(agent_episode, step, agent_id, waits) or _problem_of_answer(step, agent_id, waits)
    if problem is None and agent_episode.is_numpy:
        return _problem_of_arrays(agent_episode, step, agent_id)
    return problem


def _problem_after_end(step: MultiAgentStep, agent_id: AgentID) -> str | None:
    data = ("observations", "actions", "rewards", "extra_model_outputs")
    got = [name for name in data if agent_id in getattr(step, name)]
    return f"has ended, but got {', '.join(got)}; allowed: nothing more for it" if got else None


def _problem_of_action(
    agent_episode: SingleAgentEpisode, step: MultiAgentStep, agent_id: AgentID, waits: bool
) -> str | None:
    if agent_id not in step.actions:
        if agent_id in step.extra_model_outputs:
            return "has extra_model_outputs without an action; allowed: outputs of the module along with its action"
        return None
    if waits:
        return "acted again before it got an observation for its last action; allowed: one action per observation"
    extra = step.extra_model_outputs.get(agent_id) or {}
    if extra.keys() != agent_episode.extra_model_outputs.keys() and agent_episode.rewards.len_incl_lookback() > 0:
        expected = sorted(agent_episode.extra_model_outputs)
        return f"has the extra_model_outputs {sorted(extra)}; allowed: {expected}, as in its first step"
    return None


def _problem_of_answer(step: MultiAgentStep, agent_id: AgentID, waits: bool) -> str | None:
    acts = agent_id in step.actions
    if agent_id in step.observations:
        if not acts and not waits:
            return "got an observation, but has not acted on the one before; allowed: one observation per action"
        if acts and agent_id not in step.rewards:
            return "acted and got an observation, but no reward; add it to rewards (0.0 if there is none)"
    elif acts or waits:
        terminated, truncated = step.flags_of(agent_id)
        if truncated and not terminated:
            return (
                "is truncated after it acted, but got no final observation; add it to observations "
                "(the value of what was cut off is estimated from it)"
            )
    return None


def _problem_of_arrays(agent_episode: SingleAgentEpisode, step: MultiAgentStep, agent_id: AgentID) -> str | None:
    """Check in numpy mode that the items fit the columns, before anything is appended for any agent."""
    fields = {"observations": agent_episode.observations, "actions": agent_episode.actions}
    for name, buffer in {**fields, "rewards": agent_episode.rewards}.items():
        given = getattr(step, name)
        try:
            if agent_id in given:
                buffer.as_row(given[agent_id])
        except (TypeError, ValueError) as error:
            return f"has {name} that do not fit its columns: {error}"
    extra = step.extra_model_outputs.get(agent_id) or {}
    for key, output in extra.items():
        try:
            if key in agent_episode.extra_model_outputs:
                agent_episode.extra_model_outputs[key].as_row(output)
        except (TypeError, ValueError) as error:
            return f"has extra_model_outputs[{key!r}] that do not fit its columns: {error}"
    return None
