"""A curriculum through RLlink: clients are told the tasks and their odds, and say what episodes were of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runner.config.errors import ConfigError, RunFailure
from runner.rllink.client import Client, RLlinkError
from runner.rows.task_outcomes import TaskOutcome
from tests.rllink.conftest import EXPERIMENT, Served, episode
from tests.support.configs import config_from

CURRICULUM = "curriculum={rule: uniform, tasks: {easy: {options: {k: 1}}, hard: {env_config: {k: 9}}}}"
ODDS = {"easy": 0.75, "hard": 0.25}


def test_a_client_draws_what_it_is_told_and_its_episodes_are_of_tasks(serve: Callable[..., Served]) -> None:
    served = serve(CURRICULUM)
    served.runner.receive("tasks", ODDS)
    with Client(*served.address) as client:
        rng = np.random.default_rng(0)
        sampling = served.sample(6)
        client.get_state()
        assert client.task_odds == ODDS
        drawn = [client.draw_task(rng) for _ in range(400)]
        assert {(task.name, tuple(task.options.items()), tuple(task.env_config.items())) for task in drawn if task} == {
            ("easy", (("k", 1),), ()),
            ("hard", (), (("k", 9),)),
        }
        assert sum(task is not None and task.name == "easy" for task in drawn) == pytest.approx(300, abs=30)
        first, second = episode(4, id="x", task="hard"), episode(2, 1, task="easy")
        first["is_terminated"], second["is_terminated"] = False, True
        client.send_episodes([first, second])
        assert sampling.result(30).finished.outcomes["curriculum"] == (TaskOutcome("easy", sum(second["rewards"])),)
        state = served.runner.get_state()
        (saved,) = state["episodes"].values()
        assert saved["task"] == "hard"


def test_the_server_acts_in_tasks(serve: Callable[..., Served]) -> None:
    served = serve(CURRICULUM)
    served.runner.receive("tasks", ODDS)
    with Client(*served.address) as client:
        sampling = served.sample(2)
        sampler = client.sampler("server")
        obs = np.zeros(4, np.float32)
        sampler.begin("a", obs, task="hard")
        assert client.task_odds == ODDS
        sampler.step("a", obs, 1.0, False, False)
        sampler.step("a", obs, 1.0, True, False)
        assert sampling.result(30).finished.outcomes["curriculum"] == (TaskOutcome("hard", 2.0),)


def test_a_task_that_is_not_there_is_refused(serve: Callable[..., Served]) -> None:
    served = serve(CURRICULUM)
    with Client(*served.address) as client:
        with pytest.raises(RLlinkError, match="unknown task 'hrad'; tasks are easy, hard") as raised:
            client.send_episodes([episode(2, task="hrad")])
        assert raised.value.path == "$.episodes[0].task"


def test_without_a_curriculum_nothing_is_granted(serve: Callable[..., Served]) -> None:
    served = serve()
    with Client(*served.address) as client:
        assert "tasks" not in client.extensions
        assert client.draw_task(np.random.default_rng(0)) is None
        with pytest.raises(RLlinkError, match="this run does not use tasks"):
            client.send_episodes([episode(2, task="easy")])


def test_an_announcement_to_an_unknown_receiver_is_reported(serve: Callable[..., Served]) -> None:
    with pytest.raises(RunFailure) as raised:
        serve(CURRICULUM).runner.receive("task", ODDS)
    problem = raised.value.problem
    assert (problem.got, problem.expected, problem.nearest) == ("task", "tasks", "tasks")


def test_infos_cannot_be_measured() -> None:
    overrides: list[Any] = [EXPERIMENT, CURRICULUM, "curriculum.measure=info:score"]
    with pytest.raises(ConfigError, match="is an info, which external simulators do not send"):
        config_from(*overrides)
