"""Shared code of the peers of `offline.py`: flags, clock, result. Uses only the standard library; see `peer_cli.py`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from peer_cli import report

os.environ.setdefault("OMP_NUM_THREADS", "1")

BATCH = 1024
HIDDENS = [256, 256]
LR = 8e-4


@dataclass(frozen=True)
class Settings:
    """Behaviour cloning on one data set, or recording one."""

    data: str = ""
    kind: str = "episodes"  # or table
    mode: str = "materialised"  # or streaming
    updates: int = 600
    warmup: int = 100
    env: str = "CartPole-v1"
    episodes: int = 2000
    output: str = ""
    num_envs: int = 8
    rllib_updates: int = 1  # updates per RLlib iteration


def parse_settings(description: str | None) -> Settings:
    """Read one flag per field."""
    parser = argparse.ArgumentParser(description=description)
    for field in fields(Settings):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    return Settings(**vars(parser.parse_args()))


def measure_updates(settings: Settings, start: float, iterate: Callable[[], int]) -> None:
    """Report updates per second; `iterate` makes updates and returns their number. `start` is before the set-up."""
    done = iterate()
    first_s = time.perf_counter() - start
    while done < settings.warmup:
        done += iterate()
    begin, before = time.perf_counter(), done
    while done < before + settings.updates:
        done += iterate()
    seconds = time.perf_counter() - begin
    report({"updates_per_s": (done - before) / seconds, "updates": done - before, "first_s": first_s})


def measure_recording(record: Callable[[], int]) -> None:
    """Report env steps per second; `record` returns the number of steps on disk."""
    begin = time.perf_counter()
    steps = record()
    report({"steps_per_s": steps / (time.perf_counter() - begin), "steps": steps})
