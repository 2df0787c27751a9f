"""Clients that wait for each other, and episodes with gaps."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.env_runners.sample import Sample
from runner.interrupts import Interrupted
from runner.rllink import batches
from runner.rllink.client import Client, RLlinkError
from tests.rllink.conftest import OFF, Connect, Serve, Served, episode, hello, outputs_of, part


def test_the_rest_of_an_episode_with_a_gap_goes_on_in_any_number_of_parts(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(9)
    client, whole = connect(served), episode(20)
    for start, stop in ((5, 8), (8, 11), (11, 14)):
        chunk = part(whole, start, stop, t_started=start, is_terminated=stop == 14)
        assert client.ask({"type": "EPISODES", "episodes": [chunk]})["type"] == "ACK"
    sample = sampling.result(30)
    block = sample.rollout.blocks["default_policy"]
    assert (block.lengths.tolist(), block.t_started.tolist()) == ([9], [5])
    assert len(sample.finished.returns) == 0  # nobody knows the whole
    wrong = part(whole, 3, 5, id="b", t_started=3)
    client.ask({"type": "EPISODES", "episodes": [wrong]})
    refused = client.ask({"type": "EPISODES", "episodes": [part(whole, 5, 7, id="b", t_started=4)]})
    assert refused["path"] == "$.episodes[0].t_started"


@pytest.mark.parametrize("reward", [1.0, 1e4], ids=["usual", "beyond_the_bound_after_the_restart"])
def test_steps_that_were_refused_do_not_hinder_a_restart(
    serve: Serve, connect: Connect, tmp_path: Path, reward: float
) -> None:
    first = serve("rllink.max_abs_reward=1e10", run_dir=tmp_path)
    sampling = first.sample(4)
    state = first.runner.get_state()
    client, whole = connect(first), episode(20)
    hello(client, session={"id": None})
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 4)], "request": 1})
    sampling.result(30)
    first.sample(100, update=True)
    stale = {"type": "EPISODES", "episodes": [part(whole, 4, 6)], "weights_seq_no": 1, "request": 2}
    assert client.ask(stale)["code"] == "stale_weights"
    rest = part(whole, 6, 9, t_started=6, rewards=[reward] * 3)
    assert client.ask({"type": "EPISODES", "episodes": [rest], "weights_seq_no": 2, "request": 2})["type"] == "ACK"
    second = serve(OFF, run_dir=tmp_path, state=state)
    block = second.sample(7).result(30).rollout.blocks["default_policy"]
    assert sorted(block.lengths.tolist()) == [3, 4]


def test_a_message_that_is_refused_is_not_in_the_journal(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    served = serve(OFF, "rllink.max_open_episodes=1", run_dir=tmp_path)
    served.sample(100)
    client = connect(served)
    both = [part(episode(4, seed), 0, 2, id=str(seed)) for seed in range(2)]
    assert client.ask({"type": "EPISODES", "episodes": both})["code"] == "too_many_episodes"
    assert served.runner._journal.num_records == 0


def test_a_sample_without_weights_keeps_those_of_the_sample_before(serve: Serve) -> None:
    served = serve(OFF)
    with Client(*served.address) as client:
        first = served.sample(5, update=True)
        client.send_episodes([episode(5)])
        before = first.result(30).counts["rllink/weights_seq_no"]
        client.send_episodes([episode(5, 1)])
        assert served.runner.sample(5).counts["rllink/weights_seq_no"] == before


def test_who_waits_for_weights_gets_them_also_if_they_did_not_change(serve: Serve, connect: Connect) -> None:
    served = serve()
    sampling = served.sample(5)
    client = connect(served)
    client.ask({"type": "EPISODES", "episodes": [episode(5)]})
    sampling.result(30)
    client.send({"type": "GET_STATE"})  # an update is being made, which changes nothing
    served.sample(5)
    assert client.receive()["weights_seq_no"] == 1


def test_a_simulator_that_went_quiet_holds_nobody_up(serve: Serve, connect: Connect) -> None:
    served = serve()
    served.sample(1000)
    quiet, busy = connect(served), connect(served)
    assert quiet.ask({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})["weights_seq_no"] == 1
    for _ in range(3):
        assert busy.ask({"type": "EPISODES_AND_GET_STATE", "episodes": [episode(5)]})["weights_seq_no"] == 1


def test_a_full_queue_makes_clients_wait_until_a_batch_is_taken(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.max_queued_env_steps=10")
    sampling = served.sample(30)  # more than the queue may hold: while a batch is being collected nobody waits
    client = connect(served)
    for _ in range(6):
        assert client.ask({"type": "EPISODES", "episodes": [episode(5)]})["type"] == "ACK"
    sampling.result(30)
    for kind in ("EPISODES", "EPISODES_AND_GET_STATE"):
        client.socket.settimeout(30)
        client.ask({"type": kind, "episodes": [episode(10)]})
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.ask({"type": kind, "episodes": [episode(5)]})
        served.sample(15).result(30)
        client.socket.settimeout(30)
        assert client.receive()["type"] in ("ACK", "SET_STATE")


def test_old_weights_stay_as_long_as_what_they_acted_in_waits(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.num_kept_weights=1")
    client = connect(served)
    sampling = served.sample(5)
    client.ask({"type": "GET_STATE"})
    sent = [episode(5, seed) for seed in range(3)]
    for one in sent:
        client.ask({"type": "EPISODES", "episodes": [one], "weights_seq_no": 1})
    blocks = [sampling.result(30).rollout.blocks["default_policy"]]
    old = dict(served.weights)
    blocks += [served.sample(5, update=True).result(30).rollout.blocks["default_policy"] for _ in range(2)]

    for block, one in zip(blocks, sent, strict=True):
        expected = outputs_of(served, old, one["obs"][:-1])
        assert abs(block.columns["action_dist_inputs"] - expected).max() < 1e-5


def test_a_module_that_fails_answers_everybody(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(OFF)
    served.sample(100)
    inference = served.runner._service._actions._inference["default_policy"]
    forward = inference._forward

    def failing(explore: bool) -> Any:
        raise ValueError("no action is allowed")

    with Client(*served.address) as client:
        client.get_actions([{"id": "a", "obs": [0.0] * 4}])
        monkeypatch.setattr(inference, "_forward", failing)
        with pytest.raises(RuntimeError, match="no action is allowed"):
            client.get_actions([{"id": "a", "obs": [0.0] * 4, "reward": 1.0}])
        monkeypatch.setattr(inference, "_forward", forward)
        with pytest.raises(RuntimeError, match="unknown_episode"):
            client.get_actions([{"id": "a", "obs": [0.0] * 4, "reward": 1.0}])
        assert client.get_actions([{"id": "a", "obs": [0.0] * 4}]) in ([0], [1])


def test_a_mask_that_forbids_every_action_concerns_only_its_request(serve: Serve) -> None:
    served = serve(OFF, "env=masked_cartpole", "env.port=0", "module.action_mask_key=action_mask")
    served.sample(100)

    def observed(allowed: int, **more: Any) -> list[dict[str, Any]]:
        mask = [int(action < allowed) for action in range(4)]
        return [{"id": "a", "obs": {"observations": [0.0] * 4, "action_mask": mask}, **more}]

    with Client(*served.address) as client:
        assert client.get_actions(observed(1)) == [0]
        with pytest.raises(RLlinkError, match="the action mask forbids every action") as caught:
            client.get_actions(observed(0, reward=1.0))
        assert (caught.value.code, caught.value.path) == ("bad_message", "$.episodes[0].obs")
        assert client.get_actions(observed(1, reward=1.0)) == [0]  # the episode is still open
        assert client.get_actions(observed(0, reward=1.0, is_terminated=True)) == [None]  # no action is needed


def test_a_mistake_of_the_caller_costs_no_number(serve: Serve) -> None:
    served = serve(OFF)
    served.sample(100)
    with Client(*served.address) as client:
        with pytest.raises(TypeError):
            client.send_episodes([{**episode(3), "obs": [threading]}])
        assert client.send_episodes([episode(3)]) == 1


def test_before_the_token_nothing_long_is_read(serve: Serve, connect: Connect) -> None:
    client = connect(serve("rllink.token=secret"))
    client.socket.sendall(b"00004097")
    assert client.receive()["code"] == "too_large"


def test_a_batch_that_is_complete_when_a_run_is_interrupted_is_sampled(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are acknowledged and have left the queue, so a checkpoint would not contain them."""
    served = serve(OFF)
    client = connect(served)

    def completed_meanwhile() -> bool:
        return client.ask({"type": "EPISODES", "episodes": [episode(5)]})["type"] == "ACK"

    monkeypatch.setattr(batches, "is_interrupted", completed_meanwhile)
    assert served.sample(5).result(10).rollout.num_env_steps == 5
    client.ask({"type": "EPISODES", "episodes": [episode(5, 1)]})
    monkeypatch.setattr(batches, "is_interrupted", lambda: True)
    with pytest.raises(Interrupted):
        served.sample(6).result(10)
    assert served.sample(5).result(10).rollout.num_env_steps == 5  # the steps stayed in the queue


