"""A run that stops after any step of its plan equals a straight run when it is resumed.

A run stops after each of its steps in turn and continues. From each of the states that it had then, another run makes
the rest of the results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.config.paths import conf_dir, list_options
from runner.env_runners.sample import Sample
from runner.episodes.columns import Rollout
from runner.experiment import trainer as trainer_module
from runner.experiment.trainer import Trainer
from runner.interrupts import PartialIteration
from runner.plans import Concurrently, Operator, PlanContext, Replay, Source, StoreToReplayBuffer, TrainResult
from runner.plans.plan import Plan
from runner.replay import ReplayBuffer
from runner.rows.finished_episodes import FinishedEpisodes
from runner.streams import random_stream
from tests.conftest import without_times
from tests.plans.hand_made import ID, config_of, experiences_of, parts_of

_SMALL = (
    "evaluation=none",
    "tracking=none",
    "stop.training_iteration=100",
    "engine=inline",
    "env_runners.num_env_runners=2",
    "env_runners.num_envs_per_env_runner=1",
    "env_runners.rollout_fragment_length=4",
    "algorithm.min_sample_timesteps_per_iteration=10",
    "module.fcnet_hiddens=[4]",
    "algorithm.train_batch_size_per_learner=8",
)
_REPLAY = ("algorithm.num_steps_sampled_before_learning_starts=12", "algorithm.training_intensity=1.5")
_EVALUATED = "evaluation.evaluation_interval=100"  # `stop` names its metric
# Algorithm -> experiment and overrides.
RUNS: dict[str, tuple[str, Sequence[str]]] = {
    "a2c": ("a2c_cartpole", ()),
    "a2c_replay": ("a2c_replay_cartpole", ()),
    "a3c": ("a3c_cartpole", ()),
    "apex_dqn": ("apex_cartpole", (*_REPLAY, "algorithm.num_replay_shards=2")),
    "appo": ("appo_cartpole", ("algorithm.replay_proportion=0.5", "algorithm.replay_fragment_length=2")),
    "ddpg": ("ddpg_pendulum", (*_REPLAY, "algorithm.num_random_steps=4")),
    "dqn": ("dqn_cartpole", _REPLAY),
    "impala": ("impala_cartpole", ()),
    "ippo": ("ippo_speaker_listener", ()),
    "mappo": ("mappo_speaker_listener", ()),
    "munchausen_dqn": ("munchausen_dqn_cartpole", _REPLAY),
    "pg": ("pg_cartpole", ()),
    "pqn": ("pqn_cartpole", ("algorithm.minibatch_size=4", "algorithm.num_epochs=1")),
    "ppo": ("ppo_cartpole", ("algorithm.minibatch_size=4", "algorithm.num_epochs=1")),
    "ppo_sb3": ("ppo_sb3_cartpole", ("algorithm.minibatch_size=4", "algorithm.num_epochs=1")),
    "qmix": ("qmix_two_step_game", (*_REPLAY, _EVALUATED)),
    "rainbow": ("rainbow_cartpole", (*_REPLAY, "module.num_atoms=3")),
    "crossq": ("crossq_pendulum", _REPLAY),
    "sac": ("sac_pendulum", _REPLAY),
    "sac_discrete": ("sac_cartpole_discrete", _REPLAY),
    "td3": ("td3_pendulum", (*_REPLAY, "algorithm.num_random_steps=4")),
    "tqc": ("tqc_pendulum", (*_REPLAY, "module.num_atoms=3")),
    "vdn": ("vdn_two_step_game", (*_REPLAY, _EVALUATED)),
    # Beyond the plans in conf/algorithm: one update for each fragment, and two branches that share the sampled steps.
    "dqn_in_turn": ("dqn_cartpole", (_REPLAY[0], "algorithm.training_intensity=null")),
    "ppo_beside_dqn": ("ppo_dqn_multi_agent_cartpole", ("algorithm.minibatch_size=4", "algorithm.num_epochs=1")),
}
# A run does not stop while recorded batches wait, see test_reading.py.
_READS_RECORDED = {"bc", "cql", "cql_discrete", "iql", "marwil"}
_NUM_ITERATIONS = 2


class Stops:
    """Counts the steps of plans, and stops a run after the ones that `stops_after` chooses."""

    def __init__(self) -> None:
        self.number = 0
        self.stops_after: Callable[[int], bool] = lambda number: False

    def __call__(self) -> bool:
        self.number += 1
        return self.stops_after(self.number)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    found = Stops()
    monkeypatch.setattr(trainer_module, "is_overdue", found)
    return found


def _made(name: str) -> Trainer:
    experiment, overrides = RUNS[name]
    return Trainer.from_experiment(experiment, [*_SMALL, *overrides])


def _results(trainer: Trainer, note_state: Callable[[dict[str, Any]], None] = lambda state: None) -> list[Any]:
    """The results up to the last iteration; `note_state` gets a state for each stop."""
    results = []
    while trainer.training_iteration < _NUM_ITERATIONS:
        try:
            results.append(without_times(trainer.train()))
        except PartialIteration:
            note_state(copy.deepcopy(trainer.get_state()))
    return results


def test_each_plan_is_here() -> None:
    assert (
        set(RUNS) - {"dqn_in_turn", "ppo_beside_dqn"} == set(list_options([conf_dir()], "algorithm")) - _READS_RECORDED
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_stop_after_each_step_changes_nothing(name: str, stops: Stops) -> None:
    with _made(name) as trainer:
        straight = _results(trainer)
        weights = trainer.learners.get_weights()
    num_steps, stops.number = stops.number, 0
    assert num_steps >= 2 * _NUM_ITERATIONS
    states: list[dict[str, Any]] = []
    stops.stops_after = lambda number: True
    with _made(name) as trainer:
        assert _results(trainer, states.append) == straight, "the run stops and continues without a checkpoint"
    assert len(states) == num_steps
    stops.stops_after = lambda number: False
    for number, state in enumerate(states, 1):
        with _made(name) as trainer:
            trainer.set_state(state)
            rest = _results(trainer)
            assert rest == straight[_NUM_ITERATIONS - len(rest) :], f"stopped after step {number} of {num_steps}"
            for module_id, expected in weights.items():
                assert np.array_equal(trainer.learners.get_weights()[module_id], expected), f"step {number}"


_NO_EPISODES = FinishedEpisodes(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))


class _Sampled(Source):
    """Samples four env steps at a time, with rewards that count the env steps of the run."""

    is_counted = True

    def poll(self) -> Any:
        first_row = self.context.metrics.num_env_steps_sampled_lifetime
        sample = Sample(Rollout({}, 4), _NO_EPISODES, {})
        return replace(experiences_of(first_row, [4]), samples=(sample,))


class _Train(Operator):
    """Reports the size of the replay buffer and the sum of the drawn rewards, instead of an update."""

    is_counted = True

    def transform(self, item: Any) -> Iterator[TrainResult]:
        size = len(self.context.replay_buffers["replay"])
        drawn = float(item.rollout.blocks[ID].columns["rewards"].sum())
        yield TrainResult([{ID: {"size": size, "drawn": drawn}}], item.num_env_steps)


def _small_plan(context: PlanContext, options: dict[str, Any]) -> Plan:
    store = _Sampled(context).for_each(StoreToReplayBuffer(context))
    train = Replay(context, num_env_steps=4, learning_starts=8).for_each(_Train(context))
    return Plan(Concurrently([store, train], output_indexes=[1], **options), context)


def _small_context(intensity: float | None) -> PlanContext:
    config = config_of()
    algorithm = replace(config.algorithm, training_intensity=intensity, replay_buffers={"replay": {}})
    buffer = ReplayBuffer(1000)
    buffer.use_stream(random_stream(0, "test"))
    return PlanContext(replace(config, algorithm=algorithm), parts_of(buffer=buffer))


def _updates(plan: Plan, num: int) -> list[Any]:
    updates: list[Any] = []
    while len(updates) < num:
        found = plan.root.step()
        updates += [found.updates] if isinstance(found, TrainResult) else []
    return updates


def _state_of(context: PlanContext, plan: Plan) -> dict[str, Any]:
    buffer = context.replay_buffers["replay"]
    return {
        "plan": plan.get_state(),
        "metrics": context.metrics.get_state(),
        "buffer": buffer.get_state(),
    }


def _restore(context: PlanContext, plan: Plan, state: dict[str, Any]) -> None:
    context.metrics.set_state(state["metrics"])
    context.replay_buffers["replay"].set_state(state["buffer"])
    plan.set_state(state["plan"])


@pytest.mark.parametrize(
    ("options", "intensity"),
    [
        *[({"round_robin_weights": "auto"}, intensity) for intensity in (0.3, 1.0, 2.5, None)],
        *[({"round_robin_weights": weights}, None) for weights in (None, [1, 2], [3, 1])],
        ({"mode": "async"}, None),
    ],
)
def test_turns_are_kept_after_each_step(options: dict[str, Any], intensity: float | None) -> None:
    states: list[tuple[int, dict[str, Any]]] = []
    context = _small_context(intensity)
    plan = _small_plan(context, options)
    straight: list[Any] = []
    while len(straight) < 6:
        found = plan.root.step()
        straight += [found.updates] if isinstance(found, TrainResult) else []
        states.append((len(straight), copy.deepcopy(_state_of(context, plan))))
    for number, (num_done, state) in enumerate(states, 1):
        context = _small_context(intensity)
        plan = _small_plan(context, options)
        _restore(context, plan, state)
        assert _updates(plan, 6 - num_done) == straight[num_done:], f"stopped after step {number} of {len(states)}"
