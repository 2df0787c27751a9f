"""A coded environment whose agents come, wait, end and are rewarded as a seeded plan says; a naive loop over it.

Observation `(n, a, t, e, k)` is what agent number a of sub-environment n sees after t own steps, at env step e of
episode k. Agents of module `m1` see it in a Dict with a Tuple.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.module_runner import ActingModule
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.runner_identity import RunnerIdentity
from runner.module_building import make_connector
from runner.modules.flat_parameters import flat_values
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import Connector
from runner.pipelines.defaults import env_to_module_pipeline, module_to_env_pipeline

CPU = torch.device("cpu")
NUM_ACTIONS = 5
FLAT = gym.spaces.Box(0.0, 1e6, (5,), np.float32)
NESTED = gym.spaces.Dict(code=FLAT, rest=gym.spaces.Tuple((gym.spaces.Discrete(1000), gym.spaces.Box(0, 1e6, (1, 2)))))
ACTIONS = gym.spaces.Discrete(NUM_ACTIONS)
NESTED_ACTIONS = gym.spaces.Dict(
    a=ACTIONS, b=gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 3])))
)
ALL = "__all__"


@dataclass
class PlannedStep:
    """What the environment returns at one env step (step 0: its reset), by agent number."""

    seen: list[int] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)
    terminated: list[int] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)
    all_terminated: bool | None = None  # None: no such key
    all_truncated: bool | None = None


@cache
def plan_of(seed: int, num_agents: int, n: int, k: int) -> tuple[PlannedStep, ...]:
    """Episode k of sub-environment n, whatever the agents do."""
    rng = random.Random(f"{seed}-{n}-{k}")
    length = rng.randint(1, 7)
    first = PlannedStep(seen=[a for a in range(num_agents) if rng.random() < 0.6])
    running, ended = set(first.seen), set[int]()
    steps = [first]
    for e in range(1, length + 1):
        step = PlannedStep()
        steps.append(step)
        for a in range(num_agents):
            if a in ended:
                continue
            if rng.random() < 0.6:
                step.rewards[a] = float(rng.randint(-8, 8))
            if rng.random() < 0.5:
                step.seen.append(a)
                running.add(a)
            if a not in running or rng.random() < 0.7:
                continue
            is_seen = a in step.seen
            kind = rng.choice(["terminated", "truncated", "both"]) if is_seen else "terminated"
            step.terminated += [a] if kind != "truncated" else []
            step.truncated += [a] if kind != "terminated" else []
            running.discard(a)
            ended.add(a)
        if e == length:
            _end_for_all(step, running, rng)
        elif not running and (step.terminated or step.truncated):
            if rng.random() < 0.5:  # no key: the episode ends with its last agent
                break
            step.all_terminated = False
        elif rng.random() < 0.5:
            step.all_terminated, step.all_truncated = False, rng.choice([None, False])
    return tuple(steps)


def _end_for_all(step: PlannedStep, running: set[int], rng: random.Random) -> None:
    kind = rng.choice(["terminated", "truncated", "both", "each"])
    if kind == "each" and (running or step.terminated or step.truncated):
        step.seen = sorted({*step.seen, *running})
        for a in sorted(running):
            (step.terminated if rng.random() < 0.5 else step.truncated).append(a)
        return
    step.all_terminated = kind != "truncated"
    if kind in ("truncated", "both"):
        step.all_truncated = True
        if kind == "truncated":
            step.seen = sorted({*step.seen, *running})


def code_of(obs: Any) -> list[int]:
    """(n, a, t, e, k) of an observation; checks that its parts are of one connector."""
    if isinstance(obs, dict):
        number, box = obs["rest"]
        assert number == obs["code"][2]
        assert box.tolist() == [[obs["code"][3], obs["code"][4]]]
        obs = obs["code"]
    return [int(part) for part in obs]


def coded_obs(code: Sequence[int], is_nested: bool) -> Any:
    """The observation with this code."""
    flat = np.array(code, np.float32)
    if not is_nested:
        return flat
    return {"rest": (int(code[2]), np.array([[code[3], code[4]]], np.float32)), "code": flat}


class CodedAgentsEnv(MultiAgentEnv):
    """Sub-environment n; `log` holds (n, k, e, agent, action) of every action. Agent a is `a<number>`.

    Args:
        nested_agents: agent numbers whose observations and actions are nested.
    """

    def __init__(
        self, n: int, seed: int, num_agents: int, nested_agents: Sequence[int] = (), log: list[Any] | None = None
    ) -> None:
        self.n, self.k, self.e = n, -1, 0
        self._seed = seed
        self.possible_agents = [f"a{number}" for number in range(num_agents)]
        self._nested = set(nested_agents)
        numbers = range(num_agents)
        self.observation_spaces = {f"a{a}": NESTED if a in self._nested else FLAT for a in numbers}
        self.action_spaces = {f"a{a}": NESTED_ACTIONS if a in self._nested else ACTIONS for a in numbers}
        self.log: list[Any] = [] if log is None else log
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.k, self.e = self.k + 1, 0
        self._plan = plan_of(self._seed, len(self.possible_agents), self.n, self.k)
        self._own_t = defaultdict[int, int](int)
        self._acts: list[int] = []
        return self._returned(self._plan[0])[0], self._infos(self._plan[0])

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(f"a{a}" for a in self._acts), "the agents that were observed last act"
        for agent, action in actions.items():
            self.log.append((self.n, self.k, self.e, agent, action))
            self._own_t[int(agent[1:])] += 1
        self.e += 1
        self.num_steps += 1
        planned = self._plan[self.e]
        obs, rewards, terminateds, truncateds = self._returned(planned)
        return obs, rewards, terminateds, truncateds, self._infos(planned)

    def _returned(self, planned: PlannedStep) -> tuple[Any, ...]:
        ended = {*planned.terminated, *planned.truncated}
        self._acts = [a for a in planned.seen if a not in ended]
        obs = {
            f"a{a}": coded_obs((self.n, a, self._own_t[a], self.e, self.k), a in self._nested)
            for a in reversed(planned.seen)
        }
        rewards = {f"a{a}": reward for a, reward in planned.rewards.items()}
        terminateds: dict[str, Any] = {f"a{a}": True for a in planned.terminated}
        truncateds: dict[str, Any] = {f"a{a}": True for a in planned.truncated}
        if planned.all_terminated is not None:
            terminateds[ALL] = planned.all_terminated
        if planned.all_truncated is not None:
            truncateds[ALL] = np.bool_(planned.all_truncated)
        return obs, rewards, terminateds, truncateds

    def _infos(self, planned: PlannedStep) -> dict[str, Any]:
        return {f"a{a}": coded_info(self.k, self.e, a) for a in planned.seen if coded_info(self.k, self.e, a)}


def coded_info(k: int, e: int, a: int) -> dict[str, Any]:
    """The info that comes with agent a's observation at env step e of episode k: mostly none."""
    return {"code": [k, e, a]} if (k + e + a) % 3 == 0 else {}


