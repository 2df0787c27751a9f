"""Env episodes of several agents on disk: what simulators sent, agent by agent, whole and each once.

Each observation says which env episode and which of its time steps it is of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.compose import compose_experiment
from runner.config.offline import OfflineConfig
from runner.config.validation import build_experiment_config
from runner.experiment.env_runner_builder import TRAINING
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.module_building import build_modules, weights_of
from runner.offline.reading.inspection import inspect_data
from runner.offline.reading.source import RecordedEnvEpisodes, open_with_all_agents
from runner.offline.writing.recorder import Recorded
from tests.rllink.conftest import EXPERIMENT, RawClient, wait_until
from tests.rllink.test_tasks import CURRICULUM

WIDTHS = {"left": 2, "right": 2, "guest": 3}  # of observations


def _space(width: int) -> str:
    box = f"{{space: box, low: -1e6, high: 1e6, shape: [{width}], dtype: float32}}"
    return f"{{observation_space: {box}, action_space: {{space: discrete, n: 5}}}}"


SERVED = (
    EXPERIMENT,
    "env=external",
    "env.port=0",
    f"env.agents={{{', '.join(f'{agent}: {_space(width)}' for agent, width in WIDTHS.items())}}}",
    "multi_agent.agent_to_module={left: players, right: players, guest: guests}",
    "rllink=off_policy",
    "module.fcnet_hiddens=[8]",
    "tracking=none",
)


# -- a server that records ---------------------------------------------------------------------------------------------


class RecordingServer:
    """Env runners of a run that records, without its learner."""

    def __init__(self, folder: Path, *overrides: str, is_resumed: bool = False) -> None:
        made = compose_experiment([*SERVED, f"offline.output={folder / 'data'}", *overrides], None)
        config = build_experiment_config(made)
        parts = build_modules(config)
        self.group = build_env_runner_group(config, TRAINING, parts, is_recording=True, run_dir=folder / "run")
        self.group.set_weights(weights_of(parts))
        self.checkpoint = folder / "checkpoint"
        if is_resumed:
            self.group.set_state(load_checkpoint(self.checkpoint)[0])
        self.runner: Any = self.group.actors.callers[0].held  # type: ignore[attr-defined]
        self.runner.server.start()
        self.address: tuple[str, int] = self.runner.server.address
        self.num_finished = 0
        self.clients: list[RawClient] = []

    def sample(self, num_env_steps: int) -> None:
        (sample,) = self.group.sample(num_env_steps, True)
        self.num_finished += len(sample.finished.returns)

    def written(self) -> tuple[int, int]:
        """Return how many env episodes are written, and how many are known to be not whole."""
        state = self.group.get_state()["recording"]
        return int(state["report"]["episodes"]), int(state["num_broken_off"])

    def connect(self) -> RawClient:
        """Return a connection that is closed after the test at the latest."""
        self.clients.append(RawClient(self.address))
        return self.clients[-1]

    def save(self) -> None:
        """Write the checkpoint from which the next server resumes."""
        save_checkpoint(self.checkpoint, self.group.get_state(), {})


ServeRecording = Callable[..., RecordingServer]


@pytest.fixture
def serve_recording(tmp_path: Path) -> Iterator[ServeRecording]:
    made: list[RecordingServer] = []

    def make(*overrides: str, is_resumed: bool = False) -> RecordingServer:
        """With `is_resumed`, kill the server before, of which only what is on disk is left."""
        if is_resumed:
            made[-1].runner.server.close()
        made.append(RecordingServer(tmp_path, *overrides, is_resumed=is_resumed))
        return made[-1]

    yield make
    for server in made:
        for client in server.clients:
            client.close()
        server.group.close()


AgentData = dict[str, Any]
EnvData = dict[str, AgentData]  # agent -> its columns


def recorded_in(folder: Path) -> list[tuple[bool, int, EnvData]]:
    """Return (is_terminated, length, agents) of each env episode on disk."""
    if not list(folder.glob("*.parquet")):
        return []
    found = open_with_all_agents(OfflineConfig(input_=str(folder)))
    assert isinstance(found, RecordedEnvEpisodes)
    envs: dict[str, tuple[bool, int, EnvData]] = {}
    for episodes in found.episodes():
        ends = zip(episodes.ids, episodes.is_terminated.tolist(), episodes.lengths.tolist(), strict=True)
        for id_, is_terminated, length in ends:
            assert id_ not in envs, "an env episode is one row"
            envs[id_] = is_terminated, length, {}
        for block in episodes.blocks:
            assert block.agents is not None
            for chunk, agent in enumerate(block.agents.agent_ids):
                rows = slice(int(block.offsets[chunk]), int(block.offsets[chunk + 1]))
                first = int(block.first_obs_rows[chunk])
                obs_rows = slice(first, first + int(block.lengths[chunk]) + 1)
                of_env = envs[block.agents.multi_agent_episode_ids[chunk]][2]
                assert agent not in of_env
                of_env[agent] = {
                    "obs": block.columns["obs"][obs_rows].tolist(),
                    "actions": block.columns["actions"][rows].tolist(),
                    "rewards": block.columns["rewards"][rows].tolist(),
                    "env_t": block.agents.env_t[obs_rows].tolist(),
                    "is_terminated": bool(block.is_terminated[chunk]),
                    "is_truncated": bool(block.is_truncated[chunk]),
                }
    return list(envs.values())


# -- simulators --------------------------------------------------------------------------------------------------------


def draw_env_episode(number: int, rng: np.random.Generator, takes_all: bool) -> EnvData:
    """Draw an env episode: which agents come when, act in which of its steps, and how they end."""
    length = int(rng.integers(1, 8))
    names = list(WIDTHS)
    present = names if takes_all else [agent for agent in names if rng.random() < 0.6] or [str(rng.choice(names))]
    data: EnvData = {}
    for agent in rng.permutation(present).tolist():
        first, last = sorted(rng.choice(length + 1, 2, replace=False).tolist())
        between = [t for t in range(first + 1, last) if rng.random() < 0.7]
        times = [first, *between, last]
        num_steps = len(times) - 1
        is_terminated = bool(rng.random() < 0.6)
        data[agent] = {
            "obs": [[float(number), float(t), *rng.integers(0, 9, WIDTHS[agent] - 2).tolist()] for t in times],
            "actions": rng.integers(0, 5, num_steps).tolist(),
            "rewards": rng.integers(-3, 4, num_steps).astype(float).tolist(),
            "env_t": times,
            "is_terminated": is_terminated,
            "is_truncated": not is_terminated,
        }
    return data


@dataclass
class Playing:
    """An env episode that a simulator plays."""

    name: str
    data: EnvData
    time: int = 0
    sent: dict[str, int] = field(default_factory=dict)  # agent -> steps that were sent

    @property
    def is_over(self) -> bool:
        return all(self.sent.get(agent, 0) == len(one["actions"]) for agent, one in self.data.items())

    @property
    def number(self) -> int:
        return int(next(iter(self.data.values()))["obs"][0][0])

    @property
    def begun(self) -> EnvData:
        return {agent: one for agent, one in self.data.items() if agent in self.sent}

    @property
    def all_begun_have_ended(self) -> bool:
        return bool(self.sent) and Playing(self.name, self.begun, sent=self.sent).is_over

    def due(self, until: int, says_ends: bool) -> list[dict[str, Any]]:
        """Return the chunks of steps that are complete at this time and were not sent."""
        chunks = []
        for agent, one in self.data.items():
            start = self.sent.get(agent, 0)
            stop = sum(t <= until for t in one["env_t"][1:])
            if stop == start:
                continue
            self.sent[agent] = stop
            is_done = stop == len(one["actions"])
            chunk = {
                "id": self.name,
                "agent_id": agent,
                "obs": one["obs"][start : stop + 1],
                "env_t": one["env_t"][start : stop + 1],
                "actions": one["actions"][start:stop],
                "rewards": one["rewards"][start:stop],
                "is_terminated": is_done and one["is_terminated"],
                "is_truncated": is_done and one["is_truncated"],
                "action_logp": [-1.0] * (stop - start),
                "action_dist_inputs": [[0.0] * 5] * (stop - start),
            }
            chunks.append(chunk)
        if chunks and says_ends and self.is_over:
            chunks[-1]["is_env_done"] = True
        return chunks


class Simulators:
    """One client with several simulators at once."""

    def __init__(self, server: RecordingServer, seed: int, has_session: bool, takes_all: bool, reuses_names: bool):
        self.rng = np.random.default_rng(seed)
        self.seed, self.has_session, self.takes_all, self.reuses_names = seed, has_session, takes_all, reuses_names
        self.session: str | None = None
        self.request = 0
        self.played: dict[int, EnvData] = {}  # number -> an env episode of which all was acknowledged
        self.playing: list[Playing] = []
        self.lost: list[Playing] = []
        self.num_begun = 0
        self.connect(server)

    def connect(self, server: RecordingServer) -> None:
        self.client = RawClient(server.address)
        wanted: dict[str, Any] = {"agents": {}} if self.takes_all else {"agents": {}, "env_ends": {}}
        if self.has_session:
            wanted["session"] = {"id": self.session}
        granted = self.client.ask({"type": "PING", "extensions": wanted})["extensions"]
        if self.has_session:
            assert granted["session"]["resumed"] is (self.session is not None)
            self.session = granted["session"]["id"]
        else:
            self.lost += self.playing  # nobody goes on with them
            self.playing = []
        self.playing += [self._begun(slot) for slot in range(len(self.playing), 3)]

    def _begun(self, slot: int) -> Playing:
        number = self.seed * 10_000 + self.num_begun
        self.num_begun += 1
        name = f"slot {slot}" if self.reuses_names else f"env {number}"
        return Playing(name, draw_env_episode(number, self.rng, self.takes_all))

    def send(self) -> int:
        """Play on, and send what is complete; return the env steps of the message."""
        chunks = []
        for slot, one in enumerate(self.playing):
            for _ in range(int(self.rng.integers(0, 4))):
                one = self.playing[slot]
                one.time += 1
                if self.rng.random() < 0.6 or one.time >= 9:
                    # Names that are used again are told apart by ends, or by agents that come again.
                    chunks += one.due(one.time, says_ends=not self.takes_all)
                if one.is_over:
                    self.played[one.number] = one.data
                    self.playing[slot] = self._begun(slot)
        if not chunks:
            return 0
        message: dict[str, Any] = {"type": "EPISODES", "episodes": chunks}
        if self.has_session:
            self.request += 1
            message["request"] = self.request
        answer = self.client.ask(message)
        assert answer["type"] == "ACK", answer
        return int(answer["env_steps"])


# -- what is received is recorded --------------------------------------------------------------------------------------


def check_recorded(folder: Path, expected: Mapping[int, EnvData], unsure: Mapping[int, EnvData]) -> None:
    found: dict[int, EnvData] = {}
    for is_terminated, length, agents in recorded_in(folder):
        (number,) = {int(obs[0]) for one in agents.values() for obs in one["obs"]}
        assert number not in found, "each once"
        found[number] = agents
        assert is_terminated == all(one["is_terminated"] for one in agents.values())
        assert length == max(one["env_t"][-1] for one in agents.values())
    assert expected.keys() <= found.keys() <= expected.keys() | unsure.keys()
    for number, agents in found.items():
        assert agents == (expected | unsure)[number]


def test_the_task_that_a_client_says_is_recorded(serve_recording: ServeRecording, tmp_path: Path) -> None:
    """Of env episodes whose clients say that they are over, and of one that waits for others over a checkpoint."""
    server = serve_recording(CURRICULUM)

    def played(task: str | None, number: int, **extensions: Any) -> int:
        """Send an env episode; only its first agent says the task."""
        client = RawClient(server.address)
        client.ask({"type": "PING", "extensions": {"agents": {}, "tasks": {}, **extensions}})
        data = draw_env_episode(number, np.random.default_rng(number), takes_all=not extensions)
        data = data if extensions else {"left": data["left"]}
        chunks = Playing(f"env {number}", data).due(9, says_ends=bool(extensions))
        if task is not None:
            chunks[0]["task"] = task
        answer = client.ask({"type": "EPISODES", "episodes": chunks})
        client.close()
        return int(answer["env_steps"])

    sent = [played(task, number, env_ends={}) for number, task in enumerate(["easy", None, "hard", "hard"])]
    server.sample(sum(sent) + played("easy", 9))
    server.save()
    server = serve_recording(CURRICULUM, is_resumed=True)
    server.group.finish_recording()
    found = inspect_data(OfflineConfig(input_=str(tmp_path / "data")))
    assert found.episodes == 5
    assert found.tasks == {"easy": 2, "hard": 2}


@pytest.mark.slow
@pytest.mark.parametrize("takes_all", [True, False], ids=["all take part", "agents come and go"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_received_is_recorded_over_kills_and_lost_clients(
    serve_recording: ServeRecording, tmp_path: Path, seed: int, takes_all: bool
) -> None:
    """Random env episodes, chunks, samples, checkpoints, kills and clients that go."""
    rng = np.random.default_rng(seed)
    server = serve_recording()
    clients = [
        Simulators(server, 1 + number, has_session, takes_all, reuses_names)
        for number, (has_session, reuses_names) in enumerate([(True, True), (True, False), (False, True)])
    ]
    queued: deque[int] = deque()  # env steps of messages that were not sampled
    saved: list[int] | None = None
    for _ in range(60):
        what = rng.choice(["send", "sample", "checkpoint", "kill", "go"], p=[0.6, 0.25, 0.07, 0.04, 0.04])
        if what == "send":
            sent = clients[int(rng.integers(3))].send()
            if sent:
                queued.append(sent)
                if saved is not None:
                    saved.append(sent)
        elif what == "sample" and queued:
            wanted = int(rng.integers(1, sum(queued) + 1))
            server.sample(wanted)
            while wanted > 0:
                wanted -= queued.popleft()
        elif what == "checkpoint":
            server.save()
            saved = list(queued)
        elif what == "kill" and saved is not None:
            server = serve_recording(is_resumed=True)
            queued = deque(saved)
            for client in clients:
                client.client.close()
                client.connect(server)
        elif what == "go":
            clients[2].client.close()
            wait_until(lambda known=server.runner._service.known: len(known) == 2)  # type: ignore[misc]
            clients[2].connect(server)
    if queued:
        server.sample(sum(queued))
    for client in clients:
        client.client.close()
    recorded = server.group.finish_recording()
    expected = {number: data for client in clients for number, data in client.played.items()}
    assert len(expected) > 20
    unsure: dict[int, EnvData] = {}
    if takes_all:  # nobody has said whether other agents come to these
        going_on = [one for client in clients for one in (*client.lost, *client.playing)]
        unsure = {one.number: one.begun for one in going_on if one.all_begun_have_ended}
    check_recorded(tmp_path / "data", expected, unsure)
    assert len(expected) <= recorded.report.episodes <= len(expected) + len(unsure)
    assert recorded.num_unfinished <= 6, "the ones of clients that go on"


def finish(server: RecordingServer) -> Recorded:
    return server.group.finish_recording()


def chunk(agent: str, number: int, start: int, stop: int, **more: Any) -> dict[str, Any]:
    """Return a part of an env episode in which agents are there from its beginning."""
    width, length = WIDTHS[agent], stop - start
    return {
        "id": "a",
        "agent_id": agent,
        "obs": [[float(number), float(t), *[0.0] * (width - 2)] for t in range(start, stop + 1)],
        "actions": [1] * length,
        "rewards": [1.0] * length,
        "is_terminated": False,
        "is_truncated": False,
        "action_logp": [-1.0] * length,
        "action_dist_inputs": [[0.0] * 5] * length,
        **more,
    }


END = {"is_terminated": True}


def connected(server: RecordingServer, **extensions: Any) -> RawClient:
    client = server.connect()
    client.ask({"type": "PING", "extensions": {"agents": {}, **extensions}})
    return client


def send(client: RawClient, *chunks: dict[str, Any], **more: Any) -> None:
    answer = client.ask({"type": "EPISODES", "episodes": list(chunks), **more})
    assert answer["type"] == "ACK", answer


# -- what belongs together ---------------------------------------------------------------------------------------------


def test_a_refused_message_changes_nothing(serve_recording: ServeRecording, tmp_path: Path) -> None:
    server = serve_recording()
    client = connected(server)
    send(client, chunk("left", 1, 0, 2))
    wrong = chunk("guest", 1, 0, 2, obs=[[1.0]] * 3)
    answer = client.ask({"type": "EPISODES", "episodes": [chunk("right", 1, 0, 2, **END), wrong]})
    assert answer["path"].startswith("$.episodes[1].obs")
    send(client, chunk("right", 1, 0, 2, **END), chunk("guest", 1, 0, 2, **END))
    send(client, chunk("left", 1, 2, 3, **END))
    server.sample(5)
    assert finish(server).report.episodes == 1
    ((is_terminated, length, agents),) = recorded_in(tmp_path / "data")
    assert (is_terminated, length, agents.keys()) == (True, 3, WIDTHS.keys())


def test_env_episodes_with_refused_steps_are_left_out(serve_recording: ServeRecording, tmp_path: Path) -> None:
    """Also where an agent's whole episode was refused, and over a restart."""
    server = serve_recording()
    client = connected(server, env_ends={}, session={"id": None})
    send(client, chunk("left", 1, 0, 2, **END), request=1)
    server.sample(2)
    server.save()
    refused = {"type": "EPISODES", "episodes": [chunk("right", 1, 0, 2, **END, weights_seq_no=77)], "request": 2}
    assert client.ask(refused)["code"] == "unknown_weights"
    send(client, chunk("guest", 1, 0, 2, **END, is_env_done=True), request=2)
    send(client, *(chunk(agent, 2, 0, 2, **END) for agent in WIDTHS), request=3)
    for is_restarted in (False, True):
        if is_restarted:
            server = serve_recording(is_resumed=True)
        server.sample(4)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (1, 1, 0)
    assert [agents["left"]["obs"][0][0] for _, _, agents in recorded_in(tmp_path / "data")] == [2.0]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_end_refused", [False, True])
