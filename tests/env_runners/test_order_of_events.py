"""The order in which env runners call environments, connectors, callbacks and the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.callbacks import Callback, Callbacks
from runner.env_runners.episode_callbacks import EpisodeCallbacks
from runner.env_runners.episode_recording import EnvEpisodeRecording, EpisodeRecording
from runner.env_runners.listeners import EpisodeListener
from runner.env_runners.vector_envs import SyncEnvironments
from runner.pipelines import Connector
from tests.env_runners.test_multi_agent_rows import StatefulAgentsEnv
from tests.support.coded_agents import make_coded_run
from tests.support.coded_runs import coded_module, make_runner, weights_of
from tests.support.environments import CodedEnv


class Notes(Callback):
    """Notes each hook of episodes with the number of the sub-environment."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_environment_created(self, **kwargs: Any) -> None:
        self.log.append("made")

    def on_episode_created(self, *, env_index: int, **kwargs: Any) -> None:
        self.log.append(f"created {env_index}")

    def on_episode_start(self, *, env_index: int, **kwargs: Any) -> None:
        self.log.append(f"start {env_index}")

    def on_episode_step(self, *, env_index: int, **kwargs: Any) -> None:
        self.log.append(f"step {env_index}")

    def on_episode_end(self, *, env_index: int, **kwargs: Any) -> None:
        self.log.append(f"end {env_index}")

    def on_sample_end(self, **kwargs: Any) -> None:
        self.log.append("sample end")


class NotedPass(Connector):
    """Notes that its pipeline runs."""

    def __init__(self, text: str, log: list[str]) -> None:
        super().__init__()
        self._text, self._log = text, log

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        self._log.append(self._text)
        return batch


