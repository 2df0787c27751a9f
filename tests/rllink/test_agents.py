"""Several agents: their spaces, their modules' weights, their episodes and who acts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.rllink.client import Client, RLlinkError
from tests.conftest import wait_until
from tests.rllink.conftest import OFF, RawClient, Serve, episode

AGENTS = ("agent_0", "agent_1")
TWO = [
    "env=multi_agent_cartpole",
    "env.port=0",
    OFF,
    "multi_agent.agent_to_module={agent_0: first, agent_1: second}",
]


def test_each_agent_has_its_spaces_and_its_weights(serve: Serve) -> None:
    served = serve(*TWO)
    served.sample(10)
    with Client(*served.address) as client:
        config = client.get_config()
        assert config.agents is not None
        assert [config.agents[agent]["module"] for agent in AGENTS] == ["first", "second"]
        assert config.observation_space is None
        files = client.get_state().files
    assert sorted(files) == ["first", "second"]
    assert files["first"] != files["second"]


def test_episodes_of_agents_become_blocks_of_modules(serve: Serve) -> None:
    served = serve(*TWO)
    sampling = served.sample(14)
    with Client(*served.address) as client:
        for seed in (0, 1):  # the same id again: another env episode
            chunks = [
                {**episode(length, seed), "agent_id": agent, "id": "a"}
                for agent, length in zip(AGENTS, (7, 4), strict=True)
            ]
            client.send_episodes(chunks)
    sample = sampling.result(30)
    assert sample.rollout.num_env_steps == 14
    blocks = sample.rollout.blocks
    assert [blocks[name].lengths.tolist() for name in ("first", "second")] == [[7, 7], [4, 4]]
    assert list(blocks["second"].agents.agent_ids) == ["agent_1"] * 2  # type: ignore[union-attr]
    ids = [blocks[name].agents.multi_agent_episode_ids for name in ("first", "second")]  # type: ignore[union-attr]
    assert list(ids[0]) == list(ids[1])
    assert len(set(ids[0])) == 2
    assert sample.finished.returns.tolist() == [11.0, 11.0]
    assert sample.finished.lengths.tolist() == [7, 7]
    assert sample.finished.by_agent["agent_1"].tolist() == [4.0, 4.0]
    assert sample.finished.by_module["first"].tolist() == [7.0, 7.0]


def test_env_episodes_whose_client_has_gone_are_forgotten(serve: Serve) -> None:
    served = serve(*TWO)
    for number in range(4):
        sampling = served.sample(5)
        with Client(*served.address, extensions={"agents": {}}, reconnect_s=0) as client:
            open_ends = {"is_terminated": number == 3, "id": "a"}
            client.send_episodes([{**episode(5), "agent_id": agent, **open_ends} for agent in AGENTS])
            sample = sampling.result(30)  # before it is known that the client goes
        wait_until(lambda: not served.runner._service.known)
    assert sample.finished.returns.tolist() == [10.0]
    assert served.runner._env_episodes._open == {}


def test_an_agent_that_waits_to_be_sampled_is_no_whole_env_episode_when_another_is_lost(serve: Serve) -> None:
    served = serve(*TWO)
    first = served.sample(5)
    other = Client(*served.address, extensions={"agents": {}})
    with Client(*served.address, extensions={"agents": {}}, reconnect_s=0) as client:
        client.send_episodes([{**episode(5), "agent_id": AGENTS[1], "id": "a", "is_terminated": False}])
        first.result(30)
        other.send_episodes([{**episode(5, seed), "agent_id": agent, "id": "b"} for seed, agent in enumerate(AGENTS)])
        client.send_episodes([{**episode(5), "agent_id": AGENTS[0], "id": "a"}])
    wait_until(lambda: len(served.runner._service.known) == 1)
    returns = [served.sample(5).result(30).finished.returns.tolist() for _ in range(2)]
    other.close()
    assert returns == [[10.0], []]


def test_after_a_restart_agents_go_on_in_their_env_episode(serve: Serve, tmp_path: Path) -> None:
    first = serve(*TWO, run_dir=tmp_path)
    sampling = first.sample(5)
    client = Client(*first.address, extensions={"agents": {}, "session": {"id": None}})
    for is_terminated in (True, False):  # the id's second env episode goes on
        client.send_episodes([{**episode(5), "agent_id": AGENTS[0], "id": "a", "is_terminated": is_terminated}])
        sample = sampling.result(30)
        sampling = first.sample(5)
    state = first.runner.get_state()
    second = serve(*TWO, run_dir=tmp_path, state=state)
    client.close()
    client._address = second.address
    sampling = second.sample(5)
    client.send_episodes([{**episode(5, 1), "agent_id": AGENTS[1], "id": "a"}])
    (block,) = sampling.result(30).rollout.blocks.values()
    (before,) = sample.rollout.blocks.values()
    assert block.agents.multi_agent_episode_ids == before.agents.multi_agent_episode_ids
    client.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_env_episodes_stay_whole(serve: Serve, tmp_path: Path, restarts: bool) -> None:
    """Also over a restart at which one agent has ended and the other goes on."""
    served = serve(*TWO, run_dir=tmp_path)
    client = Client(*served.address, extensions={"agents": {}, "session": {"id": None}})
    begun, rest = episode(5, 7), episode(5, 8)
    rest["obs"][0] = begun["obs"][-1]
    ids = [{"agent_id": agent, "id": "a"} for agent in AGENTS]
    sampling = served.sample(5)
    client.send_episodes([{**episode(5, 1), **ids[0]}, {**begun, **ids[1], "is_terminated": False}])
    sampling.result(30)
    if restarts:
        served = serve(*TWO, run_dir=tmp_path, state=served.runner.get_state())
        client.close()
        client._address = served.address
    returns = []
    for chunks in ([{**rest, **ids[1]}], *[[{**episode(5, seed), **names} for names in ids] for seed in (2, 3)]):
        sampling = served.sample(5)
        client.send_episodes(chunks)
        returns.append(sampling.result(30).finished.returns.tolist())
    client.close()
    assert returns == [[15.0], [10.0], [10.0]]


def test_after_steps_of_an_agent_were_refused_all_begin_the_next_env_episode(serve: Serve) -> None:
    served = serve(*TWO)
    ids = [{"agent_id": agent, "id": "a"} for agent in AGENTS]
    returns = []
    with Client(*served.address, extensions={"agents": {}}, reconnect_s=0) as client:
        sampling = served.sample(5)
        client.send_episodes([{**episode(5), **names, "is_terminated": False} for names in ids])
        sampling.result(30)
        later = episode(5, 1)
        later["obs"][0] = episode(5)["obs"][-1]
        with pytest.raises(RLlinkError, match="unknown_weights"):
            client.send_episodes([{**later, **ids[0], "weights_seq_no": 77}])
        assert not served.runner._service.queue._messages, "a rejected message is not queued"
        for seed in (2, 3):
            sampling = served.sample(5)
            if seed == 2:  # the end of the other agent's
                end = {**episode(1, 4), "obs": [episode(5)["obs"][-1], [0.0] * 4], **ids[1]}
                client.send_episodes([end])
            client.send_episodes([{**episode(5, seed), **names} for names in reversed(ids)])
            returns += sampling.result(30).finished.returns.tolist()
    assert returns == [10.0, 10.0]


def test_env_time_of_agents_that_are_not_always_there(serve: Serve) -> None:
    served = serve(*TWO)
    sampling = served.sample(3)
    with Client(*served.address) as client:
        client.send_episodes([{**episode(3), "agent_id": "agent_1", "id": "a", "env_t": [2, 4, 5, 9]}])
        with pytest.raises(RLlinkError, match="do not decrease"):
            client.send_episodes([{**episode(3), "agent_id": "agent_1", "id": "b", "env_t": [2, 1, 5, 9]}])
        odd: list[Any] = [[-1, 0, 1, 2], [0, 1, 2, 2**31], [0, 2**63 - 1, -5, 9]]
        for times in (*({"env_t": env_t} for env_t in odd), {"t_started": 2**31}):
            with pytest.raises(RLlinkError, match="4 env time steps from 0 to 2147483647"):
                client.send_episodes([{**episode(3), "agent_id": "agent_1", "id": "b", **times}])
    agents = sampling.result(30).rollout.blocks["second"].agents
    assert agents is not None
    assert agents.env_t.tolist() == [2, 4, 5, 9]


def test_the_server_acts_for_agents_that_end_at_different_times(serve: Serve) -> None:
    served = serve(*TWO)
    sampling = served.sample(5)
    obs = np.random.default_rng(0).normal(scale=0.1, size=(2, 6, 4)).astype(np.float32)
    with Client(*served.address) as client:
        for t in range(6):
            asked: list[dict[str, Any]] = [
                {
                    "id": "a",
                    "agent_id": agent,
                    "obs": obs[number, t],
                    "reward": float(t > 0),
                    "is_terminated": t == last,
                }
                for number, (agent, last) in enumerate(zip(AGENTS, (5, 3), strict=True))
                if t <= last
            ]
            actions = client.get_actions(asked)
            assert [action is None for action in actions] == [one["is_terminated"] for one in asked]
    sample = sampling.result(30)
    assert sample.rollout.num_env_steps == 5
    assert [sample.rollout.blocks[name].lengths.tolist() for name in ("first", "second")] == [[5], [3]]
    assert sample.rollout.blocks["second"].agents.agent_ids == ["agent_1"]  # type: ignore[union-attr]
    assert sample.finished.returns.tolist() == [8.0]


def test_an_agent_that_ended_is_no_whole_env_episode_when_another_is_lost_that_the_server_acted_for(
    serve: Serve,
) -> None:
    served = serve(*TWO)
    sampling = served.sample(10)
    obs = np.zeros(4, np.float32)
    both = [{"id": "a", "agent_id": agent, "obs": obs} for agent in AGENTS]
    with Client(*served.address, extensions={"agents": {}, "actions": {}}, reconnect_s=0) as client:
        client.get_actions(both)
        client.get_actions([{**both[0], "reward": 1.0, "is_terminated": True}])
    wait_until(lambda: not served.runner._service.known)
    with Client(*served.address) as client:
        client.send_episodes([{**episode(9), "agent_id": AGENTS[0], "id": "b", "is_env_done": True}])
    sample = sampling.result(30)
    assert sample.rollout.num_env_steps == 10
    assert sample.finished.returns.tolist() == [9.0]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"agent_id": "agent_7"}, "$.episodes[0].agent_id"),
        ({"agent_id": ...}, "$.episodes[0].agent_id"),
        ({"id": ...}, "$.episodes[0].id"),
    ],
)
def test_mistakes(serve: Serve, changes: dict[str, Any], path: str) -> None:
    served = serve(*TWO)
    served.sample(100)
    chunk = {**episode(3), "agent_id": "agent_1", "id": "a", **changes}
    with Client(*served.address) as client, pytest.raises(RLlinkError) as refused:
        client.send_episodes([{key: value for key, value in chunk.items() if value is not ...}])
    assert (refused.value.code, refused.value.path) == ("bad_message", path)


def test_a_client_that_knows_no_agents_is_told(serve: Serve) -> None:
    client = RawClient(serve(*TWO).address)
    assert client.ask({"type": "GET_CONFIG"})["code"] == "not_granted"
    client.close()


@pytest.mark.parametrize("inference", ["client", "server"])
def test_samplers(serve: Serve, inference: Any) -> None:
    served = serve(*TWO, "rllink.env_steps_per_sample=6")
    sampling = served.sample(6)
    with Client(*served.address) as client:
        sampler = client.sampler(inference, seed=0)
        obs = np.random.default_rng(0).normal(scale=0.1, size=(8, 4)).astype(np.float32)
        for agent in AGENTS:
            assert sampler.begin("a", obs[0], agent) in (0, 1)
        for t in range(1, 8):
            for agent in AGENTS:
                sampler.step("a", obs[t], 1.0, t == 7, False, agent)
    sample = sampling.result(30)
    assert sorted(sample.rollout.blocks) == ["first", "second"]
