"""The base protocol, spoken with raw frames: what the original draft has, and error answers for everything else."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import onnxruntime
import pytest

from runner.config.metrics import producible_metrics
from runner.episodes.spaces import space_from_dict
from tests.rllink.conftest import OFF, Connect, Serve, Served, episode, outputs_of, part


def test_the_handshake_is_the_draft_to_the_byte(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    client.socket.sendall(b'00000016{"type": "PING"}')
    assert client.socket.recv(100) == b'00000016{"type": "PONG"}'


def test_configuration_says_spaces_and_how_to_sample(serve: Serve, connect: Connect) -> None:
    served = serve("rllink.env_steps_per_sample=123")
    config = connect(served).ask({"type": "GET_CONFIG"})
    assert config.pop("type") == "SET_CONFIG"
    assert (config["env_steps_per_sample"], config["force_on_policy"]) == (123, True)
    assert space_from_dict(config["observation_space"]).shape == (4,)
    assert space_from_dict(config["action_space"]).n == 2
    assert sorted(config) == ["action_space", "env_steps_per_sample", "force_on_policy", "observation_space"]


def test_a_state_is_a_policy(serve: Serve, connect: Connect) -> None:
    served = serve()
    served.sample(10)
    state = connect(served).ask({"type": "GET_STATE"})
    assert sorted(state) == ["onnx_file", "type", "weights_seq_no"]
    assert (state["type"], state["weights_seq_no"]) == ("SET_STATE", 1)
    session = onnxruntime.InferenceSession(gzip.decompress(base64.b64decode(state["onnx_file"])))
    outputs = [output.name for output in session.get_outputs()]
    results = dict(zip(outputs, session.run(None, {"obs": np.zeros((3, 4), np.float32)}), strict=True))
    assert results["action_dist_inputs"].shape == (3, 2)
    assert results["actions"].shape == (3,)


def test_episodes_become_what_is_learned_from(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(12)
    client = connect(served)
    sent = [episode(5, 0), episode(7, 1, is_terminated=False, is_truncated=True)]
    answer = client.ask({"type": "EPISODES", "episodes": sent, "weights_seq_no": 1, "env_steps": 12})
    assert answer == {"type": "ACK", "env_steps": 12, "weights_seq_no": 1}
    sample = sampling.result(30)
    block = sample.rollout.blocks["default_policy"]
    assert sample.rollout.num_env_steps == 12
    assert block.lengths.tolist() == [5, 7]
    np.testing.assert_array_equal(block.columns["obs"], np.float32(sent[0]["obs"] + sent[1]["obs"]))
    np.testing.assert_array_equal(block.columns["actions"], sent[0]["actions"] + sent[1]["actions"])
    assert block.is_terminated.tolist() == [True, False]
    assert block.is_truncated.tolist() == [False, True]
    assert block.columns["action_logp"].shape == (12,)
    assert sample.finished.returns.tolist() == [5.0, 7.0]
    assert sample.finished.lengths.tolist() == [5, 7]
    assert {name for name in producible_metrics(served.config) if name.startswith("rllink/")} == set(sample.counts)


def test_on_policy_the_answer_waits_for_new_weights(serve: Serve, connect: Connect) -> None:
    served = serve()
    sampling = served.sample(10)
    client = connect(served)
    assert client.ask({"type": "GET_STATE"})["weights_seq_no"] == 1
    client.socket.settimeout(0.5)
    client.send({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(10)], "weights_seq_no": 1})
    sampling.result(30)
    with pytest.raises(TimeoutError):
        client.receive()
    served.sample(10, update=True)
    client.socket.settimeout(10)
    assert client.receive()["weights_seq_no"] == 2


def test_steps_that_do_not_suffice_are_followed_by_more_with_the_same_weights(serve: Serve, connect: Connect) -> None:
    served = serve()
    sampling = served.sample(20)
    first, second = connect(served), connect(served)
    assert first.ask({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})["weights_seq_no"] == 1
    second.send({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})
    first.send({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})
    assert {second.receive()["weights_seq_no"], first.receive()["weights_seq_no"]} == {1}
    first.send({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})
    assert sampling.result(30).rollout.num_env_steps == 20


def test_off_policy_nobody_waits(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    served.sample(1000)
    client = connect(served)
    for _ in range(3):
        answer = client.ask({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})
        assert (answer["type"], answer["weights_seq_no"]) == ("SET_STATE", 1)


def test_old_weights_are_refused_on_policy_and_counted(serve: Serve, connect: Connect) -> None:
    served = serve()
    sampling = served.sample(5)
    client = connect(served)
    assert client.ask({"type": "EPISODES", "episodes": [episode(5)]})["type"] == "ACK"
    sampling.result(30)
    refused = client.ask({"type": "EPISODES", "episodes": [episode(4)]})  # an update is being made
    assert refused["code"] == "stale_weights"
    sampling = served.sample(5, update=True)
    assert client.ask({"type": "GET_STATE"})["weights_seq_no"] == 2
    refused = client.ask({"type": "EPISODES", "episodes": [episode(3)], "weights_seq_no": 1})
    assert refused["code"] == "stale_weights"
    client.ask({"type": "EPISODES", "episodes": [episode(5)]})
    assert sampling.result(30).counts["rllink/num_env_steps_stale"] == 7


def test_off_policy_a_few_versions_are_kept(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.num_kept_weights=2")
    client = connect(served)
    for _ in range(3):
        sampling = served.sample(5, update=True)
        client.ask({"type": "GET_STATE"})
        client.ask({"type": "EPISODES", "episodes": [episode(5)]})
        sampling.result(30)
    sampling = served.sample(5)
    refused = client.ask({"type": "EPISODES", "episodes": [episode(5)], "weights_seq_no": 1})
    assert refused["code"] == "unknown_weights"
    refused = client.ask({"type": "EPISODES", "episodes": [episode(5)], "weights_seq_no": 9})
    assert refused["code"] == "unknown_weights"
    complete = episode(5, action_logp=[-0.5] * 5, action_dist_inputs=[[0.0, 0.0]] * 5)
    assert client.ask({"type": "EPISODES", "episodes": [complete], "weights_seq_no": 1})["type"] == "ACK"
    block = sampling.result(30).rollout.blocks["default_policy"]
    assert block.columns["action_logp"].tolist() == [-0.5] * 5


def test_each_part_is_judged_with_the_weights_that_acted(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    client = connect(served)
    sampling = served.sample(5)
    old = dict(served.weights)
    client.ask({"type": "EPISODES", "episodes": [episode(5)]})
    sampling.result(30)
    sampling = served.sample(10, update=True)
    client.ask({"type": "GET_STATE"})
    parts = [episode(5, 3, weights_seq_no=1), episode(5, 3)]
    client.ask({"type": "EPISODES", "episodes": parts})
    inputs = sampling.result(30).rollout.blocks["default_policy"].columns["action_dist_inputs"]
    expected = [outputs_of(served, weights, parts[0]["obs"][:-1]) for weights in (old, served.weights)]
    np.testing.assert_allclose(inputs, np.concatenate(expected), rtol=1e-5, atol=1e-6)
    assert not np.allclose(inputs[:5], inputs[5:])


def test_parts_with_one_id_are_one_episode(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(9)
    client = connect(served)
    whole = episode(15, 4)
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 4, id="a"), part(whole, 0, 2, id="b")]})
    client.ask({"type": "EPISODES", "episodes": [part(whole, 4, 7, id="a")]})
    sample = sampling.result(30)
    block = sample.rollout.blocks["default_policy"]
    assert block.lengths.tolist() == [7, 2]
    np.testing.assert_array_equal(block.columns["obs"][:8], np.float32(whole["obs"][:8]))
    assert not block.is_terminated.any()
    assert not block.is_truncated.any()
    assert len(sample.finished.returns) == 0
    sampling = served.sample(8)
    client.ask({"type": "EPISODES", "episodes": [part(whole, 7, 15, id="a", is_terminated=True)]})
    sample = sampling.result(30)
    block = sample.rollout.blocks["default_policy"]
    assert block.t_started.tolist() == [7]
    assert (sample.finished.returns.tolist(), sample.finished.lengths.tolist()) == ([15.0], [15])
    np.testing.assert_array_equal(block.lookback.columns_before(0)["obs"], np.float32(whole["obs"][6:7]))


def test_a_part_that_does_not_go_on_where_the_last_ended(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    served.sample(100)
    client = connect(served)
    client.ask({"type": "EPISODES", "episodes": [part(episode(5, 0), 0, 3, id="a")]})
    refused = client.ask({"type": "EPISODES", "episodes": [part(episode(5, 1), 3, 5, id="a")]})
    assert (refused["code"], refused["path"]) == ("bad_message", "$.episodes[0].obs")


def test_without_an_id_an_open_end_is_a_cut(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(5)
    connect(served).ask({"type": "EPISODES", "episodes": [episode(5, is_terminated=False)]})
    sample = sampling.result(30)
    assert sample.rollout.blocks["default_policy"].is_truncated.tolist() == [True]
    assert len(sample.finished.returns) == 0  # nobody knows how much more there was


def test_a_client_that_goes_truncates_its_episodes_and_nothing_else(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    first, second = connect(served), connect(served)
    served_steps = served.sample(12)
    for client, seed in ((first, 0), (second, 1)):
        client.ask({"type": "EPISODES", "episodes": [part(episode(9, seed), 0, 4, id="a")]})
    first.close()
    second.ask({"type": "PING"})
    second.ask({"type": "EPISODES", "episodes": [part(episode(9, 1), 4, 8, id="a")]})
    block = served_steps.result(30).rollout.blocks["default_policy"]
    assert block.lengths.tolist() == [4, 8]
    assert block.is_truncated.tolist() == [True, False]


GOOD = {"type": "EPISODES", "episodes": [episode(2)]}


def _changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The good message with one value changed, or left out for ...; the path of what changed."""
    message: Any = json.loads(json.dumps(GOOD))
    place = message
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return message  # type: ignore[no-any-return]