class NotedRecorder:
    """Notes what a recorder is given."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def add(self, *arguments: Any) -> None:
        self._log.append("record")

    def forget(self, ids: Sequence[str]) -> None:
        self._log.append(f"forget {', '.join(ids)}")

    def leave_out(self, ids: Sequence[str]) -> None:
        self._log.append(f"leave out {', '.join(ids)}")

    def forget_open(self) -> None:
        self._log.append("forget open")

    def abort(self) -> None:
        self._log.append("abort")


class NotedEnv(CodedEnv):
    """Notes resets and steps."""

    events: list[str]

    def reset(self, **kwargs: Any) -> Any:
        self.events.append(f"env.reset {self.n}")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.events.append(f"env.step {self.n}")
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {"k": self.k, "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        self.k, self.t = state["k"], state["t"]


class FailingEnvironments(SyncEnvironments):
    """The sub-environments in `failing` are made again in the next step, as after a failure."""

    def __init__(self, make_env: Any, num_envs: int) -> None:
        super().__init__(make_env, num_envs, seed=0)
        self.failing: list[int] = []

    def step(self, actions: Any) -> Any:
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        self.recreated, self.failing = self.failing, []
        for n in self.recreated:
            obs[n], _ = self.environments[n].reset()
            rewards[n] = terminateds[n] = truncateds[n] = 0
        return obs, rewards, terminateds, truncateds, infos


class NotedAgentsEnv(StatefulAgentsEnv):
    """Notes resets and steps."""

    events: list[str]

    def reset(self, **kwargs: Any) -> Any:
        self.events.append(f"env.reset {self.n}")
        return super().reset(**kwargs)

    def step(self, actions: Any) -> Any:
        self.events.append(f"env.step {self.n}")
        return super().step(actions)


class Single:
    """Two sub-always one agent, whose episodes have 2 and 3 steps."""

    def __init__(self, log: list[str]) -> None:
        kind, numbers = type("NotedEnv", (NotedEnv,), {"events": log}), iter(range(2))
        self.env = FailingEnvironments(lambda: kind(next(numbers), (2, 3)), 2)
        module = coded_module()
        recorder: Any = NotedRecorder(log)
        callbacks = EpisodeCallbacks(Callbacks([Notes(log)]), self.env.environments, 0, 2, module)
        self.runner = make_runner(self.env, module, listeners=[EpisodeRecording(recorder), callbacks])
        self.runner.env_to_module.append(NotedPass("observe", log))
        self.runner.module_to_env.prepend(NotedPass("act", log))
        self.weights = weights_of(module)


class Several:
    """Two sub-environments with two agents of two modules."""

    def __init__(self, log: list[str]) -> None:
        kind = type("NotedAgentsEnv", (NotedAgentsEnv,), {"events": log})
        recorder: Any = NotedRecorder(log)

        def listeners(envs: Any, module: Any) -> list[EpisodeListener]:
            callbacks = EpisodeCallbacks(Callbacks([Notes(log)]), envs, 0, 2, module)
            return [EnvEpisodeRecording(recorder, "0-env_runner-0"), callbacks]

        passes = [NotedPass("observe", log)], [NotedPass("act", log)]
        coded = make_coded_run(3, 2, 2, 0, *passes, make_env=kind, make_listeners=listeners)
        self.runner, self.weights = coded.runner, coded.weights


def events_of(log: list[str]) -> list[str]:
    """Take the events out of the log, joined to lines that end before each forward pass."""
    lines: list[str] = []
    for number, event in enumerate(log):
        if not lines or (event == "act" and log[number - 1] != "act"):
            lines.append(event)
        else:
            lines[-1] += f", {event}"
    log.clear()
    return lines


def test_a_single_agent_runner() -> None:
    log: list[str] = []
    run = Single(log)
    assert events_of(log) == [
        "made",
    ]
    run.runner.sample(8, True, run.weights, {})
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, start 0, start 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, end 0",
        "act, created 0, env.reset 0, env.step 1, observe, start 0, step 1, end 1",
        "act, created 1, env.step 0, env.reset 1, observe, start 1, step 0",
        "act, env.step 0, env.step 1, observe, step 0, step 1, record, sample end",
    ]
    state = run.runner.get_state()
    run.env.failing = [0, 1]
    run.runner.sample(3, True, run.weights, {})
    assert events_of(log) == [
        "act, env.step 0, env.step 1, env.reset 0, env.reset 1, observe, created 0, created 1, start 0, start 1",
        "act, env.reset 0, env.reset 1, observe, step 0, step 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, record, "
        "leave out 0-env_runner-0-0-1, 0-env_runner-0-1-1, sample end",
    ]
    run.runner.evaluate(3, True, run.weights, {})
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, start 0, start 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, end 0",
        "act, created 0, env.reset 0, env.step 1, observe, start 0, step 1, end 1",
        "act, env.step 0, env.reset 1, observe, step 0",
        "act, env.step 0, env.step 1, observe, step 0",
        "act, env.step 0, env.step 1, observe, step 0, end 0, record, forget open",
    ]
    run.runner.evaluate(3, True, run.weights, {}, unit="env_steps")
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, start 0, start 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1",
        "act, env.step 0, env.step 1, observe, step 0, end 0, record, forget open",
    ]
    other = Single(log)
    other.runner.set_state(state)
    other.runner.sample(3, True, run.weights, {})
    other.runner.close()
    assert events_of(log) == [
        "made, env.reset 0, env.reset 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, end 0, end 1",
        "act, created 0, created 1, env.reset 0, env.reset 1, observe, start 0, start 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, record, sample end, abort",
    ]


def test_a_multi_agent_runner() -> None:
    log: list[str] = []
    run = Several(log)
    assert events_of(log) == [
        "made",
    ]
    run.runner.sample(6, True, run.weights, {})
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, observe, start 0, start 1",
        "act, act, env.step 0, env.step 1, observe, step 0, step 1",
        "act, env.step 0, env.step 1, observe, observe, step 0, step 1, end 0",
        "act, act, created 0, env.reset 0, env.step 1, observe, start 0, step 1",
        "act, env.step 0, env.step 1, observe, step 0, step 1, record, sample end",
    ]
    state = run.runner.get_state()
    run.runner.evaluate(3, True, run.weights, {})
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, observe, start 0, start 1",
        "act, act, env.step 0, env.step 1, observe, observe, step 0, step 1, end 0, end 1",
        "act, act, created 0, env.reset 0, env.reset 1, observe, observe, start 0",
        "act, act, env.step 0, env.step 1, observe, step 0, end 0, record, "
        "forget 0-env_runner-0-0-0, 0-env_runner-0-1-0, 0-env_runner-0-0-1, forget open",
    ]
    run.runner.evaluate(3, True, run.weights, {}, unit="env_steps")
    assert events_of(log) == [
        "created 0, created 1, env.reset 0, env.reset 1, observe, observe, start 0, start 1",
        "act, act, env.step 0, env.step 1, step 0, step 1, env.step 0, env.step 1, observe, step 0, record, "
        "forget , forget open",
    ]
    other = Several(log)
    other.runner.set_state(state)
    other.runner.sample(3, True, run.weights, {})
    other.runner.close()
    assert events_of(log) == [
        "made, env.reset 0, env.reset 0, env.reset 1, env.reset 1, leave out 0-env_runner-0-0-1, 0-env_runner-0-1-0",
        "act, env.step 0, env.step 1, observe, observe, step 0, step 1, end 0, end 1",
        "act, act, created 0, created 1, env.reset 0, env.reset 1, observe, observe, start 0, start 1",
        "act, act, env.step 0, env.step 1, observe, observe, step 0, step 1, end 0, end 1, record, sample end, abort",
    ]
