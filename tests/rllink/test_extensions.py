"""Extensions, with the Python client and with raw frames."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from runner.rllink.check import CannotCheck, check_server
from runner.rllink.check.wire import Target
from runner.rllink.client import Client, RLlinkError, frames
from runner.rllink.client.frames import frame
from runner.rllink.client.packing import pack, unpack
from tests.conftest import wait_until
from tests.policy.test_onnx_policy import WithoutGraph
from tests.rllink.conftest import OFF, Connect, Serve, columns, episode, hello, outputs_of, part


def test_who_asks_for_nothing_gets_nothing(serve: Serve, connect: Connect) -> None:
    answer = connect(serve()).ask({"type": "PING", "protocol": 7})
    assert (answer["protocol"], answer["extensions"]) == (1, {})


def test_unknown_extensions_are_left_out(serve: Serve, connect: Connect) -> None:
    answer = hello(connect(serve()), msgpack={}, telepathy={}, agents={}, compression={"methods": ["brotli"]})
    assert answer["extensions"] == {"msgpack": {}}
    assert answer["limits"]["max_body_bytes"] == 99_999_999


def test_extensions_are_asked_for_once(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    hello(client, msgpack={})
    again = client.ask({"type": "PING", "extensions": {"actions": {}}})
    assert (again["code"], again["path"]) == ("bad_message", "$.extensions")
    assert client.ask({"type": "PING"}) == {"type": "PONG"}


@pytest.mark.parametrize("form", ["json", "msgpack lists", "msgpack blocks", "columns"])
def test_all_forms_say_the_same(serve: Serve, form: str) -> None:
    served = serve(OFF)
    sampling = served.sample(12)
    sent = [episode(5, 0), episode(7, 1)]
    extensions: dict[str, Any] = {} if form == "json" else {"msgpack": {}}
    with Client(*served.address, extensions=extensions) as client:
        if form == "columns":
            client.send_episodes([], columns=columns(*sent))
        elif form == "msgpack blocks":
            client.send_episodes(
                [{**one, "obs": np.float32(one["obs"]), "actions": np.int8(one["actions"])} for one in sent]
            )
        else:
            client.send_episodes(sent)
    block = sampling.result(30).rollout.blocks["default_policy"]
    np.testing.assert_array_equal(block.columns["obs"], np.float32(sent[0]["obs"] + sent[1]["obs"]))
    np.testing.assert_array_equal(block.columns["actions"], sent[0]["actions"] + sent[1]["actions"])
    assert block.lengths.tolist() == [5, 7]


BAD_BLOCKS = {
    "object": ({"dtype": "|O", "shape": [3, 4], "data": b"x" * 96}, "the dtype of an array block"),
    "big endian": ({"dtype": ">f4", "shape": [3, 4], "data": b"x" * 48}, "the dtype of an array block"),
    "too few bytes": ({"dtype": "<f4", "shape": [3, 4], "data": b"x" * 47}, "needs 48 bytes"),
    "negative": ({"dtype": "<f4", "shape": [-3, -4], "data": b"x" * 48}, "sizes"),
    "overflow": ({"dtype": "<f4", "shape": [2**62, 8], "data": b""}, "needs"),
    "wrong shape": ({"dtype": "<f4", "shape": [4, 3], "data": b"\0" * 48}, "shape"),
    "nan": ({"dtype": "<f4", "shape": [3, 4], "data": b"\xff" * 48}, "finite"),
    "no data": ({"dtype": "<f4", "shape": [3, 4]}, "data"),
    "wrong kind": ({"dtype": "<f8", "shape": [3], "data": b"\0" * 24}, "shape"),
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_bad_block_is_refused(serve: Serve, name: str) -> None:
    block, message = BAD_BLOCKS[name]
    served = serve(OFF)
    served.sample(1000)
    with Client(*served.address, extensions={"msgpack": {}}) as client:
        with pytest.raises(RLlinkError, match=message) as refused:
            client.send_episodes([{**episode(2), "obs": block}])
        assert refused.value.code == "bad_message"
        assert str(refused.value.path).startswith("$.episodes[0].obs")
        assert client.send_episodes([episode(2)]) == 1


def test_compression_both_ways_and_bombs(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.max_body_bytes=200000")
    sampling = served.sample(100)
    with Client(*served.address, compress=True) as client:
        assert client.get_config().env_steps_per_sample > 0
        client.send_episodes([episode(100)])
    assert sampling.result(30).rollout.num_env_steps == 100
    raw = connect(served)
    hello(raw, compression={"methods": ["gzip"]})
    assert raw.ask(gzip.compress(b" " * 200_001))["code"] == "bad_body"
    assert raw.ask(gzip.compress(b'{"type": "PING"}')[:-4])["code"] == "bad_body"
    assert raw.ask(gzip.compress(b'{"type": "PING"}'))["type"] == "PONG"


def test_large_headers_only_where_they_are_granted(serve: Serve, connect: Connect) -> None:
    served = serve()
    client = connect(served)
    hello(client, large_frames={})
    client.socket.sendall(b'+000000000000016{"type": "PING"}')
    assert client.receive() == {"type": "PONG"}
    client.socket.sendall(b"+000000100000000")
    assert client.receive()["code"] == "too_large"


def test_a_token_is_asked_for(serve: Serve, connect: Connect) -> None:
    served = serve("rllink.token=secret")
    client = connect(served)
    assert client.ask({"type": "GET_CONFIG"})["code"] == "unauthorized"
    assert client.ask({"type": "PING"}) == {"type": "PONG"}
    assert client.ask({"type": "PING", "extensions": {"msgpack": {}}})["code"] == "unauthorized"
    assert client.ask({"type": "PING", "token": "secret"}) == {"type": "PONG"}
    assert client.ask({"type": "GET_CONFIG"})["type"] == "SET_CONFIG"
    wrong = connect(served)
    assert wrong.ask({"type": "PING", "token": "Secret"})["code"] == "unauthorized"
    assert wrong.is_closed()
    with pytest.raises(RLlinkError, match="unauthorized"):
        Client(*served.address, token="no", reconnect_s=0)
    clients = [Client(*served.address, token="secret") for _ in range(2)]
    for one in clients:
        one.ping()
        one.close()


def test_a_heartbeat_while_an_answer_takes_long(serve: Serve, connect: Connect) -> None:
    served = serve()
    client = connect(served)
    hello(client, heartbeat={"interval_s": 0.2})
    client.send({"type": "GET_STATE"})  # there are no weights yet
    assert [client.receive()["type"] for _ in range(3)] == ["WAIT"] * 3
    served.sample(10)
    while (answer := client.receive())["type"] == "WAIT":
        pass
    assert answer["weights_seq_no"] == 1


class TestSessions:
    def test_a_repeated_request_is_answered_and_not_carried_out_again(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF)
        served.sample(1000)
        client = connect(served)
        session = hello(client, session={"id": None})["extensions"]["session"]
        assert session["resumed"] is False
        message = {"type": "EPISODES", "episodes": [episode(5)], "request": 1}
        answer = client.ask(message)
        assert answer == {"type": "ACK", "env_steps": 5, "weights_seq_no": 1, "request": 1}
        assert client.ask(message) == answer
        again = connect(served)  # the first connection is still there, and gives way
        assert hello(again, session={"id": session["id"]})["extensions"]["session"]["resumed"] is True
        assert client.is_closed()
        assert again.ask(message) == answer
        assert served.runner._service.counts.num_env_steps_received == 5
        for number in (0, 3):
            refused = again.ask({**message, "request": number})
            assert (refused["code"], refused["path"]) == ("bad_message", "$.request")
        assert again.ask({"type": "GET_CONFIG", "request": 2})["request"] == 2

    def test_episodes_go_on_in_the_next_connection(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF)
        sampling = served.sample(8)
        client = connect(served)
        session = hello(client, session={"id": None})["extensions"]["session"]
        whole = episode(8)
        client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 4)], "request": 1})
        client.close()
        client = connect(served)
        hello(client, session={"id": session["id"]})
        client.ask({"type": "EPISODES", "episodes": [part(whole, 4, 8, is_terminated=True)], "request": 2})
        sample = sampling.result(30)
        assert sample.rollout.blocks["default_policy"].lengths.tolist() == [8]
        assert sample.finished.returns.tolist() == [8.0]

    def test_an_answer_that_was_waited_for_is_there_when_the_client_comes_again(
        self, serve: Serve, connect: Connect
    ) -> None:
        served = serve()
        sampling = served.sample(5)
        client = connect(served)
        session = hello(client, session={"id": None})["extensions"]["session"]
        message = {"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)], "request": 1}
        client.send(message)
        sampling.result(30)
        client.close()
        served.sample(5, update=True)
        client = connect(served)
        hello(client, session={"id": session["id"]})
        assert client.ask(message)["weights_seq_no"] == 2
        assert served.runner._service.counts.num_env_steps_received == 5

    def test_a_session_that_nobody_comes_back_to_ends(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF, "rllink.session_timeout_s=0.2")
        served.sample(1000)
        client = connect(served)
        session = hello(client, session={"id": None})["extensions"]["session"]
        open_part = {**episode(5, is_terminated=False), "id": "a"}
        client.ask({"type": "EPISODES", "episodes": [open_part], "request": 1})
        client.close()
        wait_until(lambda: served.runner._service.counts.num_episodes_lost > 0)
        assert served.runner._service.counts.num_episodes_lost == 1
        renewed = hello(connect(served), session={"id": session["id"]})["extensions"]["session"]
        assert renewed["resumed"] is False

    def test_the_client_comes_again_by_itself(self, serve: Serve) -> None:
        served = serve(OFF)
        served.sample(1000)
        with Client(*served.address) as client:
            client.send_episodes([episode(5)])
            client._socket.close()  # type: ignore[union-attr]
            client.send_episodes([episode(6)])
            assert client.extensions["session"]["resumed"] is True
        assert served.runner._service.counts.num_env_steps_received == 11

    def test_a_refused_request_gives_its_number_back(self, serve: Serve) -> None:
        served = serve(OFF)
        served.sample(1000)
        with Client(*served.address) as client:
            for _ in range(2):
                with pytest.raises(RLlinkError, match="bad_message"):
                    client.send_episodes([{**episode(5), "rewards": [1.0]}])
                with pytest.raises(RLlinkError, match="bad_message"):
                    client.get_actions([{"id": "a", "obs": [1.0]}])
                client.send_episodes([episode(5)])


class TestActions:
    def test_the_server_acts_and_samples_its_steps(self, serve: Serve) -> None:
        served = serve()
        sampling = served.sample(6)
        rng = np.random.default_rng(0)
        obs = rng.normal(scale=0.1, size=(8, 4)).astype(np.float32)
        with Client(*served.address) as client:
            actions = [client.get_actions([{"id": "a", "obs": obs[0]}])[0]]
            for t in range(1, 6):
                actions += client.get_actions([{"id": "a", "obs": obs[t], "reward": float(t)}])
            ended = client.get_actions([{"id": "a", "obs": obs[6], "reward": 6.0, "is_terminated": True}])
        assert ended == [None]
        assert set(actions) <= {0, 1}
        sample = sampling.result(30)
        block = sample.rollout.blocks["default_policy"]
        np.testing.assert_array_equal(block.columns["obs"], obs[:7])
        assert block.columns["actions"].tolist() == actions
        assert block.columns["rewards"].tolist() == [1, 2, 3, 4, 5, 6]
        assert block.columns["action_logp"].shape == (6,)
        assert block.is_terminated.tolist() == [True]
        assert sample.finished.returns.tolist() == [21.0]

    def test_an_episode_goes_on_over_samples(self, serve: Serve) -> None:
        served = serve(OFF)
        obs = np.random.default_rng(0).normal(scale=0.1, size=(30, 4)).astype(np.float32)
        with Client(*served.address) as client:
            sampling = served.sample(3)
            for t in range(4):
                client.get_actions([{"id": "a", "obs": obs[t], "reward": 1.0 if t else 0.0}])
            first = sampling.result(30).rollout.blocks["default_policy"]
            sampling = served.sample(2, update=True)
            for t in range(4, 6):
                client.get_actions([{"id": "a", "obs": obs[t], "reward": 1.0, "is_truncated": t == 5}])
            second = sampling.result(30)
        block = second.rollout.blocks["default_policy"]
        np.testing.assert_array_equal(first.columns["obs"], obs[:4])
        np.testing.assert_array_equal(block.columns["obs"], obs[3:6])
        assert block.t_started.tolist() == [3]
        assert second.finished.lengths.tolist() == [5]

    def test_greedy_actions_are_the_most_likely_ones(self, serve: Serve) -> None:
        served = serve(OFF)
        served.sample(1000)
        obs = np.random.default_rng(0).normal(scale=0.1, size=(40, 4)).astype(np.float32)
        with Client(*served.address) as client:
            asked = [{"id": str(number), "obs": row} for number, row in enumerate(obs)]
            actions = client.get_actions(asked, explore=False)
        assert actions == outputs_of(served, served.weights, obs).argmax(-1).tolist()

    def test_actions_come_from_the_newest_weights(self, serve: Serve) -> None:
        served = serve(OFF)
        obs = np.random.default_rng(0).normal(scale=0.1, size=(200, 4)).astype(np.float32)
        asked = [{"id": str(number), "obs": row} for number, row in enumerate(obs)]
        initial = outputs_of(served, served.weights, obs).argmax(-1).tolist()
        served.weights = {key: -vector for key, vector in served.weights.items()}
        served.sample(1000)
        expected = outputs_of(served, served.weights, obs).argmax(-1).tolist()
        assert expected != initial
        with Client(*served.address) as client:
            assert client.get_actions(asked, explore=False) == expected

    def test_many_clients_at_once_get_their_own(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF)
        served.sample(100_000)
        clients = [connect(served) for _ in range(70)]
        for client in clients:
            hello(client, actions={})
        for t in range(3):
            for number, client in enumerate(clients):
                obs = [number / 20, 0.0, 0.0, t / 20]
                client.send({"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": obs, "reward": float(t > 0)}]})
            assert {client.receive()["type"] for client in clients} == {"ACTIONS"}
        counts = served.runner._service.counts
        assert counts.num_env_steps_acted == 140
        clients[0].close()
        clients[1].ask({"type": "PING"})
        assert clients[1].ask({"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": [0.0] * 4}]})["type"] == "ACTIONS"
        assert counts.num_episodes_lost == 1

    def test_mistakes_are_those_of_one_client(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF)
        served.sample(1000)
        good, bad = connect(served), connect(served)
        for client in (good, bad):
            hello(client, actions={})
        bad.send({"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": [0.0] * 3}]})
        good.send({"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": [0.0] * 4}]})
        refused = bad.receive()
        assert (refused["code"], refused["path"]) == ("bad_message", "$.episodes[0].obs")
        assert good.receive()["type"] == "ACTIONS"
        first = {"id": "y", "obs": [0.0] * 4, "reward": 1.0}
        unknown = bad.ask({"type": "GET_ACTIONS", "episodes": [first]})
        assert (unknown["code"], unknown["path"]) == ("unknown_episode", "$.episodes[0].id")
        twice = [{"id": "y", "obs": [0.0] * 4}] * 2
        assert bad.ask({"type": "GET_ACTIONS", "episodes": twice})["path"] == "$.episodes"

    def test_without_the_extension(self, serve: Serve, connect: Connect) -> None:
        served = serve(OFF)
        served.sample(10)
        refused = connect(served).ask({"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": [0.0] * 4}]})
        assert refused["code"] == "not_granted"


def test_a_policy_that_cannot_be_exported(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A client without the ONNX graph, or one that lets the server act, is served all the same."""
    connector = f"{{_target_: {WithoutGraph.__module__}.{WithoutGraph.__name__}}}"
    edit = f"{{insert_after: AddObservationsFromEpisodesToBatch, connector: {connector}}}"
    served = serve(f"connectors.env_to_module=[{edit}]", f"connectors.learner=[{edit}]", OFF)
    assert "connector WithoutGraph cannot be exported" in caplog.text
    sampling = served.sample(6)
    with Client(*served.address, extensions={"actions": {}}, reconnect_s=0) as client:
        for ask in (client.get_state, lambda: client.send_episodes_and_get_state([episode(3)])):
            with pytest.raises(
                RLlinkError, match="connector WithoutGraph cannot be exported; request actions"
            ) as refused:
                ask()
            assert refused.value.code == "not_exportable"
        with pytest.raises(CannotCheck, match="cannot be exported to ONNX"):
            list(check_server(Target(*served.address)))
        client.get_actions([{"id": "a", "obs": [0.0] * 4}])
        client.get_actions([{"id": "a", "obs": [0.0] * 4, "reward": 1.0, "is_terminated": True}])
        client.send_episodes([episode(5)])
    assert sampling.result(30).rollout.num_env_steps == 6
    with Client(*served.address, extensions={"weights": {"format": "safetensors"}}, reconnect_s=0) as client:
        assert client.get_state().seq_no == 1


