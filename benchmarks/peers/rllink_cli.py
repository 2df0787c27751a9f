"""Shared code of the servers of the RLlink benchmark: flags, the load process, the clock."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOAD = Path(__file__).with_name("rllink_load.py")


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement: kind of messages, clients, seconds of warm-up and of measuring."""

    kind: str
    clients: int
    warmup_s: float
    seconds: float


def parse_settings(description: str | None) -> Settings:
    """Read the command line; flags of other benchmarks are ignored."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--kind", default="json", choices=("json", "columns", "rllib", "actions"))
    p.add_argument("--clients", type=int, default=1)
    p.add_argument("--warmup-s", type=float, default=2.0)
    p.add_argument("--seconds", type=float, default=8.0)
    args, _ = p.parse_known_args()
    return Settings(args.kind, args.clients, args.warmup_s, args.seconds)


def measure(settings: Settings, address: tuple[str, int], sample: Callable[[], int]) -> None:
    """Print env steps per second as JSON; `sample` returns the number of env steps that it received."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(_LOAD), address[0], str(address[1]), settings.kind, str(settings.clients)]
    load = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        sample()  # the load has started
        _sample_for(settings.warmup_s, sample)
        num_steps, seconds = _sample_for(settings.seconds, sample)
    finally:
        load.kill()
    lines = load.communicate()[0].split("\n")[:-1]
    result = {"steps_per_s": num_steps / seconds, "steps": num_steps, "seconds": seconds}
    if settings.kind == "actions":
        measured = [[float(number) for number in line.split()] for line in lines[int(settings.warmup_s) :]]
        result |= {
            "median_ms": sorted(median for median, _ in measured)[len(measured) // 2],
            "p99_ms": max(high for _, high in measured),
        }
    print(json.dumps(result))


def _sample_for(seconds: float, sample: Callable[[], int]) -> tuple[int, float]:
    started = time.perf_counter()
    num_steps = 0
    while time.perf_counter() - started < seconds:
        num_steps += sample()
    return num_steps, time.perf_counter() - started
