"""Whole runs with environments that crash and stall: they go on, count it, and have the same numbers everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import make_env_runner
from runner.callbacks import Callback
from runner.config.errors import ConfigError
from runner.config.metrics import NUM_ENV_RESTARTS
from runner.environments import MultiAgentCartPole
from runner.environments.misbehaving import Crash, CrashAndStall
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, Run, result_of, without_times
from tests.support.environments import MatchDiscrete

RESTARTS, ASYNC = "env_runners.restart_failed_sub_environments=true", "env_runners.gym_env_vectorize_mode=async"
SYNC = "env_runners.gym_env_vectorize_mode=sync"
NUM_EPISODES = "num_episodes_lifetime"


def crashing(step: float = 0.01, reset: float = 0.05, **more: Any) -> str:
    values = {
        "_target_": "runner.environments.CrashAndStall",
        "crash_rate_step": step,
        "crash_rate_reset": reset,
    } | more
    return f"env.wrappers=[{{{', '.join(f'{name}: {value}' for name, value in values.items())}}}]"


def results_of(*overrides: str, iterations: int = 3) -> list[dict[str, Any]]:
    with Trainer.from_experiment("ppo_cartpole", [*QUICK, crashing(), *overrides]) as trainer:
        return [without_times(trainer.train()) for _ in range(iterations)]


@pytest.mark.slow
def test_a_crashing_run_has_the_same_numbers_in_processes() -> None:
    here, there = results_of(SYNC, RESTARTS), results_of(ASYNC, RESTARTS)
    assert there == here
    restarts = [result[NUM_ENV_RESTARTS] for result in here]
    assert 0 < restarts[0] < restarts[1] < restarts[2]
    assert here[-1]["num_env_steps_sampled_lifetime"] >= 3 * 256
    assert here[-1][NUM_EPISODES] > 5


def test_a_plan_of_whole_episodes_holds_no_steps_of_ones_that_broke_off() -> None:
    plan = "algorithm.plan=[ParallelRollouts,CompleteEpisodes,ConcatBatches,TrainOneStep]"
    with Trainer.from_experiment(
        "pg_cartpole", ["tracking=none", "evaluation=none", crashing(), RESTARTS, plan]
    ) as run:
        for _ in range(3):
            result = run.train()
        held = run.context.operators["CompleteEpisodes"].get_state()["episodes"]
        ids = [id_ for block in held["running"].values() for id_ in block["episode_ids"]]
        num_envs = run.config.env_runners.num_envs_per_env_runner
    assert result[NUM_ENV_RESTARTS] > num_envs
    assert len(ids) <= num_envs, "only episodes that go on are held back"


@pytest.mark.slow
@pytest.mark.ray
def test_a_crashing_run_has_the_same_numbers_on_ray(ray_cluster: None) -> None:
    two = ("env_runners.num_env_runners=2", "env_runners.num_envs_per_env_runner=2", RESTARTS)
    inline = results_of(*two, SYNC, "engine=inline", iterations=2)
    remote = results_of(*two, ASYNC, "env_runners.num_cpus_per_env_runner=0.5", iterations=2)
    assert remote == inline
    assert remote[-1][NUM_ENV_RESTARTS] > 2
    assert remote[-1]["fault_tolerance/num_remote_worker_restarts"] == 0


@pytest.mark.slow
def test_a_run_from_the_command_line(run_main: Run, tmp_path: Path) -> None:
    stalls = crashing(stall_rate_step=0.002, stall_seconds="[30, 60]")
    settings = (RESTARTS, ASYNC, "env_runners.env_step_timeout_s=2", "stop.training_iteration=2")
    outcome = run_main("+experiment=ppo_cartpole", *QUICK, stalls, *settings, "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    num_restarts = result_of(tmp_path / "run")[NUM_ENV_RESTARTS]
    assert f"sub-environment restarts so far: {num_restarts}; see " in outcome.out
    log = (tmp_path / "run" / "runner.log").read_text()
    assert "the environment raised Crash in step: CrashAndStall crashes this step" in log
    assert "the environment CartPole-v1 hung in step" in log


def test_without_the_setting_a_crash_ends_the_run(run_main: Run) -> None:
    outcome = run_main("+experiment=ppo_cartpole", *QUICK, crashing(), "hydra.run.dir=run")
    assert outcome.code == 1
    assert outcome.err.startswith("the environment raised Crash in ")
    assert "env runner 0, sub-environment " in outcome.err


def test_restarts_turned_on_at_a_resume_go_on_with_the_running_episodes(run_main: Run, tmp_path: Path) -> None:
    run = ("+experiment=ppo_cartpole", *QUICK, SYNC, crashing(0.0, 0.0), "checkpoint.every_iterations=1")
    assert run_main(*run, "stop.training_iteration=2", "hydra.run.dir=run").code == 0
    outcome = run_main("resume", "run", RESTARTS, ASYNC, "stop.training_iteration=4")
    assert outcome.code == 0, outcome.err
    assert run_main(*run, "stop.training_iteration=4", "hydra.run.dir=straight").code == 0
    resumed, straight = (without_times(result_of(tmp_path / name)) for name in ("run", "straight"))
    same = [name for name in straight if name.startswith(("env_runners/", "learners/", "num_"))]
    assert [resumed[name] for name in same] == [straight[name] for name in same]


# -- what hears of episodes ------------------------------------------------------------------------------------------


class Hears(Callback):
    """Notes hooks and episodes of sub-environment 0."""

    heard: list[tuple[str, str | None]] = []  # noqa: RUF012

    def on_episode_created(self, *, env_index: int, **kwargs: Any) -> None:
        self._note("created", env_index)

    def on_episode_start(self, *, env_index: int, episode: Any, **kwargs: Any) -> None:
        self._note("start", env_index, episode)

    def on_episode_step(self, *, env_index: int, episode: Any, **kwargs: Any) -> None:
        self._note("step", env_index, episode)

    def on_episode_end(self, *, env_index: int, episode: Any, **kwargs: Any) -> None:
        self._note("end", env_index, episode)

    def _note(self, hook: str, env: int, episode: Any = None) -> None:
        if env == 0:
            self.heard.append((hook, None if episode is None else episode.id_))


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str | None]]]:
    Hears.heard.clear()
    yield Hears.heard
    Hears.heard.clear()


def test_callbacks_hear_of_no_end_of_an_episode_that_broke_off(heard: list[tuple[str, str | None]]) -> None:
    listening = f"callbacks=[{{_target_: {__name__}.Hears}}]"
    runner = make_env_runner("ppo_cartpole", [*QUICK, crashing(0.02), SYNC, RESTARTS, listening])
    samples = [runner.sample(400) for _ in range(2)]
    runner.close()
    chunks = [chunk for sample in samples for chunk in sample.rollout.blocks["default_policy"]]
    of_first = [chunk for chunk in chunks if chunk.id_.split("-")[-2] == "0"]
    ended = {chunk.id_ for chunk in of_first if chunk.is_done}
    assert {id_ for hook, id_ in heard if hook == "end"} == ended
    started = [id_ for hook, id_ in heard if hook == "start"]
    assert len(started) == len(set(started)) > len(ended) + 2
    assert {chunk.id_ for chunk in of_first} <= set(started)
    hooks = [hook for hook, _ in heard]
    assert all(after == "start" for before, after in pairwise(hooks) if before == "created")
    assert hooks.count("created") == len(started)
    assert sum(hook == "step" for hook in hooks) == sum(map(len, of_first))


def test_metrics_out_of_infos_forget_an_episode_that_broke_off() -> None:
    metric = "metrics={env_runners/seen: {info: t, at: episode_sum}}"
    env = ("env.env=null", f"env._target_={__name__}.CountsInInfo")
    runner = make_env_runner("ppo_cartpole", [*QUICK, *env, crashing(0.1), RESTARTS, metric])
    finished = [runner.sample(200).finished for _ in range(3)]
    runner.close()
    numbers = np.concatenate([one.infos["env_runners/seen"] for one in finished])
    lengths = np.concatenate([one.lengths for one in finished])
    assert len(lengths) > 20
    np.testing.assert_array_equal(numbers, lengths)


class CountsInInfo(MatchDiscrete):
    """Its infos of steps have `t`: 1."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        *others, _ = super().step(action)
        return *others, {"t": 1}  # type: ignore[return-value]


