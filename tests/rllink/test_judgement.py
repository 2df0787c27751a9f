"""The judgement of clients: the bound of rewards, and clients whose returns are far outside the others'."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.schemas import ExperimentConfig
from runner.env_runners.sample import Sample
from runner.experiment.stop_criteria import met_criteria
from runner.rllink.client import Client, RLlinkError
from runner.rllink.judgement import ClientJudge, RewardBound
from tests.rllink.conftest import EXPERIMENT, OFF, Serve, Served, episode
from tests.support.configs import config_from


def judge_rounds(judge: ClientJudge, returns_of: dict[str, Callable[[], float]], num_rounds: int) -> list[str]:
    """Let each client end an episode in each round; return who was quarantined."""
    return [
        name for _ in range(num_rounds) for name in judge.judge([(who, draw()) for who, draw in returns_of.items()])
    ]


def test_a_client_far_outside_the_others_is_quarantined_once() -> None:
    rng = random.Random(0)
    clients: dict[str, Callable[[], float]] = {f"c{n}": lambda: rng.gauss(100, 10) for n in range(3)}
    judge = ClientJudge()
    assert judge_rounds(judge, clients | {"bad": lambda: 2e5}, 30) == ["bad"]
    assert judge.quarantined == {"bad"}
    assert judge.recent_clients == set(clients)


@pytest.mark.parametrize(("num_clients", "num_rounds"), [(2, 50), (3, 4)])
def test_few_clients_or_episodes_are_not_judged(num_clients: int, num_rounds: int) -> None:
    clients: dict[str, Callable[[], float]] = {f"c{n}": lambda: 1.0 for n in range(num_clients - 1)}
    assert judge_rounds(ClientJudge(), clients | {"bad": lambda: 1e9}, num_rounds) == []


def test_one_lucky_episode_and_sparse_rewards_are_not_far_outside() -> None:
    draws = iter([100.0, 100.0, 100.0, 5000.0] + [100.0] * 50)
    judge = ClientJudge()
    assert judge_rounds(judge, {"a": lambda: 100.0, "b": lambda: 101.0, "lucky": lambda: next(draws)}, 30) == []
    judge = ClientJudge()
    assert judge_rounds(judge, {"a": lambda: 0.0, "b": lambda: 0.0, "solved": lambda: 0.9}, 30) == []


def test_trusted_clients_stay() -> None:
    clients: dict[str, Callable[[], float]] = {"a": lambda: 1.0, "b": lambda: 1.0, "0-odd-3": lambda: 1e6}
    assert judge_rounds(ClientJudge(["0-odd-*"]), clients, 10) == []
    first = ClientJudge()
    assert judge_rounds(first, clients, 10) == ["0-odd-3"]
    state = json.loads(json.dumps(first.get_state()))
    kept, trusting = ClientJudge(), ClientJudge(["0-odd-3"])
    kept.set_state(state)
    trusting.set_state(state)
    assert kept.quarantined == {"0-odd-3"}
    assert trusting.quarantined == set()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_resumed_judge_comes_to_the_same_judgements(seed: int, stop_at: int) -> None:
    rng = random.Random(seed)
    events = [(rng.choice("abcd"), rng.gauss(10, 2) if rng.random() < 0.8 else 1e4) for _ in range(120)]
    straight, first = ClientJudge(), ClientJudge()
    found = [straight.judge([event]) for event in events]
    before = [first.judge([event]) for event in events[:stop_at]]
    resumed = ClientJudge()
    resumed.set_state(json.loads(json.dumps(first.get_state())))
    assert before + [resumed.judge([event]) for event in events[stop_at:]] == found
    assert resumed.get_state() == straight.get_state()


def test_the_bound_of_rewards() -> None:
    assert RewardBound.make(5.0, 475.0).value == 5.0
    assert RewardBound.make(None, 475.0).value == 4750.0
    assert RewardBound.make(None, 0.7).value == 1000.0
    bound = RewardBound.make(None, None)
    for client, largest in (("a", 1.0), ("b", 2.0), ("hostile", 1e9)):
        assert bound.value == 1e10
        bound.note(client, largest, 10)
    assert (bound.value, bound.reason) == (2e4, "learned from the first episodes of 3 clients")
    resumed = RewardBound.make(None, None)
    resumed.set_state(json.loads(json.dumps(bound.get_state())))
    assert resumed.get_state() == bound.get_state()


def result(num_clients: int, with_episodes: int, quarantined: int = 0) -> dict[str, Any]:
    return {
        "env_runners/episode_return_mean": 500.0,
        "num_env_steps_sampled_lifetime": 9,
        "num_episodes_lifetime": 1000,
        "rllink/num_clients": num_clients,
        "rllink/num_clients_with_episodes": with_episodes,
        "rllink/num_clients_quarantined": quarantined,
    }


def stopping_at(stop: str) -> ExperimentConfig:
    return config_from(EXPERIMENT, "~stop", f"+{stop}")


def test_stop_waits_for_the_majority_of_clients() -> None:
    on_return = stopping_at("stop={env_runners/episode_return_mean: 475}")
    assert not met_criteria(on_return, result(3, 1))
    assert not met_criteria(on_return, result(4, 2))
    assert met_criteria(on_return, result(3, 2))
    assert met_criteria(on_return, result(2, 1))
    assert met_criteria(on_return, result(3, 1, quarantined=1))
    assert met_criteria(stopping_at("stop={num_env_steps_sampled_lifetime: 9}"), result(3, 0))
    stepped_here = {"env_runners/episode_return_mean": 500.0, "num_episodes_lifetime": 1000}
    assert met_criteria(on_return, stepped_here)


# -- a server ----------------------------------------------------------------------------------------------------------


def of_return(return_: float) -> dict[str, Any]:
    """A whole episode of four steps."""
    return {**episode(4), "rewards": [return_ / 4] * 4}


def test_observations_outside_the_space_are_refused_by_default(serve: Serve) -> None:
    served = serve(OFF)
    sampling = served.sample(4)
    with Client(*served.address) as client:
        chunk = episode(4)
        chunk["obs"][2] = [3e38, 0.0, 0.0, 0.0]
        with pytest.raises(RLlinkError, match="an observation is outside of its space: obs") as caught:
            client.send_episodes([chunk])
        assert caught.value.path == "$.episodes[0].obs"
        assert not sampling.done()
        client.send_episodes([episode(4)])
    assert sampling.result(30).rollout.num_env_steps == 4


def test_actions_far_outside_the_space_are_refused_by_default(serve: Serve) -> None:
    served = serve(OFF, "env.env=Pendulum-v1", "stop={training_iteration: 1}")
    sampling = served.sample(1)
    with Client(*served.address) as client:
        chunk = {"obs": [[1.0, 0.0, 0.0]] * 2, "rewards": [-1.0], "is_terminated": False, "is_truncated": True}
        with pytest.raises(RLlinkError, match=r"an action is outside of its space: action\[0\] = 43.0"):
            client.send_episodes([{**chunk, "actions": [[43.0]]}])
        client.send_episodes([{**chunk, "actions": [[3.0]]}])  # a sample that is not clipped
    sampling.result(30)


def test_rewards_beyond_the_bound_of_the_environment_are_refused(serve: Serve) -> None:
    served = serve(OFF)
    served.sample(4)
    with Client(*served.address) as client:
        with pytest.raises(RLlinkError, match=r"4750 \(ten times the environment's reward threshold of 475\)"):
            client.send_episodes([of_return(4e6)])
        client.send_episodes([of_return(4.0)])


@contextlib.contextmanager
def sampled_with_a_bad_client(served: Served) -> Iterator[list[Sample]]:
    """Let three good clients and a bad one send an episode each in twelve rounds; give the sample of each round."""
    started, samples = served.sample(4), []
    with contextlib.ExitStack() as stack:
        *good, bad = (stack.enter_context(Client(*served.address)) for _ in range(4))
        good[0].send_episodes([of_return(20.0)])
        started.result(30)
        for number in range(12):
            for client in good:
                client.send_episodes([of_return(20.0 + number % 3)])
            bad.send_episodes([of_return(8000.0)])
            samples.append(served.sample(12).result(30))
        bad.get_state()  # it is served
        yield samples


def test_a_client_in_quarantine_is_served_and_not_learned_from(serve: Serve) -> None:
    with sampled_with_a_bad_client(serve(OFF)) as samples:
        returns = [return_ for sample in samples for return_ in sample.finished.returns]
    counts = samples[-1].counts
    assert counts["rllink/num_clients_quarantined"] == 1
    assert counts["rllink/num_clients_with_episodes"] == 3
    assert sum(name.startswith("rllink/quarantined/") for name in counts) == 1
    assert counts["rllink/num_env_steps_quarantined"] > 0
    assert max(returns[-12:]) < 100.0
    rewards = samples[-1].rollout.blocks["default_policy"].columns["rewards"]
    assert samples[-1].rollout.num_env_steps == len(rewards) == 12
    assert np.abs(rewards).max() < 100.0


def test_a_restarted_server_keeps_the_quarantine_and_trusts_on_request(serve: Serve) -> None:
    served = serve(OFF)
    with sampled_with_a_bad_client(served):
        state = served.runner.get_state()
        (name,) = served.runner._judges.quarantined
    again, trusting = serve(OFF, state=state), serve(OFF, f"rllink.trusted_clients=['{name}']", state=state)
    assert again.runner._judges.quarantined == {name}
    assert again.runner._judges.get_state() == state["judges"]
    assert trusting.runner._judges.quarantined == set()
