"""A batch that spoils the loss: the message names its client, `resume` meets it again, and an option leaves it out."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from runner.config.errors import ConfigError
from runner.config.rllink import name_records, parse_records
from runner.rllink.client.frames import FrameReader, frame
from tests.conftest import Run, addresses_of, progress_of, result_of
from tests.rllink.conftest import EXPERIMENT, OFF, Connect, Serve, episode, hello, part
from tests.support.configs import config_from

SMALL = (
    *(EXPERIMENT, "env.port=0", "hydra.run.dir=run", "tracking=none", "module.fcnet_hiddens=[8]", OFF),
    *("algorithm.train_batch_size_per_learner=40", "algorithm.minibatch_size=40", "algorithm.num_epochs=1"),
    *("checkpoint.every_iterations=1", "stop.training_iteration=4"),
    "rllink.max_abs_reward=1e39",
)


def messages() -> list[dict[str, Any]]:
    """Five of 40 steps; the third holds a reward that no loss stands."""
    sent = [{"type": "EPISODES", "episodes": [episode(40, seed)]} for seed in range(5)]
    sent[2]["episodes"][0]["rewards"][11] = 3e38
    return sent


def send_all(run_dir: Path, acknowledged: list[Any]) -> None:
    """Connect when the server listens, send everything at once, and keep the answers."""
    host, port = addresses_of(run_dir)[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"".join(frame(json.dumps(message).encode()) for message in messages()))
        reader = FrameReader()
        while len(acknowledged) < 5:
            while (body := reader.next_body()) is None:
                reader.feed(connection.recv(1 << 16))
            acknowledged.append(json.loads(body)["type"])


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_batch_that_spoils_the_loss_is_left_out(run_main: Run, tmp_path: Path) -> None:
    acknowledged: list[Any] = []
    client = threading.Thread(target=send_all, args=(tmp_path / "run", acknowledged))
    client.start()
    failed = run_main(*SMALL)
    client.join(10)
    assert acknowledged == ["ACK"] * 5
    assert failed.code == 1
    first, *_ = failed.err.splitlines()
    assert first.startswith("the loss is not finite: ")
    text = " ".join(failed.err.split())
    source = r"client 0-[0-9a-f]{6}-0, episode 0-[0-9a-f]{6}-0-2, time step 11"
    assert re.search(rf"the batch contains rewards = 3e\+38 \({source}\); 1 value of rewards not finite", text)
    assert "`resume` with rllink.skip_journal_records=[0.0:2-2] continues without the messages of this batch" in text
    assert len(progress_of(tmp_path / "run")) == 2

    again = run_main("resume", "run")
    # Of a client that cannot come again, from a checkpoint with the first two messages.
    same = text.replace("-0-2, time step", "-0-3000000000, time step")
    assert again.code == 1
    assert re.sub(r"mean_kl_loss \S+", "", " ".join(again.err.split())) == re.sub(r"mean_kl_loss \S+", "", same)
    done = run_main("resume", "run", "rllink.skip_journal_records=[0.0:2-2]")
    assert done.code == 0, done.err
    assert "rllink.skip_journal_records" in done.out
    lines = progress_of(tmp_path / "run")
    assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["num_env_steps_sampled_lifetime"] == 160  # the two after it are not lost
    assert result_of(tmp_path / "run")["status"] == "finished"


def test_what_is_left_out_ends_its_episodes(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    first = serve(OFF, run_dir=tmp_path)
    whole = episode(20)
    sampling = first.sample(4)
    client = connect(first)
    session = hello(client, session={"id": None})["extensions"]["session"]
    client.ask({"type": "EPISODES", "episodes": [part(whole, 0, 4)], "request": 1})
    assert sampling.result(30).rollout.skip_journal_records == ("0.0:0-0",)
    state = first.runner.get_state()
    client.ask({"type": "EPISODES", "episodes": [part(whole, 4, 9)], "request": 2})
    client.ask({"type": "EPISODES", "episodes": [part(whole, 9, 12, t_started=9)], "request": 3})
    client.ask({"type": "EPISODES", "episodes": [episode(2)], "request": 4})

    second = serve(OFF, "rllink.skip_journal_records=[1.0:0-9,0.0:1-1]", run_dir=tmp_path, state=state)
    sample = second.sample(5).result(30)
    block = sample.rollout.blocks["default_policy"]
    assert (block.lengths.tolist(), block.t_started.tolist()) == ([3, 2], [9, 0])
    assert sample.counts["rllink/num_episodes_lost"] == 1
    assert sample.rollout.skip_journal_records == ("1.0:0-9", "0.0:1-1", "0.0:1-3")
    client = connect(second)  # its session goes on behind what it had sent
    assert hello(client, session={"id": session["id"]})["extensions"]["session"]["resumed"] is True
    end = part(whole, 12, 20, is_terminated=True, t_started=12)
    assert client.ask({"type": "EPISODES", "episodes": [end], "request": 5})["type"] == "ACK"


def test_what_the_server_acted_in_is_not_repeated(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    served = serve(OFF, run_dir=tmp_path)
    sampling = served.sample(1)
    client = connect(served)
    hello(client, actions={})
    for reward in (0.0, 1.0):
        client.ask({"type": "GET_ACTIONS", "episodes": [{"id": "a", "obs": [0.0] * 4, "reward": reward}]})
    assert sampling.result(30).rollout.skip_journal_records == ()


@pytest.mark.parametrize("name", ["0.0", "0.0:5", "0.0:7-5", "0:1-2", "x", "0.0:-1-2"])
def test_what_names_no_messages(name: str) -> None:
    with pytest.raises(ConfigError, match=r"RUNNER:FIRST-LAST, for example 0\.0:12-15"):
        config_from(EXPERIMENT, f"rllink.skip_journal_records=['{name}']")


def test_names_of_messages() -> None:
    assert name_records("3.1", range(12, 16)) == "3.1:12-15"
    assert parse_records("3.1:12-15") == ("3.1", range(12, 16))