def test_episodes_that_broke_off_are_not_recorded(run_main: Run, tmp_path: Path) -> None:
    run = ("+experiment=ppo_cartpole", *QUICK, crashing(0.03), SYNC, RESTARTS, "stop.training_iteration=3")
    outcome = run_main(*run, f"offline.output={tmp_path / 'data'}", "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    num_episodes = result_of(tmp_path / "run")[NUM_EPISODES]
    assert f"{num_episodes:,} episodes" in outcome.out
    assert " incomplete)" in outcome.out


# -- where the settings do not apply ---------------------------------------------------------------------------------


def make_agents(num_agents: int) -> Any:
    return MultiAgentCartPole(num_agents)


@pytest.mark.parametrize("setting", [RESTARTS, ASYNC])
def test_several_agents_that_a_function_makes_are_refused(setting: str) -> None:
    env = f"env._target_={__name__}.make_agents"
    with pytest.raises(ConfigError) as caught:
        make_env_runner("ppo_multi_agent_cartpole_shared", [env, setting])
    assert "has several agents, but these settings need an environment" in str(caught.value)
    assert setting.partition("=")[0].removeprefix("env_runners.") in str(caught.value)


# -- the wrapper -----------------------------------------------------------------------------------------------------


def outcomes_of(seed: int, **rates: Any) -> list[str]:
    env = CrashAndStall(MatchDiscrete(), **rates)
    outcomes = []
    for step in range(200):
        try:
            env.reset(seed=seed) if step == 0 else env.step(0)
            outcomes.append("went on")
        except Crash as crash:
            outcomes.append(str(crash))
    return outcomes


def test_the_seed_decides_which_steps_crash() -> None:
    first = outcomes_of(1, crash_rate_step=0.2)
    assert first == outcomes_of(1, crash_rate_step=0.2)
    assert first != outcomes_of(2, crash_rate_step=0.2)
    assert 20 <= first.count("CrashAndStall crashes this step") <= 60
    assert first[0] == "went on"
    assert set(outcomes_of(1)) == {"went on"}


def test_a_reset_crashes_at_its_own_rate() -> None:
    env = CrashAndStall(MatchDiscrete(), crash_rate_reset=0.5)
    crashes = 0
    for seed in range(100):
        try:
            env.reset(seed=seed)
        except Crash:
            crashes += 1
    assert 30 <= crashes <= 70


def test_a_stall_sleeps_within_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    outcomes_of(3, stall_rate_step=0.3, stall_rate_reset=1.0, stall_seconds=[2, 5])
    assert 30 <= len(slept) <= 90
    assert 2 <= min(slept) < 2.5
    assert 4.5 < max(slept) <= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("crash_rate_step: 1.5", "crash_rate_step must be a number from 0 to 1, got 1.5"),
        ("crash_rate_step: often", "crash_rate_step must be a number from 0 to 1, got 'often'"),
        ("stall_rate_reset: -0.1", "stall_rate_reset must be a number from 0 to 1, got -0.1"),
        ("stall_seconds: [5, 2]", "stall_seconds must be [shortest, longest] in seconds, got [5, 2]"),
        ("stall_seconds: [5]", "stall_seconds must be [shortest, longest] in seconds, got [5]"),
        ("stall_seconds: 5", "stall_seconds must be [shortest, longest] in seconds, got 5"),
        ("stall_seconds: [2, long]", "stall_seconds must be [shortest, longest] in seconds, got [2, 'long']"),
    ],
)
def test_wrong_rates(arguments: str, message: str) -> None:
    wrapper = f"env.wrappers=[{{_target_: runner.environments.CrashAndStall, {arguments}}}]"
    with pytest.raises(ConfigError) as caught:
        make_env_runner("ppo_cartpole", [wrapper])
    assert message in " ".join(str(caught.value).split())
