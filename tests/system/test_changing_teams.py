"""Agents that come, wait, go and change teams, with memories and a critic for each team, against one plain loop.

The loop goes through what each sub-environment was told and has answered, env step by env step and agent by agent, and
computes in float64, one row at a time, what sampling, the train batch and the update have to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from runner.config.schemas import ExperimentConfig
from runner.env_runners.multi_agent_env import AgentMapping, MultiAgentEnv
from runner.episodes.columns import ColumnBlock, Rollout
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.experiment.learner_builder import build_learner_group
from runner.league.opponent_environments import ITSELF, Lineup
from runner.league.players import Player, Seat
from runner.module_building import build_modules, make_module_specs
from tests.support.configs import config_from

NUM_PLAYERS = 3
SPACES = {"red": gym.spaces.Box(-9, 9, (3,), np.float32), "blue": gym.spaces.Box(-9, 9, (2,), np.float32)}
ACTIONS = {"red": gym.spaces.Discrete(3), "blue": gym.spaces.Discrete(4)}
TEAMS = {
    "blues": [f"blue_{player}" for player in range(NUM_PLAYERS)],
    "reds": [f"red_{player}" for player in range(NUM_PLAYERS)],
}
ALL = "__all__"
GAMMA, LAMBDA, LR, NUM_EPOCHS = 0.9, 0.8, 0.5, 2
CLIP, VF_CLIP, VF_COEFF, ENTROPY_COEFF = 0.02, 0.5, 0.7, 0.03
NUM_UNITS = 3  # of memories


def module_of(agent: str) -> str:
    """The module that acts for an agent: the judge, who is in no team, acts as the reds do."""
    return "blue" if agent.startswith("blue") else "red"


def team_of(agent: str) -> str:
    """The prefix of its name."""
    return agent.split("_")[0]


class ByTeam(AgentMapping):
    """`module_of`, as the configuration names it."""

    def __call__(self, agent_id: str) -> str:
        return module_of(agent_id)


# -- the environment ---------------------------------------------------------------------------------------------------


@dataclass
class Event:
    """A reset, or an env step: the actions that came, and what was returned."""

    is_reset: bool
    actions: dict[str, int] = field(default_factory=dict)
    obs: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    terminateds: dict[str, bool] = field(default_factory=dict)
    truncateds: dict[str, bool] = field(default_factory=dict)

    def ends_of(self, agent: str) -> tuple[bool, bool]:
        """Whether a running agent is terminated, is truncated: by its own flags, else by those for all."""
        terminated, truncated = self.terminateds.get(agent, False), self.truncateds.get(agent, False)
        if terminated or truncated:
            return terminated, truncated
        return self.terminateds.get(ALL, False), self.truncateds.get(ALL, False)


class ChangingTeams(MultiAgentEnv):
    """Each player is drawn into a team for an episode, as agent `red_<player>` or `blue_<player>`; a judge may join.

    They come late, wait, and leave early at random, and are rewarded whether they are there or not.

    Attributes:
        diary: all that has happened.
    """

    possible_agents = ("blue_0", "red_0", "red_1", "judge", "blue_1", "blue_2", "red_2")
    observation_spaces = {agent: SPACES[module_of(agent)] for agent in possible_agents}  # noqa: RUF012
    action_spaces = {agent: ACTIONS[module_of(agent)] for agent in possible_agents}  # noqa: RUF012

    def __init__(self) -> None:
        self.diary: list[Event] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._rng = np.random.default_rng(seed)
        self._t, self._length = 0, int(self._rng.integers(1, 10))
        teams = self._rng.choice(["red", "blue"], NUM_PLAYERS)
        self._absent = {f"{team}_{player}" for player, team in enumerate(teams)} | set(["judge"] * self._odds(0.7))
        self._here: set[str] = set()
        event = Event(is_reset=True)
        self._let_see(event, [agent for agent in sorted(self._absent) if self._odds(0.6)])
        self.diary.append(event)
        return event.obs, {}

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(self._acting), "the agents that were observed last act"
        self._t += 1
        event = Event(is_reset=False, actions={agent: int(action) for agent, action in actions.items()})
        for agent in sorted(self._here | self._absent):
            if self._odds(0.6):
                event.rewards[agent] = float(self._rng.normal())
        self._let_see(event, [agent for agent in sorted(self._here | self._absent) if self._odds(0.6)])
        for agent in sorted(self._here):
            if self._odds(0.15):
                self._end(event, agent)
        if self._t == self._length:
            self._end_for_all(event)
        else:
            event.terminateds[ALL] = event.truncateds[ALL] = False
        self._acting = [agent for agent in event.obs if agent in self._here]
        self.diary.append(event)
        return event.obs, event.rewards, event.terminateds, event.truncateds, {}

    def _odds(self, chance: float) -> bool:
        return bool(self._rng.random() < chance)

    def _let_see(self, event: Event, agents: Sequence[str]) -> None:
        for agent in agents:
            event.obs[agent] = self._rng.normal(size=SPACES[module_of(agent)].shape).astype(np.float32)
        self._here |= set(agents)
        self._absent -= set(agents)
        self._acting = list(agents)

    def _end(self, event: Event, agent: str) -> None:
        kind = self._rng.choice(["terminated", "truncated", "both"] if agent in event.obs else ["terminated"])
        if kind != "truncated":
            event.terminateds[agent] = True
        if kind != "terminated":
            event.truncateds[agent] = True
        self._here.remove(agent)

    def _end_for_all(self, event: Event) -> None:
        kind = self._rng.choice(["terminated", "truncated", "each"] if self._here else ["terminated"])
        if kind == "each":
            for agent in sorted(self._here):
                self._end(event, agent)
        elif kind == "truncated":
            self._let_see(event, [agent for agent in sorted(self._here) if agent not in event.obs])
            event.truncateds[ALL] = True
        else:
            event.terminateds[ALL] = True
        self._here.clear()


def test_agents_do_all_that_the_loop_is_for() -> None:
    """A schedule without an agent that waits, say, would test nothing about it."""
    env, rng = ChangingTeams(), np.random.default_rng(0)
    found: set[str] = set()
    seen_before: set[str] = set()
    for seed in range(100):
        env.reset(seed=seed)
        seen: set[str] = set(env.diary[-1].obs)
        while env._here or env._t < env._length:
            event_before = len(env.diary)
            running, acting = set(env._here), list(env._acting)
            env.step({agent: int(rng.integers(3)) for agent in acting})
            event = env.diary[event_before]
            ends = {agent: event.ends_of(agent) for agent in running | set(event.obs) if any(event.ends_of(agent))}
            found |= {f"ends, {ends[agent]}, {agent in event.obs}" for agent in ends}
            found |= {"comes late"} if set(event.obs) - running else set()
            found |= {"comes and goes at once"} if set(ends) - running else set()
            found |= {"waits"} if running - set(event.obs) - set(ends) else set()
            found |= {"leaves early"} if ends and env._here else set()
            found |= {"nobody acts"} if not acting else set()
            found |= {"paid before it comes"} if set(event.rewards) - running - set(event.obs) else set()
            seen |= set(event.obs)
        found |= {"comes again"} if seen & seen_before else set()
        changed = {agent.replace("red", "blue") for agent in seen} & {agent for agent in seen_before if "blue" in agent}
        found |= {"changes team"} if changed - seen else set()
        seen_before = seen
    assert found == {
        *("comes late", "comes and goes at once", "waits", "leaves early", "nobody acts", "paid before it comes"),
        *("comes again", "changes team"),
        *("ends, (True, False), True", "ends, (True, False), False"),
        *("ends, (False, True), True", "ends, (True, True), True"),
    }


# -- networks, one row at a time ---------------------------------------------------------------------------------------

Parameters = Mapping[str, Tensor]  # `[<module>].<name>`, `critics.<number>.<name>` -> float64
State = dict[str, Tensor]  # name -> (H,) float64


def layer(parameters: Parameters, name: str, inputs: Tensor) -> Tensor:
    return parameters[f"{name}.weight"] @ inputs + parameters[f"{name}.bias"]


def remember(parameters: Parameters, name: str, inputs: Tensor, state: State) -> State:
    """The state after one step of an LSTM or a GRU, which has no "c"."""
    of_inputs = parameters[f"{name}.weight_ih"] @ inputs + parameters[f"{name}.bias_ih"]
    of_state = parameters[f"{name}.weight_hh"] @ state["h"] + parameters[f"{name}.bias_hh"]
    if "c" in state:
        i, f, g, o = (of_inputs + of_state).chunk(4)
        c = f.sigmoid() * state["c"] + i.sigmoid() * g.tanh()
        return {"h": o.sigmoid() * c.tanh(), "c": c}
    (r, z, n), (r_of_state, z_of_state, n_of_state) = of_inputs.chunk(3), of_state.chunk(3)
    n = (n + (r + r_of_state).sigmoid() * n_of_state).tanh()
    z = (z + z_of_state).sigmoid()
    return {"h": (1 - z) * n + z * state["h"]}


def policy_of(parameters: Parameters, agent: str, obs: Any, state: State) -> tuple[Tensor, State]:
    """The logits of an agent's actions, and its state after this step."""
    name = f"[{module_of(agent)}]"
    features = layer(parameters, f"{name}.encoder.layers.0", torch.tensor(obs).double()).tanh()
    state = remember(parameters, f"{name}.memory", features, state)
    return layer(parameters, f"{name}.pi.layers.0", state["h"]), state


