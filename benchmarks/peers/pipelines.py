"""Microseconds of `runner`'s env pipelines per vector step, in a real `SingleAgentEnvRunner`.

Two env runners are measured one after the other: one with timers around complete pipeline calls, the forward pass and
the environment's step, and one with a timer around each connector, which costs a little itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ours import OursSettings, overrides
from ours_cli import NO_EVALUATION
from peer_cli import parse_settings, report

from runner.config.compose import compose_experiment
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.module_building import build_acting_module, make_module_specs
from runner.modules.flat_parameters import FlatParameters
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.profile import time_connectors

NOISE_DRAWS = 20
BEHIND_OBS = "AddObservationsFromEpisodesToBatch"


@dataclass(frozen=True)
class PipelineSettings(OursSettings):
    """`connectors`: names of classes in `runner.pipelines`, joined with +, in order, after the observations; a name may
    have one argument: `FrameStacking:num_frames:4`.
    """

    connectors: str = ""
    vector_steps: int = 5000
    warmup_steps: int = 1000


class Timed:
    """Forwards calls and stores their seconds; everything else is forwarded unchanged."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.seconds: list[float] = []
        self.fragment_seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = self._call(*args, **kwargs)
        self.seconds.append(time.perf_counter() - started)
        return result

    def complete_fragment(self, *args: Any) -> None:
        started = time.perf_counter()
        self._call.complete_fragment(*args)  # type: ignore[attr-defined]
        self.fragment_seconds.append(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class Sampling:
    """A separate env runner that samples fragments of the usual size.

    Args:
        config: configuration of the experiment with the pipelines to measure.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        plans = make_module_specs(config)
        parts = build_acting_module(config, plans[DEFAULT_MODULE_ID])
        self._weights = {DEFAULT_MODULE_ID: FlatParameters(parts.module).to_numpy()}
        self._num_env_steps = config.algorithm.train_batch_size_per_learner
        self._num_envs = config.env_runners.num_envs_per_env_runner
        runner = build_env_runner(config, plans, TRAINING, 0, 0)
        assert isinstance(runner, SingleAgentEnvRunner)
        self.runner = runner

    def run(self, vector_steps: int) -> None:
        """Sample complete fragments for at least this many vector steps."""
        for _ in range(-(-vector_steps * self._num_envs // self._num_env_steps)):
            # Between fragments the states of all env runners are merged, which means more work for connectors.
            pipeline = self.runner.env_to_module
            shared = pipeline.merge_states([pipeline.get_state()])
            self.runner.sample(self._num_env_steps, True, self._weights, {DEFAULT_MODULE_ID: shared})


def measure_whole(cfg: PipelineSettings, config: ExperimentConfig) -> dict[str, float]:
    """Return microseconds per vector step.

    `total_us` is the median of both pipelines, including `other_us`, the work done for many steps together. `mean_us`
    is the mean, which a busy machine disturbs.
    """
    sampling = Sampling(config)
    runner: Any = sampling.runner
    get_actions = runner.module_to_env["GetActions"]
    env_to_module, module_to_env = Timed(runner.env_to_module), Timed(runner.module_to_env)
    forward, env_step = Timed(runner.module.forward_exploration), Timed(runner.env.step)
    runner.env_to_module, runner.module_to_env = env_to_module, module_to_env
    runner.module.forward_exploration, runner.env.step = forward, env_step
    sampling.run(cfg.warmup_steps)
    timers = (env_to_module, module_to_env, forward, env_step)
    for timer in timers:
        timer.seconds.clear()
        timer.fragment_seconds.clear()
    started = time.perf_counter()
    sampling.run(cfg.vector_steps)
    seconds = time.perf_counter() - started
    num_steps = len(env_step.seconds)
    assert all(len(timer.seconds) == num_steps for timer in timers)
    together = [sum(both) for both in zip(module_to_env.seconds, env_to_module.seconds, strict=True)]
    noise = noise_seconds(get_actions, runner.module.action_dist, cfg.num_envs)
    other_us = (noise + sum(module_to_env.fragment_seconds) / num_steps) * 1e6
    runner.close()
    return {
        "total_us": median_us(together) + other_us,
        "mean_us": (sum(together) + sum(module_to_env.fragment_seconds)) / num_steps * 1e6,
        "env_to_module_us": median_us(env_to_module.seconds),
        "module_to_env_us": median_us(module_to_env.seconds),
        "other_us": other_us,
        "forward_us": median_us(forward.seconds),
        "env_step_us": median_us(env_step.seconds),
        "vector_step_us": seconds / num_steps * 1e6,
        "vector_steps": num_steps,
    }


def noise_seconds(get_actions: Any, dist: Any, num_envs: int) -> float:
    """Return seconds for drawing the noise of a vector step, which `GetActions` does for many steps together."""
    num_steps = len(get_actions._noise)
    seconds = []
    for _ in range(NOISE_DRAWS):
        started = time.perf_counter()
        torch.from_numpy(dist.draw_noise(get_actions._stream, (num_steps, num_envs))).unbind(0)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) / num_steps


def measure_connectors(cfg: PipelineSettings, config: ExperimentConfig) -> dict[str, dict[str, float]]:
    """Return pipeline -> name of a connector -> median microseconds."""
    sampling = Sampling(config)
    pipelines = sampling.runner.pipelines_of(DEFAULT_MODULE_ID)
    names = {pipeline.name: [type(connector).__name__ for connector in pipeline] for pipeline in pipelines}
    # Timers hide the connectors' states, so nothing is merged here; a MeanStdFilter costs slightly more than reported.
    timed = {pipeline.name: time_connectors(pipeline) for pipeline in pipelines}
    sampling.run(cfg.warmup_steps)
    for connector in (connector for connectors in timed.values() for connector in connectors):
        connector.seconds.clear()
    sampling.run(cfg.vector_steps)
    sampling.runner.close()
    return {
        name: {connector: timer.microseconds for connector, timer in zip(names[name], timers, strict=True)}
        for name, timers in timed.items()
    }


def median_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6


def connector_edits(connectors: str) -> str:
    """Return the override that puts the connectors after the observations, in order."""
    edits = []
    for connector in reversed(connectors.split("+")):
        name, *argument = connector.split(":")
        arguments = f", {argument[0]}: {argument[1]}" if argument else ""
        edits.append(f"{{insert_after: {BEHIND_OBS}, connector: {{_target_: runner.pipelines.{name}{arguments}}}}}")
    return f"connectors.env_to_module=[{', '.join(edits)}]"


def config_of(cfg: PipelineSettings) -> ExperimentConfig:
    given = [f"+experiment={cfg.experiment}", NO_EVALUATION, *overrides(cfg)]
    return build_experiment_config(
        compose_experiment(given + ([connector_edits(cfg.connectors)] if cfg.connectors else []), None)
    )


def main() -> None:
    cfg = parse_settings(__doc__, PipelineSettings)
    torch.set_num_threads(1)
    config = config_of(cfg)
    whole = measure_whole(cfg, config)
    report(
        {
            "num_envs": cfg.num_envs,
            "connectors": cfg.connectors,
            **whole,
            "by_connector": measure_connectors(cfg, config),
        }
    )


if __name__ == "__main__":
    main()