FILTER = "connectors.env_to_module=[{prepend: {_target_: runner.pipelines.MeanStdFilter}}]"


def merged(served: Served, *samples: Sample) -> dict[str, Any]:
    """As a group of runners merges what they have learned."""
    states = [state["default_policy"] for one in samples for state in (one.shared_state, *one.further_states)]
    pipeline, _ = served.runner.pipelines_of("default_policy")
    return {"default_policy": pipeline.merge_states(states)}


def num_rows(shared: dict[str, Any]) -> float:
    return float(shared["default_policy"]["MeanStdFilter"]["merged_count"])


def test_statistics_of_several_servers_are_merged(serve: Serve, connect: Connect) -> None:
    servers = [serve(FILTER, OFF) for _ in range(2)]
    samplings = [served.sample(5) for served in servers]
    for seed, served in enumerate(servers):
        connect(served).ask({"type": "EPISODES", "episodes": [episode(5, seed)]})
    assert num_rows(merged(servers[0], *[sampling.result(30) for sampling in samplings])) == 12


def test_what_is_learned_while_acting_is_counted_once(serve: Serve) -> None:
    """This includes the steps while the learner is busy."""
    served = serve(FILTER, OFF)
    shared: dict[str, Any] = {}
    counted = []
    with Client(*served.address, extensions={"actions": {}}, reconnect_s=0) as client:
        sampling = served.sample(10)
        client.get_actions([{"id": "a", "obs": [0.0] * 4}])
        for update in (False, True, True):
            for _ in range(10):
                client.get_actions([{"id": "a", "obs": [0.1] * 4, "reward": 1.0}])
            shared = merged(served, sampling.result(30))
            counted.append(num_rows(shared))
            for _ in range(20):  # the learner is busy
                client.get_actions([{"id": "a", "obs": [0.1] * 4, "reward": 1.0}])
            sampling = served.sample(30, update=update, shared_state=shared)
    assert counted == [11, 41, 71]


