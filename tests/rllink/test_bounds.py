"""Numbers that would spoil a loss are refused in the dtype in which they are stored, in every form of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from runner.rllink.client import Client, RLlinkError
from tests.rllink.conftest import OFF, Connect, Serve, episode, hello, part

Send = Callable[[Client, dict[str, Any]], Any]
BOUND = "rllink.max_abs_reward=1e10"
ERROR, WARN, ADMIT = (f"env.validate_observations={mode}" for mode in ("error", "warn", "off"))


def in_columns(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """One episode as blocks, in double precision."""
    flags = {name: np.array([chunk[name]]) for name in ("is_terminated", "is_truncated")}
    arrays = {name: np.array(chunk[name]) for name in ("obs", "actions", "rewards")}
    return {"lengths": np.array([len(chunk["rewards"])]), **arrays, **flags}


# Form -> what the client asks for, how it sends an episode, the path of the episode in the message.
FORMS: dict[str, tuple[dict[str, Any], Send, str]] = {
    "json": ({"extensions": {}}, lambda client, chunk: client.send_episodes([chunk]), "$.episodes[0]"),
    "msgpack": ({}, lambda client, chunk: client.send_episodes([chunk]), "$.episodes[0]"),
    "blocks": (
        {},
        lambda client, chunk: client.send_episodes([{**chunk, "obs": np.array(chunk["obs"])}]),
        "$.episodes[0]",
    ),
    "columns": ({}, lambda client, chunk: client.send_episodes([], columns=in_columns(chunk)), "$.columns"),
    "shared memory": (
        {"share_memory": True},
        lambda client, chunk: client.send_episodes([], columns=in_columns(chunk)),
        "$.columns",
    ),
}


def spoilt(name: str, value: float) -> dict[str, Any]:
    """An episode with this value in its step 7."""
    chunk = episode(20)
    chunk[name][7] = value if name == "rewards" else [0.0, value, 0.0, 0.0]
    return chunk


@pytest.mark.parametrize("form", FORMS)
def test_rewards_that_would_spoil_a_loss_are_refused(serve: Serve, form: str) -> None:
    served = serve(OFF, BOUND)
    sampling = served.sample(20)
    options, send, path = FORMS[form]
    with Client(*served.address, **options) as client, Client(*served.address) as other:
        for value in (3e38, -3e38, 1e308, -1e308):
            with pytest.raises(RLlinkError) as caught:
                send(client, spoilt("rewards", value))
            assert (caught.value.code, caught.value.path) == ("bad_message", f"{path}.rewards")
            beyond = f"a reward of {value:g} exceeds rllink.max_abs_reward, 1e+10 (item 7)"
            assert (beyond if abs(value) < 1e39 else "a number is not finite") in str(caught.value)
        assert not sampling.done()
        send(other, episode(20))  # other clients go on
        rewards = sampling.result(30).rollout.blocks["default_policy"].columns["rewards"]
        assert rewards.tolist() == [1.0] * 20
        sampling = served.sample(20)
        send(client, spoilt("rewards", -1e10))
    assert sampling.result(30).rollout.blocks["default_policy"].columns["rewards"][7] == -1e10


def test_the_latest_start_of_an_episode_can_be_sampled(serve: Serve) -> None:
    served = serve(OFF)
    sampling = served.sample(10)
    whole, latest = episode(10), 2**53
    with Client(*served.address) as client:
        for late in (latest + 1, 2**63, 2**64 - 1):
            with pytest.raises(RLlinkError) as caught:
                client.send_episodes([part(whole, 0, 5, t_started=late)])
            assert caught.value.path == "$.episodes[0].t_started"
        client.send_episodes([part(whole, 0, 5, t_started=latest)])
        client.send_episodes([part(whole, 5, 10, is_terminated=True)])
    block = sampling.result(10).rollout.blocks["default_policy"]
    assert (block.t_started.tolist(), block.lengths.tolist()) == ([latest], [10])


@pytest.mark.parametrize("form", FORMS)
def test_observations_that_overflow_are_refused(serve: Serve, form: str) -> None:
    served = serve(OFF)
    sampling = served.sample(20)
    options, send, path = FORMS[form]
    with Client(*served.address, **options) as client:
        for value in (1e39, -1e308):
            with pytest.raises(RLlinkError) as caught:
                send(client, spoilt("obs", value))
            assert caught.value.code == "bad_message"
            assert (caught.value.path or "").startswith(f"{path}.obs")
        send(client, spoilt("obs", 3e38))  # no bound of this space
    assert sampling.result(30).rollout.blocks["default_policy"].columns["obs"][7, 1] == np.float32(3e38)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", [ERROR, WARN, ADMIT])
def test_observations_outside_of_their_box(serve: Serve, form: str, mode: str) -> None:
    served = serve(OFF, mode)
    sampling = served.sample(20)
    options, send, path = FORMS[form]
    outside = episode(20)
    outside["obs"][3][0] = outside["obs"][5][0] = 4.9
    outside["obs"][5][2] = -0.5
    for obs in outside["obs"]:
        obs[2] = max(obs[2], -0.4) if obs[2] != -0.5 else obs[2]
        obs[2] = min(obs[2], 0.4)
    with Client(*served.address, **options) as client, Client(*served.address) as other:
        if mode == ERROR:
            with pytest.raises(RLlinkError) as caught:
                send(client, outside)
            assert (caught.value.code, caught.value.path) == ("bad_message", f"{path}.obs")
            assert "an observation is outside of its space: obs[0] = 4.9, expected -4.8 to 4.8 (item 3)" in str(
                caught.value
            )
            assert not sampling.done()
            client.ping()
            for obs in outside["obs"]:
                obs[0], obs[2] = 0.0, 0.0
            send(other, outside)
            assert sampling.result(30).rollout.num_env_steps == 20
            return
        send(client, outside)
    found = sampling.result(30).finished.outside
    if mode == ADMIT:
        assert found.count == 0
        return
    assert found.count == 2
    assert found.first is not None
    assert (found.first.got, found.first.expected) == ("obs[0] = 4.9", "-4.8 to 4.8")
    assert (found.first.where or "").endswith(", time step 3")


def test_an_observation_that_two_parts_share_is_counted_once(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, WARN, BOUND)
    client = connect(served)
    whole = {**episode(6), "obs": [[0.0] * 4] * 3 + [[5.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 3}
    counts = []
    for start, stop in ((0, 3), (3, 6)):
        sampling = served.sample(3)
        part = {name: whole[name][start:stop] for name in ("actions", "rewards")}
        part |= {"obs": whole["obs"][start : stop + 1], "id": "a"}
        part |= {"is_terminated": stop == 6, "is_truncated": False}
        assert client.ask({"type": "EPISODES", "episodes": [part]})["type"] == "ACK"
        counts.append(sampling.result(30).finished.outside.count)
    assert counts == [1, 0]


class TestActions:
    """`GET_ACTIONS`."""

    @pytest.mark.parametrize("value", [1e308, -1e308, 3e38, -2e10])
    @pytest.mark.parametrize("extensions", [{}, {"msgpack": {}}], ids=["json", "msgpack"])
    def test_rewards(self, serve: Serve, value: float, extensions: dict[str, Any]) -> None:
        served = serve(OFF, BOUND)
        sampling = served.sample(3)
        with Client(*served.address, extensions={"actions": {}, **extensions}) as client:
            first = {"id": "a", "obs": [0.0] * 4}
            client.get_actions([first])
            client.get_actions([{**first, "reward": 1.0}])
            with pytest.raises(RLlinkError) as caught:
                client.get_actions([{"id": "b", "obs": [0.0] * 4}, {**first, "reward": value}])
            assert (caught.value.code, caught.value.path) == ("bad_message", "$.episodes[1].reward")
            assert f"a reward of {value:g} exceeds" in str(caught.value)
            client.get_actions([{**first, "reward": 2.0}])  # the episode goes on where it was
            client.get_actions([{**first, "reward": -1e10, "is_terminated": True}])
        sample = sampling.result(30)
        assert sample.rollout.blocks["default_policy"].columns["rewards"].tolist() == [1.0, 2.0, -1e10]
        assert sample.finished.lengths.tolist() == [3]

    def test_observations(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF, ERROR)
        sampling = served.sample(1)
        good, bad = connect(served), connect(served)
        for client in (good, bad):
            hello(client, actions={})
        outside = {"id": "a", "obs": [4.9, 0.0, 0.0, 0.0]}
        bad.send({"type": "GET_ACTIONS", "episodes": [outside]})
        good.send({"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4}]})
        refused = bad.receive()
        assert (refused["code"], refused["path"]) == ("bad_message", "$.episodes[0].obs")
        assert "obs[0] = 4.9, expected -4.8 to 4.8" in refused["message"]
        assert good.receive()["type"] == "ACTIONS"
        good.ask({"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4, "reward": 1.0}]})
        assert sampling.result(30).rollout.num_env_steps == 1

    def test_observations_are_counted(self, serve: Serve) -> None:
        served = serve(OFF, WARN, BOUND)
        sampling = served.sample(2)
        with Client(*served.address) as client:
            for t, position in enumerate((0.0, 4.9, 4.9)):
                client.get_actions([{"id": "a", "obs": [position, 0.0, 0.0, 0.0], "reward": float(t > 0)}])
            outside = sampling.result(30).finished.outside
            assert outside.count == 2
            assert outside.first is not None
            assert outside.first.got == "obs[0] = 4.9"
            sampling = served.sample(1)
            client.get_actions([{"id": "a", "obs": [0.0] * 4, "reward": 1.0}])
            assert sampling.result(30).finished.outside.count == 0


def test_the_bound_is_a_limit_that_clients_are_told(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.max_abs_reward=5")
    served.sample(100)
    client = connect(served)
    assert hello(client)["limits"]["max_abs_reward"] == 5
    for reward, kind in ((5.0, "ACK"), (-5.001, "ERROR")):
        chunk = {**episode(3), "rewards": [0.0, reward, 0.0]}
        assert client.ask({"type": "EPISODES", "episodes": [chunk]})["type"] == kind
    assert served.runner._service.counts.num_requests_refused == 1


def test_no_bound_is_above_single_precision(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.max_abs_reward=1e300")
    served.sample(100)
    client = connect(served)
    hello(client, actions={})
    assert client.ask({"type": "EPISODES", "episodes": [spoilt("rewards", 1e39)]})["type"] == "ERROR"
    assert client.ask({"type": "EPISODES", "episodes": [spoilt("rewards", 3e38)]})["type"] == "ACK"
    client.ask({"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4}]})
    step = {"id": "a", "obs": [0.0] * 4, "reward": 1e39}
    assert client.ask({"type": "GET_ACTIONS", "episodes": [step]})["code"] == "bad_message"