def test_weights_as_safetensors(serve: Serve) -> None:
    import safetensors.numpy

    served = serve()
    served.sample(10)
    with Client(*served.address, extensions={"weights": {"format": "safetensors"}}) as client:
        tensors = safetensors.numpy.load(client.get_state().files[None])
    flat = np.concatenate([tensor.reshape(-1) for tensor in tensors.values()])
    np.testing.assert_allclose(np.sort(flat), np.sort(served.weights["default_policy"]))


def test_shared_memory(serve: Serve, connect: Connect) -> None:
    from multiprocessing.shared_memory import SharedMemory

    served = serve(OFF, "rllink.shared_memory_bytes=100000")
    sampling = served.sample(50)
    client = connect(served)
    granted = hello(client, shared_memory={}, msgpack={})["extensions"]["shared_memory"]
    memory = SharedMemory(granted["name"])
    body = pack({"type": "EPISODES", "columns": columns(episode(50))})
    memory.buf[: len(body)] = body
    client.socket.sendall(b"@%07d%d" % (len(str(len(body))), len(body)))
    assert unpack(client.receive_body())["env_steps"] == 50
    assert sampling.result(30).rollout.num_env_steps == 50
    client.socket.sendall(b"@00000079999999")
    assert client.receive()["code"] == "bad_body"
    client.socket.sendall(b"@000000212")  # the first bytes of the last body
    assert unpack(client.receive_body())["code"] == "bad_body"
    client.socket.sendall(b"@0005000" + b"1" * 5000)  # more digits than Python converts
    assert client.receive()["code"] == "bad_body"
    memory.close()
    client.close()