# -- the loop ----------------------------------------------------------------------------------------------------------

Place = tuple[int, int]  # sub-environment, number of its episode


@dataclass
class AgentStep:
    """From an observation that an agent acts on to its next one, or to its end."""

    obs: Any
    env_t: int
    state: State
    action: int
    logits: Tensor
    state_after: State
    reward: float = 0.0
    next_obs: Any = None
    next_env_t: int = -1


@dataclass
class Stay:
    """An agent in an env episode; `steps`: those that have ended since the last fragment."""

    obs: Any
    env_t: int
    state: State
    num_steps: int = 0
    pending: AgentStep | None = None
    steps: list[AgentStep] = field(default_factory=list)
    is_terminated: bool = False
    is_truncated: bool = False

    @property
    def has_ended(self) -> bool:
        return self.is_terminated or self.is_truncated

    def finish_step(self, obs: Any, env_t: int, reward: float) -> None:
        step = self.pending
        assert step is not None
        step.reward, step.next_obs, step.next_env_t = reward, obs, env_t
        self.obs, self.env_t, self.state, self.pending = obs, env_t, step.state_after, None
        self.steps.append(step)
        self.num_steps += 1


@dataclass
class Chunk:
    """The steps of one agent in a fragment, in order; `values` has one more, of the last observation."""

    place: Place
    agent: str
    first_t: int
    steps: list[AgentStep]
    is_terminated: bool
    is_truncated: bool
    values: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)

    def observations(self) -> Iterator[tuple[int, Any, State]]:
        """Each observation: env time step, observation, the state before it."""
        for step in self.steps:
            yield step.env_t, step.obs, step.state
        last = self.steps[-1]
        yield last.next_env_t, last.next_obs, last.state_after

    def remembered(self, parameters: Parameters, max_seq_len: int) -> Iterator[tuple[int, Any, State]]:
        """The same with other parameters, whose memory begins with the recorded state at each `max_seq_len` rows."""
        state: State = {}
        for number, (env_t, obs, recorded) in enumerate(self.observations()):
            state = recorded if number % max_seq_len == 0 else state
            yield env_t, obs, state
            _, state = policy_of(parameters, self.agent, obs, state)