def test_a_late_agent_belongs_to_the_env_episode_whose_steps_were_refused(
    serve_recording: ServeRecording, tmp_path: Path, is_end_refused: bool, is_restarted: bool
) -> None:
    """Until its client says that it is over, also in a message that is refused; then the id is of another one."""
    server = serve_recording()
    client = connected(server, env_ends={}, session={"id": None})
    server.save()
    first = chunk("right", 1, 0, 2, **END) if is_end_refused else chunk("left", 1, 0, 2)
    send(client, first, request=1)
    refused = chunk("left", 1, 0 if is_end_refused else 2, 3, **END, is_env_done=is_end_refused, weights_seq_no=77)
    assert client.ask({"type": "EPISODES", "episodes": [refused], "request": 2})["code"] == "unknown_weights"
    number = 2 if is_end_refused else 1
    send(client, chunk("guest", number, 0, 2, **END, is_env_done=not is_end_refused), request=2)
    send(client, chunk("left", 2, 0, 2, **END, is_env_done=True), request=3)
    if is_restarted:
        server = serve_recording(is_resumed=True)
    server.sample(6)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (1, 1, 0)
    ((_, _, agents),) = recorded_in(tmp_path / "data")
    assert sorted(agents) == (["guest", "left"] if is_end_refused else ["left"])
    assert {one["obs"][0][0] for one in agents.values()} == {2.0}
    assert server.num_finished == 1


