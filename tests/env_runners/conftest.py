"""What tests of env runners share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_vector_env
from runner.env_runners.vector_envs import SubEnvironments
from tests.env_runners.separate_runs import SEED, N


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes sub-environments that are closed at the end."""
    envs: list[SubEnvironments] = []

    def make(config: EnvConfig, mode: str, restarts: bool = False, timeout_s: float | None = None) -> Any:
        envs.append(make_vector_env(config, N, mode, SEED, restarts, timeout_s))
        return envs[-1]

    yield make
    for env in envs:
        env.close()