Chunks = dict[tuple[Place, str], Chunk]  # by place and agent


class SubEnvironment:
    """Goes through the diary of sub-environment n; memories begin with the state `initial`."""

    def __init__(self, n: int, initial: State) -> None:
        self._n, self._initial = n, initial
        self._number, self._t = -1, 0  # of the episode, env time step
        self._stays: dict[str, Stay] = {}
        self._saved: dict[str, float] = defaultdict(float)  # rewards of agents until their step ends

    def follow(self, events: Sequence[Event], parameters: Parameters) -> Chunks:
        """Go on through the events of a fragment; return the steps that ended in them."""
        found = {(self._number, agent): stay for agent, stay in self._stays.items()}
        for stay in found.values():
            stay.steps = []
        for event in events:
            if event.is_reset:
                self._number, self._t, self._stays = self._number + 1, 0, {}
                self._saved.clear()
            else:
                self._t += 1
                self._act(event.actions, parameters)
                for agent, reward in shared_rewards(event, self._stays).items():
                    self._saved[agent] += reward
            for agent, obs in event.obs.items():
                if agent in self._stays:
                    self._stays[agent].finish_step(obs, self._t, self._saved.pop(agent, 0.0))
                else:
                    self._stays[agent] = found[self._number, agent] = Stay(obs, self._t, self._initial)
            for agent, stay in self._stays.items():
                if not stay.has_ended:
                    stay.is_terminated, stay.is_truncated = event.ends_of(agent)
                    if stay.has_ended and agent not in event.obs:
                        stay.finish_step(stay.obs, self._t, self._saved.pop(agent, 0.0))
        return {
            ((self._n, number), agent): Chunk(
                (self._n, number),
                agent,
                stay.num_steps - len(stay.steps),
                stay.steps,
                stay.is_terminated,
                stay.is_truncated,
            )
            for (number, agent), stay in found.items()
            if stay.steps
        }

    def _act(self, actions: Mapping[str, int], parameters: Parameters) -> None:
        for agent, action in actions.items():
            stay = self._stays[agent]
            assert stay.pending is None
            logits, after = policy_of(parameters, agent, stay.obs, stay.state)
            stay.pending = AgentStep(stay.obs, stay.env_t, stay.state, action, logits, after)


