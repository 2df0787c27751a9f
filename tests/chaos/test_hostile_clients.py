"""Hostile RLlink clients beside an honest one, whose data arrive completely; the run ends as it should."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos.clients import (
    TOKEN,
    BringsNoToken,
    BringsWrongTokens,
    Floods,
    HonestClient,
    HostileClient,
    LeavesInMidMessage,
    SendsBadNumbers,
    SendsGarbage,
    SendsHalfBodies,
    SendsHugeLengths,
    SendsLongBodies,
    SendsSpoilingRewards,
    StaysSilent,
    attacked_by,
)
from tests.chaos.conftest import Scenario, Start
from tests.chaos.processes import RUNNER
from tests.chaos.runs import assert_each_iteration_once
from tests.chaos.witness import witnessed_rewards
from tests.conftest import WAIT_S, addresses_of, progress_of

BATCH, NUM_ITERATIONS = 256, 12
TRAIN = (
    "+experiment=ppo_external_cartpole",
    "env.port=0",
    "tracking=none",
    f"algorithm.train_batch_size_per_learner={BATCH}",
    "algorithm.minibatch_size=64",
    "algorithm.num_epochs=1",
    "stop.env_runners.episode_return_mean=1e12",
    f"stop.training_iteration={NUM_ITERATIONS}",
    f"rllink.token='{TOKEN}'",
    "rllink.frame_timeout_s=1",
)
EVERYONE: tuple[type[HostileClient], ...] = (
    SendsGarbage,
    SendsHugeLengths,
    SendsHalfBodies,
    StaysSilent,
    BringsWrongTokens,
    BringsNoToken,
    SendsBadNumbers,
    LeavesInMidMessage,
    Floods,
)


class AttackedRun:
    """A run that an honest client brings to its end while hostile ones attack.

    Args:
        start: starts a command.
        folder: for the run.
        overrides: of the run.
    """

    def __init__(self, start: Start, folder: Path, *overrides: str) -> None:
        self.run_dir, self._witnessed = folder / "run", folder / "rewards.txt"
        witness = f"{{_target_: tests.chaos.witness.Witness, path: '{self._witnessed}'}}"
        connectors = f"connectors.learner=[{{prepend: {witness}}}]"
        self.command = start(*RUNNER, *TRAIN, *overrides, connectors, f"hydra.run.dir={self.run_dir}")
        announced = self.run_dir / "rllink.json"
        assert self.command.reaches(announced.exists), self.command.output
        host, _, port = addresses_of(self.run_dir)[0].rpartition(":")
        self.address = host, int(port)

    def reach_end(
        self, hostile: Sequence[HostileClient], while_attacked: Callable[[], None] = lambda: None
    ) -> HonestClient:
        """Let everyone attack from before the honest client comes until after the run's end."""
        honest = HonestClient(self.address, pause_after=NUM_ITERATIONS // 2 * BATCH)
        with attacked_by(hostile):
            honest.start()
            self._wait_for_attacks(hostile, honest)
            while_attacked()
            honest.go_on.set()
            honest.join(WAIT_S)
            assert honest.error is None, f"{honest.error!r}\n{self.command.output}"
            assert self.command.wait() == 0, self.command.output
        assert [mistake for client in hostile for mistake in client.mistakes] == []
        self._assert_complete(honest)
        return honest

    def _wait_for_attacks(self, hostile: Sequence[HostileClient], honest: HonestClient) -> None:
        deadline = time.monotonic() + WAIT_S
        while late := [client.name for client in hostile if client.num_attacks < client.least_attacks]:
            assert honest.error is None, f"{honest.error!r}\n{self.command.output}"
            assert not self.command.has_ended, self.command.output
            assert time.monotonic() < deadline, f"{late} did not get through with their attacks"
            time.sleep(0.02)

    def _assert_complete(self, honest: HonestClient) -> None:
        """Each reward of the honest client was learned from once, in order, and no other."""
        assert_each_iteration_once(self.run_dir, NUM_ITERATIONS)
        rewards = witnessed_rewards(self._witnessed)
        assert rewards == [float(number) for number in range(honest.num_acknowledged)]
        assert len(rewards) == progress_of(self.run_dir)[-1]["num_env_steps_sampled_lifetime"]


def note(scenario: Scenario, hostile: Sequence[HostileClient], honest: HonestClient) -> None:
    """Fill in the row of the table."""
    for kind in dict.fromkeys(map(type, hostile)):
        num_attacks = sum(client.num_attacks for client in hostile if type(client) is kind)
        text = (kind.__doc__ or "").rstrip(".")
        scenario.inject(f"{num_attacks} x {text[0].lower()}{text[1:]}")
    scenario.ends(
        f"exit code 0; all {honest.num_acknowledged} steps of the honest client learned from once, in order; "
        f"its slowest answer took {honest.worst_s:.1f} s"
    )


@pytest.mark.slow
def test_hostile_clients(start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    """One of each kind at the same time."""
    run = AttackedRun(start, tmp_path)
    hostile = [kind(run.address, chance.randrange(2**32)) for kind in EVERYONE]
    honest = run.reach_end(hostile)
    note(scenario, hostile, honest)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [*EVERYONE, SendsSpoilingRewards])
def test_many_hostile_clients(
    kind: type[HostileClient], start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Ten of a kind."""
    run = AttackedRun(start, tmp_path)
    hostile = [kind(run.address, chance.randrange(2**32)) for _ in range(10)]
    honest = run.reach_end(hostile)
    note(scenario, hostile, honest)


@pytest.mark.chaos
def test_silent_connections_next_to_few_seats(
    start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario
) -> None:
    """Who says nothing takes no seat: the honest client finds one."""
    run = AttackedRun(start, tmp_path, "rllink.max_clients=4")
    hostile = [StaysSilent(run.address, chance.randrange(2**32)) for _ in range(4)]
    honest = run.reach_end(hostile)
    note(scenario, hostile, honest)


@pytest.mark.chaos
def test_long_bodies_side_by_side(start: Start, tmp_path: Path, chance: random.Random, scenario: Scenario) -> None:
    """Twelve messages of 99 MB that never end: the memory for them has a bound for the server, not for each."""
    run = AttackedRun(start, tmp_path, "rllink.frame_timeout_s=5")
    before = run.command.peak_bytes
    hostile = [SendsLongBodies(run.address, chance.randrange(2**32)) for _ in range(12)]
    peaks: list[int] = []
    honest = run.reach_end(hostile, while_attacked=lambda: peaks.append(run.command.peak_bytes))
    note(scenario, hostile, honest)
    assert max(peaks) - before < 450_000_000