class CodedAgentsModule(RLModule):
    """Logits that are 2 for one action that follows from the code, 0 for the others; value 0.25 t."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        obs = batch["obs"]["code"] if isinstance(batch["obs"], dict) else batch["obs"]
        best = (7 * obs[..., 0] + 3 * obs[..., 2] + obs[..., 4]).long()
        logits = 2.0 * nn.functional.one_hot(best % self.action_dist.num_inputs, self.action_dist.num_inputs).float()
        return {"action_dist_inputs": logits, "vf_preds": 0.25 * obs[..., 2]}


@dataclass
class AgentEpisode:
    """One agent's episode, collected with lists. Completed steps only."""

    id_: str
    obs: list[Any]
    env_t: list[int]
    infos: list[dict[str, Any]]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


@dataclass
class EnvEpisode:
    """One env episode: its agents' episodes, and how it ended."""

    agents: dict[str, AgentEpisode] = field(default_factory=dict)
    returns: dict[str, float] = field(default_factory=dict)
    length: int = 0
    is_over: bool = False
    is_terminated: bool = False


def naive_env_episodes(env: CodedAgentsEnv, log: Sequence[Any], prefix: str = "0-env_runner-0") -> list[EnvEpisode]:
    """All episodes of a sub-environment up to the step that it has made, by a loop over its plan."""
    actions = {(k, e, agent): action for n, k, e, agent, action in log if n == env.n}
    assert len(actions) == sum(entry[0] == env.n for entry in log)
    episodes: list[EnvEpisode] = []
    for k in range(env.k + 1):
        plan = plan_of(env._seed, len(env.possible_agents), env.n, k)
        last = env.e if k == env.k else len(plan) - 1
        episodes.append(_naive_episode(env, k, plan[: last + 1], actions, f"{prefix}-{env.n}-{k}"))
        assert episodes[-1].is_over == (last == len(plan) - 1)
    return episodes