def shared_rewards(event: Event, stays: Mapping[str, Stay]) -> dict[str, float]:
    """The rewards of an env step, of which those of a team are shared by its agents that are there."""
    there = {agent for agent, stay in stays.items() if not stay.has_ended} | set(event.obs)
    rewards = dict(event.rewards)
    for members in TEAMS.values():
        given, sharers = [agent for agent in members if agent in rewards], [a for a in members if a in there]
        if given and sharers:
            total = sum(rewards.pop(agent) for agent in given)
            rewards |= {agent: total / len(sharers) for agent in sharers}
    return rewards


# -- values, advantages, losses ----------------------------------------------------------------------------------------


class Critic:
    """The value of an agent at an env step, of what all agents saw then; or of what it saw itself, and remembers.

    What an agent saw is known of the steps of the fragment alone.
    """

    def __init__(self, chunks: Sequence[Chunk], is_centralised: bool) -> None:
        self._is_centralised = is_centralised
        self.agents = sorted(ChangingTeams.possible_agents, key=module_of)  # in their order, by module
        self.seen: dict[tuple[Place, int], dict[str, Any]] = defaultdict(dict)
        for chunk in chunks:
            for env_t, obs, _ in chunk.observations():
                self.seen[chunk.place, env_t][chunk.agent] = obs

    def value(self, parameters: Parameters, chunk: Chunk, env_t: int, obs: Any, state: State) -> Tensor:
        if not self._is_centralised:
            name = f"[{module_of(chunk.agent)}]"
            return layer(parameters, f"{name}.vf.layers.0", policy_of(parameters, chunk.agent, obs, state)[1]["h"])[0]
        seen = self.seen[chunk.place, env_t]
        features = [float(agent == chunk.agent) for agent in self.agents]
        for agent in sorted(self.agents):
            features += list(seen[agent]) if agent in seen else [0.0] * SPACES[module_of(agent)].shape[0]
        features += [float(agent in seen) for agent in self.agents]
        critic = f"critics.{['blue', 'red', 'judge'].index(team_of(chunk.agent))}"
        hidden = layer(parameters, f"{critic}.0.layers.0", torch.tensor(features).double()).tanh()
        return layer(parameters, f"{critic}.1.layers.0", hidden)[0]


def estimate(chunks: Sequence[Chunk], critic: Critic, parameters: Parameters, max_seq_len: int) -> None:
    """Write values, value targets and standardised advantages into the chunks."""
    for chunk in chunks:
        rows = chunk.remembered(parameters, max_seq_len)
        chunk.values = [float(critic.value(parameters, chunk, *row)) for row in rows]
        next_value = 0.0 if chunk.is_terminated else chunk.values[-1]
        advantage = 0.0
        for step, value in zip(reversed(chunk.steps), reversed(chunk.values[:-1]), strict=True):
            advantage = step.reward + GAMMA * next_value - value + GAMMA * LAMBDA * advantage
            chunk.advantages.insert(0, advantage)
            chunk.targets.insert(0, advantage + value)
            next_value = value
    for module_id in SPACES:
        of_module = [chunk for chunk in chunks if module_of(chunk.agent) == module_id]
        raw = [advantage for chunk in of_module for advantage in chunk.advantages]
        mean, std = (np.mean(raw), max(np.std(raw), 1e-4)) if raw else (0.0, 1.0)
        for chunk in of_module:
            chunk.advantages = [(advantage - mean) / std for advantage in chunk.advantages]


