"""A server that is killed and started again from a checkpoint: what was acknowledged is not lost."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.rllink.client import Client, RLlinkError, ServerGone
from runner.rllink.client.frames import FrameReader, frame
from runner.rllink.journal import Journal, Record
from tests.conftest import ROOT, WAIT_S, addresses_of, num_lines, wait_until
from tests.rllink.conftest import EXPERIMENT, OFF, Connect, Serve, episode, hello, part


def test_what_was_acknowledged_is_sampled_after_the_restart(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    first = serve(OFF, run_dir=tmp_path)
    whole = episode(20)
    sampling = first.sample(6)
    client = connect(first)
    session = hello(client, session={"id": None})["extensions"]["session"]
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 6)], "request": 1})
    sampling.result(30)
    save_checkpoint(tmp_path / "checkpoint", {"state": first.runner.get_state()}, {})
    client.ask({"type": "EPISODES", "episodes": [part(whole, 6, 9)], "request": 2})
    client.ask({"type": "GET_CONFIG", "request": 3})
    last = {"type": "EPISODES", "episodes": [part(whole, 9, 11)], "request": 4}
    client.send(last)
    client.receive()  # and now the server is killed

    state, _ = load_checkpoint(tmp_path / "checkpoint")
    second = serve(OFF, run_dir=tmp_path, state=state["state"])
    second.weights = first.weights
    sampling = second.sample(12)
    client = connect(second)
    assert hello(client, session={"id": session["id"]})["extensions"]["session"]["resumed"] is True
    assert client.ask(last)["env_steps"] == 2  # it does not know that this has arrived
    end = part(whole, 11, 20, is_terminated=True)
    assert client.ask({"type": "EPISODES", "episodes": [end], "request": 5})["type"] == "ACK"
    sample = sampling.result(30)
    block = sample.rollout.blocks["default_policy"]
    assert (block.lengths.tolist(), block.t_started.tolist()) == ([14], [6])
    np.testing.assert_array_equal(block.columns["obs"], np.float32(whole["obs"][6:]))
    np.testing.assert_array_equal(block.lookback.columns_before(0)["obs"], np.float32(whole["obs"][5:6]))  # type: ignore[union-attr]
    assert (sample.finished.returns.tolist(), sample.finished.lengths.tolist()) == ([20.0], [20])
    assert sample.counts["rllink/num_env_steps_received"] == 20
    assert sample.counts["rllink/weights_seq_no"] == 2
    episodes = second.sample(3)
    client.ask({"type": "EPISODES", "episodes": [episode(3)], "request": 6})
    (after,) = episodes.result(30).rollout.blocks["default_policy"].episode_ids
    assert (after.endswith("-1"), after != block.episode_ids[0]) == (True, True)  # the client's second episode


def test_a_number_never_stands_for_two_weights(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    first = serve(OFF, run_dir=tmp_path)
    client = connect(first)
    session = hello(client, session={"id": None})["extensions"]["session"]
    sampling = first.sample(5)
    assert client.ask({"type": "GET_STATE", "request": 1})["weights_seq_no"] == 1
    client.ask({"type": "EPISODES", "episodes": [episode(5)], "request": 2})
    sampling.result(30)
    state = first.runner.get_state()
    first.sample(5, update=True)
    assert client.ask({"type": "GET_STATE", "request": 3})["weights_seq_no"] == 2  # and now the server is killed

    second = serve(OFF, run_dir=tmp_path, state=state)
    second.sample(5)
    client = connect(second)
    hello(client, session={"id": session["id"]})
    for number, said in ((4, {"weights_seq_no": 2}), (4, {})):  # without a number, the weights that it was sent last
        answer = client.ask({"type": "EPISODES", "episodes": [episode(5)], "request": number, **said})
        assert answer["code"] == "unknown_weights"
    assert client.ask({"type": "GET_STATE", "request": 4})["weights_seq_no"] == 3
    assert client.ask({"type": "EPISODES", "episodes": [episode(5)], "request": 5})["type"] == "ACK"


def test_clients_without_a_session_are_gone(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    first = serve(OFF, run_dir=tmp_path)
    first.sample(100)
    state = first.runner.get_state()
    connect(first).ask({"type": "EPISODES", "episodes": [part(episode(9), 0, 5)]})
    second = serve(OFF, run_dir=tmp_path, state=state)
    sample = second.sample(5).result(30)
    assert sample.rollout.blocks["default_policy"].is_truncated.tolist() == [True]
    assert sample.counts["rllink/num_episodes_lost"] == 1


def test_a_record_that_was_cut_off_was_not_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "0.0", 2)
    records = [Record("c", None, None, "json", number, b"x" * number) for number in range(5)]
    for record in records:
        journal.append(record)
    journal.close()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for size in range(len(content) - 1, len(content) - 20, -1):
        path.write_bytes(content[:size])
        assert list(Journal(tmp_path, "0.0", 2).records_from(1)) == records[1:4]


def test_half_a_record_of_a_full_disk_does_not_hide_the_next_ones(tmp_path: Path) -> None:
    """The limit on the size of files cuts a write off in its middle, as a full disk does."""
    journal = Journal(tmp_path, "0.0", 2)
    first, large, last = (Record("c", None, None, "json", number, b"x" * number) for number in (1, 100_000, 2))
    journal.append(first)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size
    assert journal.num_records == 1
    journal.append(last)
    journal.close()
    assert list(Journal(tmp_path, "0.0", 2).records_from(0)) == [first, last]


def write_journal(folder: Path, num_records: int) -> None:
    """Records with their number, ten for each checkpoint."""
    journal = Journal(folder, "0.0", 2)
    for position in range(0, num_records, 10):
        journal.begin_segment(position)
        for number in range(position, position + 10):
            journal.append(Record("c", None, None, "json", number))
    journal.close()


def test_segments_of_forgotten_checkpoints_are_deleted(tmp_path: Path) -> None:
    write_journal(tmp_path, 50)
    again = Journal(tmp_path, "0.0", 2)
    assert [record.weights_seq_no for record in again.records_from(34)] == list(range(34, 50))
    assert again.num_records == 50
    assert len(list(tmp_path.iterdir())) == 3  # the oldest is needed until the newest checkpoint is complete
    assert list(Journal(tmp_path, "1.0", 2).records_from(0)) == []  # another runner's


def test_segments_of_an_earlier_runner_of_the_same_generation_are_not_read(tmp_path: Path) -> None:
    """A runner that dies after a resume gets a generation that another one had before the resume."""
    write_journal(tmp_path, 30)
    replacement = Journal(tmp_path, "0.0", 2)  # it restores nothing
    for number in range(100, 103):
        replacement.append(Record("c", None, None, "json", number))
    replacement.close()
    assert [record.weights_seq_no for record in Journal(tmp_path, "0.0", 2).records_from(0)] == [100, 101, 102]


def test_after_a_restart_the_checkpoint_that_it_began_with_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_journal(tmp_path, 30)
    again = Journal(tmp_path, "0.0", 2)
    assert [record.weights_seq_no for record in again.records_from(20)] == list(range(20, 30))
    again.begin_segment(30)  # a first checkpoint; the segment before it is still kept
    once_more = Journal(tmp_path, "0.0", 2)
    assert [record.weights_seq_no for record in once_more.records_from(20)] == list(range(20, 30))
    assert caplog.text == ""
    assert [record.weights_seq_no for record in once_more.records_from(3)] == list(range(20, 30))
    assert "17 messages after this checkpoint are no longer in the journal" in caplog.text


@pytest.mark.slow
def test_killed_and_resumed_while_clients_run(tmp_path: Path) -> None:
    """The real thing: SIGKILL between two checkpoints, `resume`, and clients that only know that they wait."""
    run_dir = tmp_path / "run"
    more = ["env.port=0", f"hydra.run.dir={run_dir}", "tracking=none", "checkpoint.every_iterations=2"]
    small = ["algorithm.train_batch_size_per_learner=400", "module.fcnet_hiddens=[8]", "stop.training_iteration=9"]
    command = [sys.executable, "-m", "runner"]
    server = subprocess.Popen([*command, EXPERIMENT, *more, *small], cwd=ROOT)
    client: subprocess.Popen[str] | None = None
    try:
        port = int(addresses_of(run_dir)[0].rpartition(":")[2])
        script = ROOT / "examples" / "external" / "cartpole_client.py"
        client = subprocess.Popen([sys.executable, script, "--port", str(port)], stdout=subprocess.PIPE, text=True)
        wait_until(lambda: num_lines(run_dir) >= 5)
        server.send_signal(signal.SIGKILL)
        server.wait(WAIT_S)
        resume = [*command, "resume", str(run_dir), f"env.port={port}"]
        resumed = subprocess.run(resume, cwd=ROOT, timeout=WAIT_S, check=False)
        assert resumed.returncode == 0
        output, _ = client.communicate(timeout=WAIT_S)
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()
                process.wait()
    assert client.returncode == 0
    assert "the run is over" in output
    lines = [json.loads(line) for line in (run_dir / "progress.jsonl").read_text().splitlines()]
    assert [line["training_iteration"] for line in lines] == list(range(1, 10))
    assert lines[-1]["num_env_steps_sampled_lifetime"] <= lines[-1]["rllink/num_env_steps_received"]


def test_a_client_that_cannot_come_back_says_so(serve: Serve) -> None:
    served = serve()
    client = Client(*served.address, reconnect_s=0.3)
    served.close()
    with pytest.raises(ConnectionError):
        client.get_config()
    client.close()


def test_a_client_that_connects_as_the_run_ends_does_not_try_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(Client, *listener.getsockname(), timeout_s=1, reconnect_s=1)
        with listener.accept()[0] as connection:
            connection.sendall(frame(b'{"type": "ERROR", "code": "shutting_down", "message": "the run is over"}'))
            with pytest.raises(ServerGone, match="the run is over"):
                connecting.result(WAIT_S)


def _meet(listener: socket.socket, is_resumed: bool) -> tuple[Any, Any, socket.socket]:
    """Answer the PING of the next connection; return it and its next request."""
    pong = {"type": "PONG", "extensions": {"session": {"id": "s", "resumed": is_resumed}}}
    connection, _ = listener.accept()
    reader = FrameReader()
    received = []
    while len(received) < 2:
        reader.feed(connection.recv(1 << 16))
        while body := reader.next_body():
            received.append(json.loads(body))
            if len(received) == 1:
                connection.sendall(frame(json.dumps(pong).encode()))
    return received[0], received[1], connection


def test_a_request_with_an_unreadable_answer_keeps_its_number() -> None:
    """The server has carried it out, so the next request needs another number."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        making = pool.submit(Client, *listener.getsockname(), extensions={"session": {"id": None}}, timeout_s=10)
        asking = pool.submit(lambda: making.result().get_state())
        _, request, connection = _meet(listener, False)
        with connection:
            connection.sendall(frame(b'{"type": '))
            with pytest.raises(RLlinkError, match="cannot be read"):
                asking.result(WAIT_S)
        asking = pool.submit(lambda: making.result().get_state())
        _, later, connection = _meet(listener, True)
        with connection:
            assert (request["request"], later["request"]) == (1, 2)
            connection.sendall(frame(b'{"type": "ERROR", "code": "shutting_down", "message": "the run is over"}'))
            with pytest.raises(ServerGone):
                asking.result(WAIT_S)