def _naive_episode(
    env: CodedAgentsEnv, k: int, plan: Sequence[PlannedStep], actions: Mapping[Any, Any], id_: str
) -> EnvEpisode:
    out = EnvEpisode(length=len(plan) - 1)
    has_acted: dict[str, Any] = {}  # agents that wait, with their actions
    saved: dict[str, float] = defaultdict(float)
    for e, step in enumerate(plan):
        if e:
            for agent in [agent for (kk, ee, agent) in actions if (kk, ee) == (k, e - 1)]:
                has_acted[agent] = actions[k, e - 1, agent]
        for a, reward in step.rewards.items():
            saved[f"a{a}"] += reward
            out.returns[f"a{a}"] = out.returns.get(f"a{a}", 0.0) + reward
        for a in step.seen:
            agent, own = f"a{a}", out.agents.get(f"a{a}")
            t = 0 if own is None else len(own.actions) + 1
            obs = coded_obs((env.n, a, t, e, k), a in env._nested)
            if own is None:
                out.agents[agent] = AgentEpisode(f"{id_}-{agent}", [obs], [e], [coded_info(k, e, a)])
                out.returns.setdefault(agent, 0.0)
            else:
                _complete(own, obs, e, coded_info(k, e, a), has_acted.pop(agent), saved.pop(agent, 0.0))
        for agent, own in out.agents.items():
            if own.terminated or own.truncated:
                continue
            a = int(agent[1:])
            flags = a in step.terminated, a in step.truncated
            flags = flags if any(flags) else (bool(step.all_terminated), bool(step.all_truncated))
            if any(flags):
                own.terminated, own.truncated = flags
                if agent in has_acted:
                    _complete(own, own.obs[-1], e, {}, has_acted.pop(agent), saved.pop(agent, 0.0))
        has_flags = bool(step.terminated or step.truncated)
        is_open = step.all_terminated is not None or step.all_truncated is not None
        all_ended = all(own.terminated or own.truncated for own in out.agents.values())
        terminated = all(own.terminated for own in out.agents.values() if own.terminated or own.truncated)
        out.is_terminated = bool(step.all_terminated or (not step.all_truncated and terminated))
        out.is_over = bool(step.all_terminated or step.all_truncated or (has_flags and all_ended and not is_open))
    return out


def _complete(own: AgentEpisode, obs: Any, env_t: int, info: dict[str, Any], action: Any, reward: float) -> None:
    own.obs.append(obs)
    own.env_t.append(env_t)
    own.infos.append(info)
    own.actions.append(action)
    own.rewards.append(reward)


@dataclass(frozen=True)
class CodedRun:
    """A runner over coded environments. Agents with an odd number belong to `m1`, whose spaces are nested."""

    runner: MultiAgentEnvRunner
    envs: list[CodedAgentsEnv]
    log: list[Any]
    weights: dict[str, Any]

    def naive(self) -> list[list[EnvEpisode]]:
        """By sub-environment."""
        return [naive_env_episodes(env, self.log) for env in self.envs]

    def naive_agents(self) -> dict[str, AgentEpisode]:
        """Agent episode id -> the agent's episode."""
        return {own.id_: own for episodes in self.naive() for episode in episodes for own in episode.agents.values()}


def module_of(agent: str) -> str:
    """The module that acts for an agent."""
    return "m1" if int(agent[1:]) % 2 else "m0"


def make_coded_run(
    seed: int,
    num_envs: int,
    num_agents: int,
    lookback: int,
    env_to_module: Sequence[Connector] = (),
    module_to_env: Sequence[Connector] = (),
    make_env: Any = CodedAgentsEnv,
    validate_observations: str = "warn",
    make_listeners: Callable[[Any, Any], Sequence[EpisodeListener]] = lambda envs, module: (),
) -> CodedRun:
    """A runner with the default pipelines; the connectors come first in those of every module.

    Args:
        make_listeners: environments and module -> listeners.
    """
    log: list[Any] = []
    numbers = iter(range(num_envs))
    nested_agents = [a for a in range(num_agents) if a % 2]
    envs = MultiAgentEnvironments(
        lambda: make_env(next(numbers), seed, num_agents, nested_agents, log), num_envs, seed=0
    )
    modules = {}
    for module_id in ("m0", "m1"):
        agents = tuple(agent for agent in envs.environments[0].possible_agents if module_of(agent) == module_id)
        if not agents:
            continue
        spaces = envs.environments[0].observation_spaces[agents[0]], envs.environments[0].action_spaces[agents[0]]
        to_module = env_to_module_pipeline(*spaces, CPU, [], make_connector)
        to_env = module_to_env_pipeline(*spaces, True, False, [], make_connector, has_several_agents=True)
        for connector in env_to_module:
            to_module.prepend(connector)
        for connector in module_to_env:
            to_env.prepend(connector)
        modules[module_id] = ActingModule(CodedAgentsModule(*spaces, ModuleConfig()), agents, to_module, to_env)
    module = MultiRLModule({module_id: acting.module for module_id, acting in modules.items()})
    listeners = make_listeners(envs.environments, module)
    identity = RunnerIdentity("env_runner", 0, 0, seed=0)
    runner = MultiAgentEnvRunner(envs, modules, module, identity, lookback, validate_observations, listeners=listeners)
    weights = {module_id: flat_values(acting.module) for module_id, acting in modules.items()}
    return CodedRun(runner, envs.environments, log, weights)  # type: ignore[arg-type]