def losses_of_steps(
    chunks: Sequence[Chunk], critic: Critic, parameters: Parameters, max_seq_len: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Total, policy and value loss of each step."""
    for chunk in chunks:
        rows = chunk.remembered(parameters, max_seq_len)  # one more, of the last observation
        for step, row, advantage, target in zip(chunk.steps, rows, chunk.advantages, chunk.targets, strict=False):
            value = critic.value(parameters, chunk, *row)
            logits, _ = policy_of(parameters, chunk.agent, step.obs, row[-1])
            logps, old_logps = logits.log_softmax(0), step.logits.log_softmax(0)
            ratio = (logps[step.action] - old_logps[step.action]).exp()
            policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            vf_loss = (value - target).square().clamp(max=VF_CLIP)
            entropy = -(logps.exp() * logps).sum()
            yield policy_loss + VF_COEFF * vf_loss - ENTROPY_COEFF * entropy, policy_loss, vf_loss


def updated(
    chunks: Sequence[Chunk], critic: Critic, parameters: Parameters, max_seq_len: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters after the epochs of an update, and by module the means of its losses over epochs."""
    parameters = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    means: dict[str, Any] = {}
    for _ in range(NUM_EPOCHS if chunks else 0):
        total = torch.zeros((), dtype=torch.float64)
        for module_id in SPACES:
            of_module = [chunk for chunk in chunks if module_of(chunk.agent) == module_id]
            rows = list(losses_of_steps(of_module, critic, parameters, max_seq_len))
            if rows:
                losses = torch.stack([torch.stack(losses_of_row) for losses_of_row in rows]).mean(0)
                total = total + losses[0]
                means[module_id] = means.get(module_id, 0.0) + losses.detach() / NUM_EPOCHS
        gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        parameters = {
            name: (value if gradient is None else value - LR * gradient).detach().requires_grad_()
            for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
        }
    return {name: value.detach() for name, value in parameters.items()}, means


# -- the product against the loop --------------------------------------------------------------------------------------


class SignPlayer(Player):
    """Acts by the sign of the first number that an agent sees."""

    def __init__(self, action_space: Any) -> None:
        pass

    def act(self, obs: Any, seats: Sequence[Seat], rng: np.random.Generator) -> Any:
        return (obs[:, 0] > 0).astype(np.int64)


CRITICS = {"team critics": ["algorithm=mappo"], "module critics": ["algorithm=ippo"]}
LEAGUE = [
    "league.modules=[red, blue]",
    "league.opponents={latest: 0.4, fixed: 0.6}",
    f"league.fixed.sign={{_target_: {__name__}.SignPlayer}}",
]
# What each kind of run has besides memories.
KINDS = CRITICS | {f"league, {name}": [*overrides, *LEAGUE] for name, overrides in CRITICS.items()}
# Whichever team learns, each other one learns, too, or is played by the player.
LINEUP = Lineup({one: {other: {ITSELF: 0.4, "sign": 0.6} for other in SPACES} for one in SPACES})


@cache
def composed(kind: str) -> ExperimentConfig:
    overrides = [
        "+experiment=ppo_multi_agent_cartpole_shared",
        *KINDS[kind],
        f"env._target_={__name__}.ChangingTeams",
        "~env.env_config.num_agents",
        f"multi_agent.agent_to_module={{_target_: {__name__}.ByTeam}}",
        "multi_agent.teams={reds: ['red_*'], blues: ['blue_*']}",
        f"module={{use_gru: true, lstm_cell_size: {NUM_UNITS}, fcnet_hiddens: [4]}}",
        f"algorithm={{gamma: {GAMMA}, lambda_: {LAMBDA}, lr: {LR}, num_epochs: {NUM_EPOCHS}, minibatch_size: null}}",
        f"algorithm={{clip_param: {CLIP}, vf_clip_param: {VF_CLIP}, vf_loss_coeff: {VF_COEFF}, use_kl_loss: false}}",
        f"algorithm={{entropy_coeff: {ENTROPY_COEFF}, grad_clip: null, optimizer: {{name: sgd, epsilon: null}}}}",
        "evaluation.evaluation_interval=null",
    ]
    return config_from(*overrides)


def config_of(memory: str, kind: str, max_seq_len: int, num_envs: int, seed: int) -> ExperimentConfig:
    config = composed(kind)
    module = replace(config.module, max_seq_len=max_seq_len, use_gru=memory == "gru", use_lstm=memory == "lstm")
    env_runners = replace(config.env_runners, num_envs_per_env_runner=num_envs)
    return replace(config, module=module, env_runners=env_runners, seed=seed)


def parameters_of(learners: Any) -> dict[str, Tensor]:
    """All parameters by the names that a MultiRLModule gives them."""
    found = {}
    for key, state in learners.get_state()["learners"].items():
        for name, value in state["module"].items():
            found[name if key not in SPACES else f"[{key}].{name}"] = torch.tensor(np.asarray(value)).double()
    return found


def places_of(block: ColumnBlock) -> list[tuple[Place, str]]:
    """The sub-environment, the number of its episode, and the agent of each chunk."""
    assert block.agents is not None
    places = [id_.split("-")[-2:] for id_ in block.agents.multi_agent_episode_ids]
    return [((int(n), int(k)), agent) for (n, k), agent in zip(places, block.agents.agent_ids, strict=True)]


def learned_from(chunks: Chunks, rollout: Rollout) -> Chunks:
    """Drop the chunks of teams that no learner hears of, once it is sure that the player has acted for them."""
    learning = {(place, team_of(agent)) for block in rollout.blocks.values() for place, agent in places_of(block)}
    for (place, agent), chunk in chunks.items():
        if (place, team_of(agent)) not in learning:
            assert [step.action for step in chunk.steps] == [int(step.obs[0] > 0) for step in chunk.steps]
    return {(place, agent): chunk for (place, agent), chunk in chunks.items() if (place, team_of(agent)) in learning}


def assert_same_block(block: ColumnBlock, chunks: Sequence[Chunk]) -> None:
    """Compare what was sampled for a module."""
    for got, chunk in zip(block, chunks, strict=True):
        assert got.t_started == chunk.first_t
        assert (got.is_terminated, got.is_truncated) == (chunk.is_terminated, chunk.is_truncated)
        np.testing.assert_array_equal(got.get_observations(), [obs for _, obs, _ in chunk.observations()])
        np.testing.assert_array_equal(got.get_actions(), [step.action for step in chunk.steps])
        np.testing.assert_allclose(got.get_rewards(), [step.reward for step in chunk.steps], rtol=1e-6, atol=1e-7)
        outputs = {name: got.get_extra_model_outputs(name) for name in got.extra_model_outputs}
        logits = torch.stack([step.logits for step in chunk.steps])
        close(outputs["action_dist_inputs"], logits)
        close(outputs["action_logp"], [step.logits.log_softmax(0)[step.action] for step in chunk.steps])
        for name in outputs["state_out"]:
            close(outputs["state_out"][name], torch.stack([step.state_after[name] for step in chunk.steps]))
    assert block.agents is not None
    assert block.agents.env_t.tolist() == [env_t for chunk in chunks for env_t, _, _ in chunk.observations()]


def close(got: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=rtol, atol=atol)


COMPARED = ("obs", "loss_mask", "vf_preds", "value_targets", "advantages", "agents_mask", "agent_index")


def assert_same_train_batch(batch: Any, chunks: Sequence[Chunk], critic: Critic, max_seq_len: int) -> None:
    """Compare the train batch of a module, padding left out."""
    seen = [(chunk, *one) for chunk in chunks for one in chunk.observations()]
    is_row = torch.arange(max_seq_len) < batch["seq_lens"][:, None]
    rows = {name: batch[name][is_row] for name in COMPARED if name in batch}
    is_step = rows["loss_mask"].numpy()
    assert is_step.tolist() == [number < len(c.steps) for c in chunks for number in range(len(c.steps) + 1)]
    np.testing.assert_array_equal(rows["obs"], [obs for _, _, obs, _ in seen])
    close(rows["vf_preds"], [value for chunk in chunks for value in chunk.values])
    close(rows["value_targets"][is_step], [target for chunk in chunks for target in chunk.targets], atol=1e-5)
    close(rows["advantages"][is_step], [one for chunk in chunks for one in chunk.advantages], rtol=1e-3, atol=1e-4)
    starts = [
        state
        for chunk in chunks
        for number, (_, _, state) in enumerate(chunk.observations())
        if number % max_seq_len == 0
    ]
    for name in batch["state_in"]:
        close(batch["state_in"][name], torch.stack([state[name] for state in starts]))
    if "agents_mask" not in rows:
        return
    assert rows["agent_index"].tolist() == [critic.agents.index(chunk.agent) for chunk, *_ in seen]
    agents_seen = [critic.seen[chunk.place, env_t] for chunk, env_t, _, _ in seen]
    assert rows["agents_mask"].tolist() == [[agent in one for agent in critic.agents] for one in agents_seen]
    for agent, column in batch["obs_of_agents"].items():
        nothing = np.zeros(SPACES[module_of(agent)].shape)
        np.testing.assert_array_equal(column[is_row], [one.get(agent, nothing) for one in agents_seen])


LONG = {"seed": 3, "max_seq_len": 3, "num_envs": 3, "fragments": [12, 17, 23]}


@given(
    memory=st.sampled_from(["gru", "lstm"]),
    kind=st.sampled_from(list(KINDS)),
    max_seq_len=st.sampled_from([1, 3, 20]),
    num_envs=st.integers(1, 3),
    seed=st.integers(0, 1000),
    fragments=st.lists(st.integers(1, 25), min_size=1, max_size=3),
)
@example(memory="gru", kind="team critics", **LONG)
@example(memory="lstm", kind="team critics", **LONG)
@example(memory="lstm", kind="module critics", **LONG)
@example(memory="gru", kind="league, module critics", **LONG)
@example(memory="gru", kind="league, team critics", **LONG)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_sampling_and_updates_are_those_of_the_loop(
    memory: str, kind: str, max_seq_len: int, num_envs: int, seed: int, fragments: list[int]
) -> None:
    is_league, is_centralised = kind.startswith("league"), kind.endswith("team critics")
    config = config_of(memory, kind, max_seq_len, num_envs, seed)
    runner: Any = build_env_runner(config, make_module_specs(config), TRAINING, 0, 0)
    if is_league:
        runner.receive("lineup", LINEUP)
    learners: Any = build_learner_group(config, build_modules(config))
    names = ("h", "c") if memory == "lstm" else ("h",)
    initial = {name: torch.zeros(NUM_UNITS, dtype=torch.float64) for name in names}
    loops = [SubEnvironment(n, initial) for n in range(num_envs)]
    read = [0] * num_envs
    for num_steps in fragments:
        before = parameters_of(learners)
        rollout = runner.sample(num_steps, True, learners.get_weights(), {}).rollout
        found: Chunks = {}
        for n, (env, loop) in enumerate(zip(runner.env.environments, loops, strict=True)):
            found |= loop.follow(env.diary[read[n] :], before)
            read[n] = len(env.diary)
        if is_league:
            found = learned_from(found, rollout)
        chunks = list(found.values())
        critic = Critic(chunks, is_centralised)
        estimate(chunks, critic, before, max_seq_len)

        batches = learners._batch_of(rollout)[0].columns
        assert set(rollout.blocks) == set(batches) == {module_of(chunk.agent) for chunk in chunks}
        assert sum(map(len, rollout.blocks.values())) == len(chunks)
        for module_id, block in rollout.blocks.items():
            of_module = [found[key] for key in places_of(block)]
            assert {module_of(chunk.agent) for chunk in of_module} == {module_id}
            assert_same_block(block, of_module)
            assert_same_train_batch(batches[module_id], of_module, critic, max_seq_len)

        metrics = learners.update(rollout, 0).metrics
        after, losses = updated(chunks, critic, before, max_seq_len)
        assert set(metrics) == set(losses)
        for module_id, of_module_losses in losses.items():
            got = [metrics[module_id][name] for name in ("total_loss", "policy_loss", "vf_loss")]
            close(got, of_module_losses, atol=1e-5)
        for name, value in parameters_of(learners).items():
            close(value - before[name], after[name] - before[name], rtol=1e-3, atol=2e-6)
