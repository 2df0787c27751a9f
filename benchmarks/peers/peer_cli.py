"""Shared code of all peer scripts: the command line, the clock and the JSON line.

It uses only the standard library, because each peer runs in a separate environment. A peer passes a function that runs
ONE training iteration and returns its `Progress`; timing, warm-up, stopping and reporting are the same for all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

# Inherited by every process that a peer starts; for the peer itself, see `run`.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MODES = ("throughput", "time-to-450")
GOAL_RETURN = 450.0
MAX_ENV_STEPS = 400_000
RETURN_WINDOW = 100
HIDDEN = 32
MAX_GRAD_NORM = 0.5


# Keys of `Progress.counts`, each summed since the start.
SAMPLING_S = "sampling_s"
UPDATE_S = "update_s"
AGENT_STEPS = "agent_steps"  # rows to learn from, each counted once
LOSS_ROWS = "loss_rows"  # rows of losses in all epochs, without padding and masked rows
GRADIENT_STEPS = "gradient_steps"
COUNTS = (SAMPLING_S, UPDATE_S, AGENT_STEPS, LOSS_ROWS, GRADIENT_STEPS)


class Progress(NamedTuple):
    """State after an iteration: env steps since the start, running mean return, and further counts of `COUNTS`."""

    env_steps: int
    return_mean: float
    counts: Mapping[str, float] = MappingProxyType({})


EAGER, COMPILED = "eager", "compiled"

Iterate = Callable[[], Progress]
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """One run of one peer; the PPO settings are the same for every peer."""

    num_envs: int = 8
    num_env_runners: int = 0
    iterations: int = 20
    warmup: int = 3
    seed: int = 0
    mode: str = "throughput"
    learner: str = EAGER  # for our peers
    lr: float = 3e-4
    num_epochs: int = 6
    vf_loss_coeff: float = 0.5
    entropy_coeff: float = 0.0
    lambda_: float = 0.95
    gamma: float = 0.99
    clip_param: float = 0.2
    minibatch_size: int = 128
    train_batch_size: int = 4000

    @property
    def total_envs(self) -> int:
        return self.num_envs * max(1, self.num_env_runners)

    @property
    def rollout_length(self) -> int:
        """Steps per sub-environment and iteration, rounded up."""
        return math.ceil(self.train_batch_size / self.total_envs)

    @property
    def rows(self) -> int:
        """Rows of an iteration: 4000, or 4032 (63 x 64) for 64 sub-environments."""
        return self.rollout_length * self.total_envs


def parse_settings(description: str | None, cls: type[S] = Settings, remote_runners: bool = False) -> S:
    """Read one flag per field of `cls`; a trailing underscore of the field is dropped."""
    parser = argparse.ArgumentParser(description=description)
    for field in fields(cls):
        flag = "--" + field.name.rstrip("_").replace("_", "-")
        choices = MODES if field.name == "mode" else None
        parser.add_argument(flag, dest=field.name, type=type(field.default), default=field.default, choices=choices)
    settings = cls(**vars(parser.parse_args()))
    if settings.num_env_runners and not remote_runners:
        parser.error("this peer does not support remote env runners")
    return settings


def run(peer: str, description: str | None, build: Callable[[S], Iterate], cls: type[S] = Settings) -> None:
    """Build a peer with the settings of the command line, measure it on one thread, and report the result."""
    import torch  # all peers have it; the rest of this module needs only the standard library

    cfg = parse_settings(description, cls)
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    start = time.perf_counter()
    iterate = build(cfg)
    report(measure(peer, cfg, iterate, time.perf_counter() - start))


def iterations_of_loop(loop: Any, num_steps: int) -> Iterate:
    """Return an iteration of a number of calls of `loop.step`, after which `loop` has `env_steps` and `returns`."""

    def iterate() -> Progress:
        for _ in range(num_steps):
            loop.step()
        return Progress(loop.env_steps, fmean(loop.returns) if loop.returns else math.nan)

    return iterate


def measure(peer: str, settings: Settings, iterate: Iterate, setup_s: float) -> dict[str, Any]:
    run = _throughput if settings.mode == "throughput" else _time_to_goal
    return {
        "peer": peer,
        "num_envs": settings.num_envs,
        "num_env_runners": settings.num_env_runners,
        "seed": settings.seed,
        **run(settings, iterate),
        "setup_s": setup_s,
    }


def report(result: dict[str, Any]) -> None:
    """Print the result as the last line of stdout."""
    print(json.dumps(result, allow_nan=False), flush=True)


def _throughput(settings: Settings, iterate: Iterate) -> dict[str, Any]:
    progress = Progress(0, math.nan)
    for _ in range(settings.warmup):
        progress = iterate()
    before, counts_before, start = progress.env_steps, dict(progress.counts), time.perf_counter()
    for _ in range(settings.iterations):
        progress = iterate()
    seconds = time.perf_counter() - start
    env_steps = progress.env_steps - before
    return {
        "env_steps": env_steps,
        "seconds": seconds,
        **{name: count - counts_before.get(name, 0) for name, count in progress.counts.items()},
        "steps_per_s": env_steps / seconds,
        "episode_return_mean": _finite(progress.return_mean),
    }


def _time_to_goal(settings: Settings, iterate: Iterate) -> dict[str, Any]:
    start = time.perf_counter()
    while True:
        progress = iterate()
        reached = progress.return_mean >= GOAL_RETURN
        if reached or progress.env_steps >= MAX_ENV_STEPS:
            break
    return {
        "reached": bool(reached),
        "seconds": time.perf_counter() - start,
        "env_steps": progress.env_steps,
        "episode_return_mean": _finite(progress.return_mean),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