def test_env_episodes_that_were_read_again_twice_have_ids_of_their_own(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    """Of a client without a session, after a second restart from a checkpoint that has a part of the messages."""
    server = serve_recording()
    server.save()
    client = connected(server)
    for number in (1, 2, 3):
        send(client, *(chunk(agent, number, 0, 2, **END) for agent in WIDTHS))
    for num_env_steps in (2, 4):
        server = serve_recording(is_resumed=True)
        server.sample(num_env_steps)
        server.save()
    assert finish(server).report.episodes == 3
    assert sorted(agents["left"]["obs"][0][0] for _, _, agents in recorded_in(tmp_path / "data")) == [1.0, 2.0, 3.0]


def test_after_a_restart_an_end_that_was_sampled_is_known(serve_recording: ServeRecording, tmp_path: Path) -> None:
    """The env episode is over for those who begin, and not for an agent that goes on."""
    server = serve_recording()
    client = server.connect()
    asked = {"type": "PING", "extensions": {"agents": {}, "env_ends": {}, "session": {"id": None}}}
    asked["extensions"]["session"]["id"] = client.ask(asked)["extensions"]["session"]["id"]  # type: ignore[index]
    send(client, chunk("left", 1, 0, 2), chunk("right", 1, 0, 1, **END, is_env_done=True), request=1)
    server.sample(2)
    server.save()
    server = serve_recording(is_resumed=True)
    client = server.connect()
    client.ask(asked)
    send(client, chunk("guest", 2, 0, 2), chunk("left", 1, 2, 3, **END), request=2)
    send(client, chunk("guest", 2, 2, 3, **END, is_env_done=True), request=3)
    for _ in range(2):
        server.sample(1)
    assert finish(server).report.episodes == 2
    found = [(length, sorted(agents)) for _, length, agents in recorded_in(tmp_path / "data")]
    assert sorted(found) == [(3, ["guest"]), (3, ["left", "right"])]


def test_after_a_restart_an_env_episode_stays_closed_by_a_newer_one(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    """Also where the newer one is over, and recorded."""
    server = serve_recording()
    client = connected(server, env_ends={}, session={"id": None})
    send(client, chunk("left", 1, 0, 2), chunk("right", 1, 0, 2, **END), request=1)
    send(client, chunk("right", 2, 0, 2, **END, is_env_done=True), request=2)
    server.sample(4)
    server.save()
    send(client, chunk("guest", 3, 0, 2, **END, is_env_done=True), request=3)
    send(client, chunk("left", 1, 2, 3, **END), request=4)
    server = serve_recording(is_resumed=True)
    server.sample(3)
    assert finish(server).report.episodes == 3
    found = [(length, sorted(agents)) for _, length, agents in recorded_in(tmp_path / "data")]
    assert sorted(found) == [(2, ["guest"]), (2, ["right"]), (3, ["left", "right"])]


@pytest.mark.parametrize("says_ends", [False, True])
def test_env_episodes_of_a_client_that_has_gone(serve_recording: ServeRecording, says_ends: bool) -> None:
    """One that nobody else can come to is written now, unless its client would have said that it was over."""
    server = serve_recording()
    client = connected(server, **({"env_ends": {}} if says_ends else {}))
    other = connected(server)
    send(client, chunk("left", 1, 0, 2, **END))
    server.sample(2)
    assert server.written() == (0, 0)
    client.close()
    wait_until(lambda: len(server.runner._service.known) == 1)
    send(other, chunk("left", 2, 0, 2))
    server.sample(2)
    assert server.written() == ((0, 1) if says_ends else (1, 0))


def test_a_client_that_cannot_come_again_would_have_said_that_it_was_over(serve_recording: ServeRecording) -> None:
    """The journal knows that it says so."""
    server = serve_recording()
    server.save()
    client = connected(server, env_ends={})
    send(client, chunk("left", 1, 0, 2, **END))
    server = serve_recording(is_resumed=True)
    server.sample(2)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete) == (0, 1)


def test_at_the_end_nobody_comes_any_more_and_observations_are_as_they_were_sent(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    server = serve_recording("connectors=mean_std_filter")
    client = connected(server)
    sent = [chunk("left", 7, 0, 3), chunk("left", 7, 3, 5, **END)]
    send(client, *sent)
    server.sample(5)
    assert server.written() == (0, 0)
    assert finish(server).report.episodes == 1
    ((_, _, agents),) = recorded_in(tmp_path / "data")
    assert agents["left"]["obs"] == [*sent[0]["obs"], *sent[1]["obs"][1:]]


def test_at_the_end_nobody_comes_any_more_also_right_after_a_restart(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    server = serve_recording()
    client = connected(server)
    send(client, chunk("left", 1, 0, 2, **END), {**chunk("left", 2, 0, 2), "id": "b"})
    server.sample(4)
    server.save()
    server = serve_recording(is_resumed=True)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_unfinished) == (1, 1)
    ((is_terminated, length, agents),) = recorded_in(tmp_path / "data")
    assert (is_terminated, length, agents["left"]["obs"][0][0]) == (True, 2, 1.0)


def test_recording_goes_on_from_a_state_without_what_came_after_it(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    server = serve_recording()
    client = connected(server)
    recording: Any = server.group._recording
    before = recording.get_state()
    send(client, chunk("left", 1, 0, 2, **END))
    server.sample(2)
    recording.set_state(before)
    recording.forget(0)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (0, 0, 0)
    assert recorded_in(tmp_path / "data") == []


def test_an_agent_that_has_begun_in_a_killed_server_is_missed(serve_recording: ServeRecording) -> None:
    """The server had not sampled a step of it, and cannot let it go on."""
    server = serve_recording()
    starter = connected(server)
    send(starter, *(chunk(agent, 9, 0, 1, **END) for agent in WIDTHS))
    server.sample(1)
    client = connected(server, actions={})
    both = [{"id": "a", "agent_id": agent, "obs": [1.0, 0.0]} for agent in ("left", "right")]
    client.ask({"type": "GET_ACTIONS", "episodes": both})
    client.ask({"type": "GET_ACTIONS", "episodes": [{**both[0], "reward": 1.0, "is_terminated": True}]})
    server.sample(1)
    server.save()
    server = serve_recording(is_resumed=True)
    again = connected(server)
    send(again, *(chunk(agent, 3, 0, 1, **END) for agent in WIDTHS))
    server.sample(1)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (2, 1, 0)


def test_agents_that_go_on_where_another_was_lost_are_not_kept(serve_recording: ServeRecording) -> None:
    server = serve_recording()
    client = connected(server)
    send(client, chunk("left", 1, 0, 2), chunk("right", 1, 0, 2))
    server.sample(2)
    refused = {"type": "EPISODES", "episodes": [chunk("left", 1, 2, 3, weights_seq_no=77)]}
    assert client.ask(refused)["code"] == "unknown_weights"
    for start in (2, 3):
        send(client, chunk("right", 1, start, start + 1))
        server.sample(1)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (0, 1, 0)


def test_messages_that_are_left_out_take_their_env_episodes_along(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    server = serve_recording()
    client = connected(server, session={"id": None})
    server.save()
    send(client, chunk("left", 1, 0, 2, **END), request=1)
    send(client, chunk("right", 1, 0, 2, **END), chunk("guest", 1, 0, 2, **END), request=2)
    send(client, *(chunk(agent, 2, 0, 2, **END) for agent in WIDTHS), request=3)
    server = serve_recording("rllink.skip_journal_records=[0.0:0-0]", is_resumed=True)
    server.sample(4)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete) == (1, 1)
    assert [agents["left"]["obs"][0][0] for _, _, agents in recorded_in(tmp_path / "data")] == [2.0]


def test_messages_that_cannot_be_read_again_take_their_env_episodes_along(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    """Also where they would have begun them, and end them."""
    server = serve_recording()
    client = connected(server, env_ends={}, session={"id": None})
    server.save()
    send(client, chunk("left", 1, 0, 2, **END, rewards=[9.0, 9.0]), request=1)
    send(client, chunk("guest", 1, 0, 2, **END), request=2)
    send(client, chunk("right", 1, 0, 2, **END, is_env_done=True, rewards=[9.0, 9.0]), request=3)
    send(client, *(chunk(agent, 2, 0, 2, **END, is_env_done=agent == "guest") for agent in WIDTHS), request=4)
    server = serve_recording("rllink.max_abs_reward=2", is_resumed=True)
    server.sample(4)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete) == (1, 1)
    ((_, _, agents),) = recorded_in(tmp_path / "data")
    assert {agent: one["obs"][0][0] for agent, one in agents.items()} == dict.fromkeys(WIDTHS, 2.0)


def test_ends_of_env_episodes_tell_names_apart_that_are_used_again(
    serve_recording: ServeRecording, tmp_path: Path
) -> None:
    """Without them, an agent that did not take part would be taken for a late one."""
    server = serve_recording()
    client = connected(server, env_ends={})
    send(client, chunk("left", 1, 0, 2, **END, is_env_done=True), chunk("right", 2, 0, 2, **END))
    send(client, chunk("left", 2, 0, 3, **END, is_env_done=True), chunk("guest", 3, 0, 1, **END))  # 3 goes on
    server.sample(6)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_unfinished) == (2, 1)
    found = [(length, sorted(agents)) for _, length, agents in recorded_in(tmp_path / "data")]
    assert found == [(2, ["left"]), (3, ["left", "right"])]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_env_episode_counts_once_when_its_end_is_said(serve_recording: ServeRecording, is_restarted: bool) -> None:
    """Not when the agents that came first have ended."""
    server = serve_recording()
    client = connected(server, env_ends={}, session={"id": None})
    send(client, chunk("left", 1, 0, 2, **END), request=1)
    server.sample(2)
    assert server.num_finished == 0
    server.save()
    send(client, chunk("guest", 1, 0, 3, **END, is_env_done=True), request=2)
    if is_restarted:
        server = serve_recording(is_resumed=True)
    (sample,) = server.group.sample(3, True)
    assert (sample.finished.returns.tolist(), sample.finished.lengths.tolist()) == ([5.0], [3])
    assert finish(server).report.episodes == 1


def test_an_env_episode_ends_with_an_agent(serve_recording: ServeRecording) -> None:
    client = connected(serve_recording())
    answer = client.ask({"type": "EPISODES", "episodes": [chunk("left", 1, 0, 2, is_env_done=True)]})
    assert (answer["code"], answer["path"]) == ("bad_message", "$.episodes[0].is_env_done")


def test_env_episodes_in_which_the_server_acts(serve_recording: ServeRecording, tmp_path: Path) -> None:
    """One that is over is recorded; one that goes on when the server is killed is left out, for it is lost."""
    server = serve_recording()
    client = connected(server, actions={}, env_ends={})
    starter = connected(server)
    send(starter, *(chunk(agent, 9, 0, 1, **END) for agent in WIDTHS))
    server.sample(1)  # there are weights from now on
    played: EnvData = {agent: {"obs": [], "actions": [], "rewards": []} for agent in WIDTHS}
    stays = {"left": (0, 4), "right": (2, 3), "guest": (4, 6)}  # the guest comes when the last one goes
    for t in range(7):
        there = [agent for agent, (first, last) in stays.items() if first <= t <= last]
        asked = []
        for agent in there:
            obs = [1.0, float(t), *[0.0] * (WIDTHS[agent] - 2)]
            first, last = stays[agent]
            played[agent]["obs"].append(obs)
            more: dict[str, Any] = {} if t == first else {"reward": float(t), "is_terminated": t == last}
            played[agent]["rewards"] += [] if t == first else [float(t)]
            asked.append({"id": "a", "agent_id": agent, "obs": obs, **more, "is_env_done": t == 6})
        actions = client.ask({"type": "GET_ACTIONS", "episodes": asked})["actions"]
        for agent, action in zip(there, actions, strict=True):
            played[agent]["actions"] += [] if action is None else [action]
    zeros = {agent: [2.0, 0.0, *[0.0] * (width - 2)] for agent, width in WIDTHS.items()}
    for more in ({}, {"reward": 1.0}):
        asked = [{"id": "b", "agent_id": agent, "obs": obs, **more} for agent, obs in zeros.items()]
        client.ask({"type": "GET_ACTIONS", "episodes": asked})
    server.sample(1)
    server.save()
    server = serve_recording(is_resumed=True)
    again = connected(server)
    send(again, *(chunk(agent, 3, 0, 1, **END) for agent in WIDTHS))
    server.sample(1)
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (3, 1, 0)
    (acted,) = [agents for _, _, agents in recorded_in(tmp_path / "data") if agents["left"]["obs"][0][0] == 1.0]
    kept = {agent: {name: one[name] for name in ("obs", "actions", "rewards")} for agent, one in acted.items()}
    assert kept == played


def test_what_a_lost_server_has_sent_is_recorded_without_it(serve_recording: ServeRecording) -> None:
    """Its env episodes that go on go with it; ones to which nobody can come any more do not."""
    server = serve_recording()
    client = connected(server)
    send(client, chunk("left", 1, 0, 2, **END), {**chunk("left", 2, 0, 2), "id": "b"})
    server.sample(4)
    server.group._recording.forget(0)  # type: ignore[union-attr]
    recorded = finish(server)
    assert (recorded.report.episodes, recorded.num_incomplete, recorded.num_unfinished) == (1, 1, 0)
