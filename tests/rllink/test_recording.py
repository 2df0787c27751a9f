"""Episodes of simulators on disk: whole, each once, over interrupts, kills and servers in Ray actors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.episodes.single_agent_episode import SingleAgentEpisode
from runner.experiment.trainer import Trainer
from runner.offline.reading.source import open_source
from tests.conftest import ROOT, WAIT_S, addresses_of, num_lines, wait_until
from tests.rllink.conftest import EXPERIMENT, RawClient, episode, part
from tests.rllink.test_runs import CLIENT
from tests.rllink.test_tasks import CURRICULUM
from tests.support.configs import config_from

SMALL = ("env.port=0", "module.fcnet_hiddens=[8]", "rllink=off_policy", "algorithm.train_batch_size_per_learner=20")
SMALL += ("algorithm.minibatch_size=null",)


def recorded_in(folder: Path) -> list[SingleAgentEpisode]:
    return [episode for block in open_source(OfflineConfig(input_=str(folder))).blocks() for episode in block]


class Recorded:
    """A trainer that records, one client, and what the trainer has counted."""

    def __init__(self, folder: Path, run_dir: Path | None, *overrides: str, state: Any = None) -> None:
        config = config_from(EXPERIMENT, *SMALL, f"offline.output={folder}", *overrides)
        self.trainer = Trainer(config, run_dir=run_dir, loads_modules=state is None)
        if state is not None:
            self.trainer.set_state(state)
        host, port = self.trainer.addresses[0].split(":")
        self.address = host, int(port)
        self.clients: list[RawClient] = []
        self.num_episodes = 0

    def connect(self, session: str | None = None, **extensions: Any) -> tuple[RawClient, str]:
        client = RawClient(self.address)
        self.clients.append(client)
        pong = client.ask({"type": "PING", "extensions": {"session": {"id": session}, **extensions}})
        return client, pong["extensions"]["session"]["id"]

    def train(self) -> None:
        self.num_episodes += int(self.trainer.train()["env_runners/num_episodes"] or 0)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.trainer.close()


@pytest.fixture
def record(tmp_path: Path) -> Any:
    made: list[Recorded] = []

    def make(*overrides: str, **more: Any) -> Recorded:
        made.append(Recorded(tmp_path / "data", tmp_path / "run", *overrides, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def send(client: RawClient, number: int, *chunks: dict[str, Any]) -> None:
    assert client.ask({"type": "EPISODES", "episodes": list(chunks), "request": number})["type"] == "ACK"


def start(one: Recorded) -> None:
    """Begin to listen: a first iteration, fed by a client without episodes that are recorded in part."""
    import threading

    training = threading.Thread(target=one.train)
    training.start()
    client, _ = one.connect()
    wait_until(lambda: client.ask({"type": "GET_CONFIG", "request": 1})["type"] == "SET_CONFIG")
    send(client, 2, episode(20, 99))
    training.join(WAIT_S)


def same(recorded: SingleAgentEpisode, sent: dict[str, Any]) -> bool:
    is_same = np.array_equal(recorded.get_observations(), np.float32(sent["obs"]))
    return is_same and np.array_equal(recorded.get_actions(), sent["actions"])


def test_what_ends_over_messages_is_recorded_whole(record: Callable[..., Recorded], tmp_path: Path) -> None:
    one = record("connectors=mean_std_filter")
    start(one)
    client, _ = one.connect(actions={})
    whole, never_ends = episode(30, 1), episode(30, 2)
    send(client, 1, part(whole, 0, 10), {**part(never_ends, 0, 10), "id": "b"})
    one.train()
    send(client, 2, part(whole, 10, 20), episode(10, 3), episode(5, 4, is_terminated=False))  # the last stands alone
    one.train()
    late = {**part(episode(30, 5), 5, 15, is_terminated=True), "id": "late", "t_started": 5}
    send(client, 3, part(whole, 20, 30, is_terminated=True), late)
    one.train()
    recorded = one.trainer.finish_recording()
    assert recorded is not None
    assert (recorded.report.episodes, recorded.report.steps) == (3, 60)
    assert one.num_episodes == 3
    assert (recorded.num_unfinished, recorded.num_incomplete) == (1, 2)
    on_disk = recorded_in(tmp_path / "data")
    assert sorted(len(episode) for episode in on_disk) == [10, 20, 30]
    (longest,) = [episode for episode in on_disk if len(episode) == 30]
    assert same(longest, whole)  # observations as they were sent, not as the filter made them
    assert longest.get_extra_model_outputs("action_logp").shape == (30,)
    assert "(left out: 1 unfinished, 2 incomplete)" in str(recorded)


def test_the_task_that_a_client_says_is_recorded_over_a_checkpoint(
    record: Callable[..., Recorded], tmp_path: Path
) -> None:
    one = record(CURRICULUM)
    start(one)
    client, session = one.connect(tasks={})
    whole = episode(30, 1)
    send(client, 1, part(whole, 0, 20, task="hard"), episode(10, 2, task="easy"))
    one.train()
    save_checkpoint(tmp_path / "checkpoint", one.trainer.get_state(), {})
    send(client, 2, episode(20, 3))
    one.trainer.env_runners.actors.callers[0].held.server.close()  # type: ignore[attr-defined]
    two = record(CURRICULUM, state=load_checkpoint(tmp_path / "checkpoint")[0])
    two.train()
    client, _ = two.connect(session, tasks={})
    send(client, 3, part(whole, 20, 30, is_terminated=True), episode(20, 4))
    two.train()
    two.trainer.finish_recording()
    tables = [pq.read_table(path) for path in (tmp_path / "data").iterdir()]  # the first episode's has no tasks
    rows = [row for table in tables for row in table.to_pylist()]
    assert {row["length"]: row.get("task") for row in rows} == {10: "easy", 20: None, 30: "hard"}


def test_episodes_that_the_server_acts_in_are_recorded(record: Callable[..., Recorded], tmp_path: Path) -> None:
    one = record()
    start(one)
    client, _ = one.connect(actions={})
    obs = episode(12, 1)["obs"]
    actions = []
    for t in range(13):
        asked = {"id": "a", "obs": obs[t], "reward": float(t > 0), "is_terminated": t == 12}
        message = {"type": "GET_ACTIONS", "episodes": [asked], "request": t + 1}
        actions += client.ask(message)["actions"]
    send(client, 14, episode(20, 2))  # both kinds in one sample
    one.train()
    recorded = one.trainer.finish_recording()
    assert recorded is not None
    assert (recorded.report.episodes, recorded.report.steps, recorded.num_incomplete) == (3, 52, 0)
    (acted,) = [episode for episode in recorded_in(tmp_path / "data") if len(episode) == 12]
    assert same(acted, {"obs": obs, "actions": actions[:-1]})


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("offline.output_episode_format=rllib",),
        ("offline.output_run_folders=true",),
        ("offline.output_episode_format=rllib", "offline.output_run_folders=true"),
    ],
    ids=["columns", "rllib", "run folders", "rllib in run folders"],
)
def test_after_a_kill_every_episode_is_there_once(
    record: Callable[..., Recorded], tmp_path: Path, options: tuple[str, ...]
) -> None:
    one = record(*options)
    start(one)
    client, session = one.connect()
    other, _ = one.connect(actions={})
    asked = {"type": "GET_ACTIONS", "episodes": [{"id": "x", "obs": [0.0] * 4}], "request": 1}
    other.ask(asked)
    other.ask({**asked, "episodes": [{"id": "x", "obs": [0.0] * 4, "reward": 1.0}], "request": 2})
    whole = episode(30, 1)
    send(client, 1, part(whole, 0, 10), episode(20, 2))
    one.train()
    save_checkpoint(tmp_path / "checkpoint", one.trainer.get_state(), {})
    assert sorted(len(episode) for episode in recorded_in(tmp_path / "data")) == [20, 20]
    send(client, 2, part(whole, 10, 20), episode(20, 3))
    one.train()
    newer = one.trainer.env_runners._recording.get_state()  # type: ignore[union-attr]
    assert newer["report"]["episodes"] == 3  # on disk, and newer than the checkpoint: now the server is killed
    one.trainer.env_runners.actors.callers[0].held.server.close()  # type: ignore[attr-defined]

    state, _ = load_checkpoint(tmp_path / "checkpoint")
    two = record(*options, state=state)
    assert len(recorded_in(tmp_path / "data")) == 2
    two.train()
    client, _ = two.connect(session)
    send(client, 3, part(whole, 20, 30, is_terminated=True), episode(20, 4))
    two.train()
    recorded = two.trainer.finish_recording()
    assert recorded is not None
    assert (recorded.report.episodes, recorded.report.steps) == (5, 110)
    assert (recorded.num_unfinished, recorded.num_incomplete) == (0, 1)  # nobody can go on where the server acted
    on_disk = recorded_in(tmp_path / "data")
    assert sorted(len(episode) for episode in on_disk) == [20, 20, 20, 20, 30]
    assert same(max(on_disk, key=len), whole)
    folders = [path for path in (tmp_path / "data").rglob("*") if path.is_dir()]
    assert all(any(folder.iterdir()) for folder in folders), "the folder of a file that is gone is gone, too"


def test_a_new_run_does_not_mix_its_episodes_into_those_of_another(tmp_path: Path) -> None:
    one = Recorded(tmp_path / "data", tmp_path / "run")
    start(one)
    one.trainer.finish_recording()
    one.close()
    with pytest.raises(ConfigError, match="the folder already contains data"):
        Recorded(tmp_path / "data", tmp_path / "other")
    two = Recorded(tmp_path / "data", tmp_path / "other", "offline.output_append=true")
    start(two)
    two.trainer.finish_recording()
    two.close()
    assert len(recorded_in(tmp_path / "data")) == 2


def episodes_in(progress: Path) -> int:
    return sum(int(json.loads(line)["env_runners/num_episodes"] or 0) for line in progress.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("num_servers", "how"), [(0, signal.SIGINT), pytest.param(2, signal.SIGKILL, marks=pytest.mark.chaos)]
)
def test_recorded_resumed_and_cloned(tmp_path: Path, num_servers: int, how: signal.Signals) -> None:
    """Real processes: record, interrupt or kill, resume, and clone what was recorded."""
    run_dir, data = tmp_path / "run", tmp_path / "data"
    more = ["env.port=0", f"hydra.run.dir={run_dir}", "tracking=none", "checkpoint.every_iterations=2"]
    more += [f"offline.output={data}", f"env_runners.num_env_runners={num_servers}", "module.fcnet_hiddens=[8]"]
    small = ["algorithm.train_batch_size_per_learner=400", "stop.training_iteration=9"]
    command = [sys.executable, "-m", "runner"]
    server = subprocess.Popen([*command, EXPERIMENT, *more, *small], cwd=ROOT)
    clients: list[subprocess.Popen[bytes]] = []
    try:
        for address in addresses_of(run_dir):
            clients.append(subprocess.Popen([sys.executable, CLIENT, "--port", address.rpartition(":")[2]]))
        wait_until(lambda: num_lines(run_dir) >= 3)
        server.send_signal(how)
        server.wait(WAIT_S)
        for client in clients:
            client.kill()
            client.wait()
        clients.clear()
        (run_dir / "rllink.json").unlink()
        server = subprocess.Popen([*command, "resume", str(run_dir)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for address in addresses_of(run_dir):
            clients.append(subprocess.Popen([sys.executable, CLIENT, "--port", address.rpartition(":")[2]]))
        output, _ = server.communicate(timeout=WAIT_S)
    finally:
        for process in (server, *clients):
            process.kill()
            process.wait()
    assert server.returncode == 0
    on_disk = recorded_in(data)
    assert len(on_disk) == episodes_in(run_dir / "progress.jsonl") > 10
    assert f"recorded {len(on_disk):,} episodes, {sum(map(len, on_disk)):,} steps in " in output
    assert len({episode.id_ for episode in on_disk}) == len(on_disk)
    if how == signal.SIGINT:
        cloned = ["+experiment=bc_cartpole", f"offline.input_={data}", "tracking=none", "stop.training_iteration=1"]
        done = subprocess.run(
            [*command, *cloned, f"hydra.run.dir={tmp_path / 'bc'}"], cwd=ROOT, check=False, timeout=WAIT_S
        )
        assert done.returncode == 0