E = ("episodes", 0)
# `test_faults.py` tests every missing and unknown key, and every value of another type.
MISTAKES = {
    "no episodes": (("episodes",), ..., "$.episodes"),
    "obs no list": ((*E, "obs"), "x", "$.episodes[0].obs"),
    "obs of text": ((*E, "obs", 1), ["a", 0, 0, 0], "$.episodes[0].obs[1][0]"),
    "obs too short": ((*E, "obs", 1), [0.0, 0.0, 0.0], "$.episodes[0].obs[1]"),
    "obs null": ((*E, "obs", 2), None, "$.episodes[0].obs[2]"),
    "one obs too few": ((*E, "obs"), [[0.0] * 4] * 2, "$.episodes[0].obs"),
    "one action too many": ((*E, "actions"), [0, 1, 0], "$.episodes[0].obs"),
    "action out of range": ((*E, "actions", 1), 2, "$.episodes[0].actions[1]"),
    "action a float": ((*E, "actions", 0), 0.5, "$.episodes[0].actions[0]"),
    "no action": ((*E, "actions"), [], "$.episodes[0].actions"),
    "reward text": ((*E, "rewards", 0), "1", "$.episodes[0].rewards[0]"),
    "reward too few": ((*E, "rewards"), [1.0], "$.episodes[0].rewards"),
    "both": ((*E, "is_truncated"), True, "$.episodes[0].is_truncated"),
    "id empty": ((*E, "id"), "", "$.episodes[0].id"),
    "start too late": ((*E, "t_started"), 2**53 + 1, "$.episodes[0].t_started"),
    "wrong env_steps": (("env_steps",), 3, "$.env_steps"),
    "logp too few": ((*E, "action_logp"), [0.0], "$.episodes[0].action_logp"),
    "dist inputs too narrow": ((*E, "action_dist_inputs"), [[0.0], [0.0]], "$.episodes[0].action_dist_inputs"),
    "agent": ((*E, "agent_id"), "a", "$.episodes[0].agent_id"),
    "request without a session": (("request",), 1, "$.request"),
}