def test_a_new_session_begins_after_a_failed_reconnection() -> None:
    """It is unknown whether the server has carried out the unanswered request."""
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            asked = {"session": {"id": None}}
            making = pool.submit(Client, *address, extensions=asked, timeout_s=10, reconnect_s=0.3)
            asking = pool.submit(lambda: making.result().get_state())
            connection = _meet(listener, False)[-1]
        connection.close()
        with pytest.raises(ServerGone, match="no RLlink server"):
            asking.result(WAIT_S)
        with socket.create_server(address) as listener:
            asking = pool.submit(lambda: making.result().get_state())
            ping, request, connection = _meet(listener, False)
            with connection:
                assert (ping["extensions"], request["request"]) == (asked, 1)
                connection.sendall(frame(b'{"type": "ERROR", "code": "shutting_down", "message": "the run is over"}'))
                with pytest.raises(ServerGone, match="the run is over"):
                    asking.result(WAIT_S)


def test_an_episode_that_was_lost_before_the_restart_is_not_open_after_it(
    serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    first = serve(run_dir=tmp_path)  # on-policy
    sampling = first.sample(10)
    state = first.runner.get_state()
    client = connect(first)
    session = hello(client, session={"id": None})["extensions"]["session"]
    whole = episode(30)
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 5)], "request": 1})
    connect(first).ask({"type": "EPISODES", "episodes": [episode(5, 3)]})
    sampling.result(30)  # and while the learner updates, the next part is refused
    assert client.ask({"type": "EPISODES", "episodes": [part(whole, 5, 10)], "request": 2})["code"] == "stale_weights"

    second = serve(run_dir=tmp_path, state=state)
    sampling = second.sample(10)
    client = connect(second)
    hello(client, session={"id": session["id"]})
    assert sampling.result(30).rollout.num_env_steps == 10
    second.sample(4, update=True)
    assert client.ask({"type": "GET_STATE", "request": 2})["type"] == "SET_STATE"
    late = part(whole, 10, 15, t_started=10)
    assert client.ask({"type": "EPISODES", "episodes": [late], "request": 3})["type"] == "ACK"


