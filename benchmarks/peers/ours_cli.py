"""Shared code of `runner`'s peers: a trainer in a temporary run dir, with Ray if it is needed, and its measurement."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peer_cli import COMPILED, Progress, S, Settings, measure, parse_settings, report

from runner import Trainer
from runner.cluster import connected
from runner.config.blocks import RayConfig

NO_EVALUATION = "evaluation.evaluation_interval=null"


@contextmanager
def training(experiment: str, overrides: Sequence[str]) -> Iterator[Trainer]:
    """Yield the trainer of an experiment; it is closed on exit."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir,
        Trainer.from_experiment(experiment, [*overrides, NO_EVALUATION, f"hydra.run.dir={run_dir}"]) as trainer,
    ):
        yield trainer


@contextmanager
def training_on_ray(experiment: str, overrides: Sequence[str]) -> Iterator[Trainer]:
    """Yield the trainer of an experiment that needs Ray."""
    with (
        connected(RayConfig(), {"CPU": 1}, "the benchmark", lambda note: None),
        training(experiment, [*overrides, "tracking=none"]) as trainer,
    ):
        yield trainer


def common_overrides(cfg: Settings) -> list[str]:
    """Return the overrides that all algorithms share."""
    return [
        f"seed={cfg.seed}",
        f"env_runners.num_envs_per_env_runner={cfg.num_envs}",
        f"algorithm.gamma={cfg.gamma}",
        f"learners.compile={str(cfg.learner == COMPILED).lower()}",
    ]


def progress_of(result: Mapping[str, Any], counts: Mapping[str, float]) -> Progress:
    """Return the progress after an iteration with this result."""
    return_mean = result.get("env_runners/episode_return_mean")
    env_steps = int(result["num_env_steps_sampled_lifetime"])
    return Progress(env_steps, math.nan if return_mean is None else float(return_mean), counts)


def run(
    description: str | None,
    cls: type[S],
    experiment_of: Callable[[S], str],
    overrides: Callable[[S], list[str]],
) -> None:
    """Train an experiment with the settings of the command line, and report the measurement."""
    cfg = parse_settings(description, cls)
    torch.set_num_threads(1)
    start = time.perf_counter()
    with training(experiment_of(cfg), [*common_overrides(cfg), *overrides(cfg)]) as trainer:
        setup_s = time.perf_counter() - start
        report(measure("ours", cfg, lambda: progress_of(trainer.train(), {}), setup_s))