def test_the_client_passes_long_messages_through_shared_memory(serve: Serve) -> None:
    served = serve(OFF, "rllink.shared_memory_bytes=100000")
    sampling = served.sample(5200)
    with Client(*served.address, share_memory=True) as client:
        client.send_episodes([], columns=columns(episode(200)))  # fits
        client.send_episodes([], columns=columns(*(episode(1000, seed) for seed in range(5))))  # does not
    block = sampling.result(30).rollout.blocks["default_policy"]
    np.testing.assert_array_equal(block.columns["obs"][:201], np.float32(episode(200)["obs"]))
    assert block.lengths.tolist() == [200, *[1000] * 5]


def test_without_the_servers_memory_messages_use_the_connection(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(OFF)
    sampling = served.sample(200)
    monkeypatch.setattr(frames, "_FOLDER", str(tmp_path))  # as on another machine, behind a tunnel
    with Client(*served.address, share_memory=True, reconnect_s=1) as client:
        client.send_episodes([], columns=columns(episode(200)))
    assert sampling.result(10).rollout.num_env_steps == 200


def test_json_clients_get_json(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    hello(client, msgpack={})
    assert client.ask({"type": "PING"}) == {"type": "PONG"}
    client.socket.sendall(frame(msgpack.packb({"type": "GET_CONFIG"})))
    assert msgpack.unpackb(client.receive_body())["type"] == "SET_CONFIG"
    assert json.dumps(client.ask({"type": "GET_CONFIG"}))
