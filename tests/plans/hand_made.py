"""Items and context that are made by hand, without environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from runner.callbacks import Callbacks
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.episodes.columns import ColumnBlock, Rollout
from runner.experiment.learner_builder import build_learner_group
from runner.module_building import build_modules
from runner.plans import Experiences, Node, NotReady, Origin, PlanContext, PlanEnded, RunMetrics, Source, TrainResult
from runner.plans.operator import WORKED
from runner.plans.run_parts import RunParts
from runner.replay import ReplayBuffer
from runner.replay.replay_part import ReplayPart
from tests.support.configs import config_from

ID = "default_policy"


@cache
def config_of(*overrides: str) -> ExperimentConfig:
    """Of A2C on CartPole, with one tiny network."""
    small = ("module.fcnet_hiddens=[4]", "evaluation=none", "tracking=none", "stop.training_iteration=1")
    return config_from("+experiment=a2c_cartpole", *small, *overrides)


def parts_of(learners: Any = None, env_runners: Any = None, buffer: ReplayBuffer | None = None) -> RunParts:
    """Parts of a run whose replay buffer, if there is one, is called replay."""
    buffers = [] if buffer is None else [ReplayPart("replay", buffer, {})]
    return RunParts(learners, RunMetrics(10), Callbacks(), env_runners, None, buffers)


def context_of(config: ExperimentConfig | None = None, learners: Any = None, env_runners: Any = None) -> PlanContext:
    """PlanContext with these parts; operators that are tested with them use no others."""
    return PlanContext(config or config_of(), parts_of(learners, env_runners))


def learners_of(config: ExperimentConfig) -> Any:
    """The learners of an experiment in this process."""
    return build_learner_group(config, build_modules(config))


class Sent:
    """Takes the weights that are sent, as env runners do."""

    num_runners = 2
    weights_seq_no = 1

    def __init__(self) -> None:
        self.runners: list[Any] = []
        self.actors = SimpleNamespace(generations=[0] * self.num_runners)

    def set_weights(self, weights: Any, runners: Iterable[int] | None = None) -> None:
        """Keep to whom they went."""
        assert set(weights) == {ID}
        self.runners.append(runners if runners is None else set(runners))


def sent_of(context: PlanContext) -> list[Any]:
    """To which runners weights were sent."""
    env_runners: Any = context.env_runners
    assert not isinstance(env_runners, EnvRunnerGroup)
    sent: list[Any] = env_runners.runners
    return sent


def block_of(first_row: int, lengths: Sequence[int], module_id: str = ID) -> ColumnBlock:
    """Terminated chunks of these lengths; row r of the block has the reward first_row + r."""
    num_rows = sum(lengths)
    stream = np.random.default_rng(first_row)
    logits = stream.normal(size=(num_rows, 2)).astype(np.float32)
    return ColumnBlock(
        columns={
            "obs": stream.normal(size=(num_rows + len(lengths), 4)).astype(np.float32),
            "actions": np.arange(num_rows, dtype=np.int64) % 2,
            "rewards": np.arange(first_row, first_row + num_rows, dtype=np.float32),
            "action_dist_inputs": logits,
            "action_logp": logits[:, 0] - np.logaddexp(logits[:, 0], logits[:, 1]),
        },
        lengths=np.array(lengths, np.int64),
        is_terminated=np.ones(len(lengths), np.bool_),
        is_truncated=np.zeros(len(lengths), np.bool_),
        t_started=np.zeros(len(lengths), np.int64),
        episode_ids=[f"{first_row}-{number}" for number in range(len(lengths))],
        module_id=module_id,
    )


def experiences_of(first_row: int, lengths: Sequence[int], runner: int = 0, weights_seq_no: int = 1) -> Experiences:
    """Experiences of one runner."""
    block = block_of(first_row, lengths)
    rollout = Rollout({ID: block}, block.num_rows)
    return Experiences(rollout, (Origin(runner, weights_seq_no, block.num_rows),))


def results_of(num: int, first: int = 0) -> list[TrainResult]:
    """Train results that tell each other apart by their number of steps."""
    return [TrainResult([], number) for number in range(first, first + num)]


class Given(Source):
    """Gives these items, `NotReady` as one of them, and keeps count of how many were asked for."""

    def __init__(self, context: PlanContext, items: Iterable[Any]) -> None:
        super().__init__(context)
        self._given = iter(items)
        self.num_asked = 0

    def poll(self) -> Any:
        """Return the next item."""
        try:
            item = next(self._given)
        except StopIteration:
            raise PlanEnded from None
        self.num_asked += 1
        return item


def node_of(context: PlanContext, items: Iterable[Any]) -> Node:
    """A node that gives these items."""
    return Given(context, items)


def raw(node: Node, num: int) -> list[Any]:
    """What the next steps of a node give, `NotReady` included."""
    return list(islice((found for found in iter(node.step, object()) if found is not WORKED), num))


WAITING = NotReady.FOR_RUNNERS
