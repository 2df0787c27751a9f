"""Shared code of the peers of the asynchronous benchmark: settings, and measuring seconds of training."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

NUM_RUNNERS, NUM_ENVS, BATCH = 2, 16, 500


@dataclass(frozen=True)
class AsyncSettings:
    """Settings of one run: algorithm, seconds of warm-up, and seconds to measure."""

    algorithm: str
    seed: int
    warmup_s: float
    measured_s: float


def parse() -> AsyncSettings:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup-s", type=float, default=5.0)
    parser.add_argument("--measured-s", type=float, default=20.0)
    return AsyncSettings(**vars(parser.parse_args()))


def measure(settings: AsyncSettings, iterate: Callable[[], int]) -> dict[str, float]:
    """Return env steps per second; `iterate` trains one iteration and returns the env steps sampled so far."""
    ended = time.perf_counter() + settings.warmup_s
    while time.perf_counter() < ended:
        before = iterate()
    started, steps = time.perf_counter(), before
    while time.perf_counter() < started + settings.measured_s:
        steps = iterate()
    return {"steps_per_s": (steps - before) / (time.perf_counter() - started), "env_steps": steps}