@pytest.fixture(scope="module")
def shared_server() -> Any:
    served = Served(OFF)
    served.sample(10**6)
    yield served
    served.close()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_path(shared_server: Served, connect: Connect, mistake: str) -> None:
    path, value, expected = MISTAKES[mistake]
    client = connect(shared_server)
    before = shared_server.runner._service.counts.num_env_steps_received
    refused = client.ask(_changed(path, value))
    assert refused["type"] == "ERROR"
    assert refused["code"] == ("not_granted" if "session" in mistake else "bad_message")
    assert refused["path"] == expected
    assert shared_server.runner._service.counts.num_env_steps_received == before
    assert client.ask(GOOD)["type"] == "ACK"  # the connection is as good as before


def test_a_type_that_is_nearly_right_is_suggested(shared_server: Served, connect: Connect) -> None:
    refused = connect(shared_server).ask({"type": "EPISODE"})
    assert refused["code"] == "unknown_type"
    assert "did you mean EPISODES?" in refused["message"]


def test_requests_are_answered_in_order(shared_server: Served, connect: Connect) -> None:
    client = connect(shared_server)
    kinds = ["PING", "GET_CONFIG", "PING", "GET_STATE", "PING"] * 4
    for kind in kinds:
        client.send({"type": kind})
    answers = [client.receive()["type"] for _ in kinds]
    assert answers == ["PONG", "SET_CONFIG", "PONG", "SET_STATE", "PONG"] * 4


def test_weights_are_made_once_for_all_clients(serve: Serve, connect: Connect) -> None:
    served = serve()
    served.sample(10)
    states = [connect(served).ask({"type": "GET_STATE"}) for _ in range(20)]
    assert len({state["onnx_file"] for state in states}) == 1
    assert served.runner._service.versions.num_files_made == 1