def test_a_session_that_got_weights_after_the_checkpoint_is_not_believed_to_have_the_newest(
    serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    first = serve(OFF, run_dir=tmp_path)
    client = connect(first)
    session = hello(client, session={"id": None})["extensions"]["session"]
    first.sample(5)
    state = first.runner.get_state()
    client.ask({"type": "GET_STATE", "request": 1})  # and now the server is killed
    second = serve(OFF, run_dir=tmp_path, state=state)
    second.sample(5)
    client = connect(second)
    hello(client, session={"id": session["id"]})
    request = {"type": "EPISODES", "episodes": [episode(5)], "request": 2}
    assert client.ask(request)["code"] == "unknown_weights"
    assert client.ask({"type": "GET_STATE", "request": 2})["weights_seq_no"] == 2
    assert client.ask({**request, "request": 3})["type"] == "ACK"


def test_returns_of_clients_without_a_session_are_whole(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    first = serve(OFF, run_dir=tmp_path)
    whole = episode(10)
    sampling = first.sample(5)
    client = connect(first)
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 5)]})
    before = sampling.result(30).rollout.blocks["default_policy"].episode_ids
    state = first.runner.get_state()
    end = part(whole, 5, 10, is_terminated=True)
    client.ask({"type": "EPISODES", "episodes": [end, episode(3, 1, id="b")]})
    second = serve(OFF, run_dir=tmp_path, state=state)
    sample = second.sample(8).result(30)
    assert sample.finished.returns.tolist() == [10.0, 3.0]
    assert sample.counts["rllink/num_env_steps_received"] == 13
    ids = list(sample.rollout.blocks["default_policy"].episode_ids)
    assert ids[0] == before[0]
    assert ids[1] not in before


