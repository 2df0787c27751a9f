"""Callbacks hear of what simulators send: whole episodes at their ends, and samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.rllink.client import Client
from tests.rllink.conftest import OFF, Serve, Served, episode
from tests.rllink.test_agents import AGENTS, TWO

OWN = "callbacks=[{_target_: tests.callbacks.own_callbacks.Ends}]"
ONE = ["env=cartpole", "env.port=0", OFF, OWN]


def reported(served: Served, num_env_steps: int, send: Callable[[], object]) -> dict[str, float | None]:
    sampling = served.sample(num_env_steps)
    send()
    metrics = sampling.result(30).connector_metrics
    return {name.removeprefix("callbacks/"): one.result for name, one in metrics.items() if "callbacks/" in name}


def test_whole_episodes_are_heard_once_at_their_ends(serve: Serve) -> None:
    served = serve(*ONE)
    with Client(*served.address) as client:
        begun = {**episode(6, 1), "id": "a", "is_terminated": False}
        first = reported(served, 16, lambda: client.send_episodes([episode(10), begun]))
        assert first == {"ends": 1, "returns": 10, "newest_steps": 10, "sampled_steps": 16, "number": 1}
        rest = {**episode(4, 2), "id": "a"}
        rest["obs"][0] = begun["obs"][-1]
        second = reported(served, 4, lambda: client.send_episodes([rest]))
        assert second == {"ends": 1, "returns": 10, "newest_steps": 4, "sampled_steps": 4, "number": 2}
        third = reported(served, 5, lambda: client.send_episodes([{**episode(5), "id": "b", "is_terminated": False}]))
        assert third == {"ends": None, "returns": None, "newest_steps": None, "sampled_steps": 5, "number": None}


def test_env_episodes_of_several_agents_are_heard_once(serve: Serve) -> None:
    served = serve(*TWO, OWN)
    with Client(*served.address) as client:
        both = [{**episode(n), "agent_id": agent, "id": "a"} for agent, n in zip(AGENTS, (7, 4), strict=True)]
        heard = reported(served, 7, lambda: client.send_episodes(both))
    assert heard == {"ends": 1, "returns": 11, "newest_steps": 7, "sampled_steps": 7, "number": 1}


@pytest.mark.parametrize("is_resumed", [True, False])
def test_a_restart_goes_on_with_the_state_of_callbacks(serve: Serve, tmp_path: Path, is_resumed: bool) -> None:
    first = serve(*ONE, run_dir=tmp_path)
    with Client(*first.address) as client:
        assert reported(first, 10, lambda: client.send_episodes([episode(10)]))["number"] == 1
    second = serve(*ONE, run_dir=tmp_path, **({"state": first.runner.get_state()} if is_resumed else {}))
    with Client(*second.address) as client:
        heard = reported(second, 5, lambda: client.send_episodes([episode(5)]))
    assert heard["number"] == (2 if is_resumed else 1)