def test_rows_of_one_episode_stay_in_order_whatever_columns_they_have(serve: Serve, connect: Connect) -> None:
    served = serve(OFF)
    sampling = served.sample(8)
    whole, outputs = episode(6), {"action_logp": [-0.5] * 3, "action_dist_inputs": [[0.3, 0.1]] * 3}
    obs = whole["obs"]
    parts = [
        {**whole, "obs": obs[start : start + 4], "id": "a", "is_terminated": start == 3, **more}
        | {name: whole[name][start : start + 3] for name in ("actions", "rewards")}
        for start, more in ((0, {}), (3, outputs))
    ]
    other = {**episode(2, 1), "action_logp": [-0.7] * 2, "action_dist_inputs": [[0.2, 0.1]] * 2}
    assert connect(served).ask({"type": "EPISODES", "episodes": [other, *parts]})["env_steps"] == 8
    block = sampling.result(30).rollout.blocks["default_policy"]
    assert (block.lengths.tolist(), block.is_terminated.tolist()) == ([2, 6], [True, True])
    np.testing.assert_array_equal(block.columns["obs"][3:], np.float32(obs))
    logp = block.columns["action_logp"]  # what was sent stays, what was not is computed
    np.testing.assert_array_equal(logp[[0, 1, 5, 6, 7]], np.float32([-0.7] * 2 + [-0.5] * 3))
    assert (logp[2:5] != -0.5).all()


def test_old_weights_stay_for_whichever_message_waits(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.num_kept_weights=2")
    served.sample(4).cancel()
    client = connect(served)
    client.ask({"type": "EPISODES", "episodes": [episode(4)]})
    served.sample(4, update=True)
    client.ask({"type": "EPISODES", "episodes": [episode(4)], "weights_seq_no": 2})
    client.ask({"type": "EPISODES", "episodes": [episode(4)], "weights_seq_no": 2})
    client.ask({"type": "EPISODES", "episodes": [episode(4)], "weights_seq_no": 1})
    served.sample(4, update=True).result(30)
    assert served.runner._service.versions.kept == [1, 2, 3]


def test_who_begins_and_leaves_is_forgotten_beside_others_who_send(serve: Serve) -> None:
    served = serve(OFF)
    with Client(*served.address, reconnect_s=0) as sender:
        for number in range(3):
            with Client(*served.address, extensions={"actions": {}}, reconnect_s=0) as client:
                sampling = served.sample(5)
                client.get_actions([{"id": str(number), "obs": [0.0] * 4}])
            while len(served.runner._service.known) > 1:
                time.sleep(0.001)
            sender.send_episodes([episode(5)])
            sampling.result(30)
    assert served.runner._service._actions._inference["default_policy"]._by_id == {}


def test_acting_waits_for_a_busy_learner(serve: Serve, connect: Connect) -> None:
    served = serve(OFF, "rllink.max_queued_env_steps=4")
    sampling = served.sample(2)
    client = connect(served)
    hello(client, actions={})
    client.ask({"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4}]})
    asking = {"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4, "reward": 1.0}]}
    for _ in range(7):
        assert client.ask(asking)["type"] == "ACTIONS"
    assert sampling.result(30).rollout.num_env_steps == 2
    client.send(asking)
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.receive()
    client.socket.settimeout(10)
    served.sample(5)
    assert client.receive()["type"] == "ACTIONS"