def test_a_message_that_is_no_longer_valid_does_not_hinder_a_restart(
    serve: Serve, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version of runner accepted it, and failed when it was sampled."""
    first = serve(OFF, run_dir=tmp_path)
    first.sample(5)
    state = first.runner.get_state()
    message = {"type": "EPISODES", "episodes": [episode(5, t_started=2**63)]}
    Journal(tmp_path / "rllink", "0.0", 2).append(Record("c", None, None, "json", 1, json.dumps(message).encode()))
    second = serve(OFF, run_dir=tmp_path, state=state)
    assert "dropping a message of c from before the restart" in caplog.text
    sampling = second.sample(5)
    connect(second).ask({"type": "EPISODES", "episodes": [episode(5)]})
    assert sampling.result(10).rollout.num_env_steps == 5


def test_queued_steps_of_a_client_in_quarantine_are_counted_once(
    serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    first = serve(OFF, run_dir=tmp_path)
    first.sample(10)
    connect(first).ask({"type": "EPISODES", "episodes": [episode(4)]})
    service = first.runner._service
    first.runner.server.call(service.quarantine, service.connected)
    assert (service.counts.num_env_steps_received, service.queue.num_env_steps) == (4, 0)
    second = serve(OFF, run_dir=tmp_path, state=first.runner.get_state())
    assert second.runner._service.counts.num_env_steps_received == 4


def test_what_is_gone_from_the_journal_is_not_counted(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    """A checkpoint may be older than the journal: its messages are learned from once."""
    first = serve(OFF, run_dir=tmp_path)
    sampling = first.sample(5)
    oldest = first.runner.get_state()
    client = connect(first)
    for seed in range(6):
        client.ask({"type": "EPISODES", "episodes": [episode(5, seed)]})
        sampling.result(30)
        first.runner.get_state()
        sampling = first.sample(5)
    second = serve(OFF, run_dir=tmp_path, state=oldest)
    num_left = second.runner._service.queue.num_env_steps // 5
    assert 1 <= num_left < 6
    second.sample(5 * num_left).result(30)
    third = serve(OFF, run_dir=tmp_path, state=second.runner.get_state())
    assert third.runner._service.queue.num_env_steps == 0
