"""Plans as data: problems of mistakes and drawings, without an import of torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.operators import OPERATORS
from runner.config.plans.buffers import find_buffer_problems
from runner.config.plans.drawing import draw_plan
from runner.config.plans.flow import check_items
from runner.config.plans.needs import needs_of
from runner.config.plans.rules import find_plan_problems
from runner.config.plans.steps import read_options, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from tests.config.conftest import ReportOf, WriteConfig
from tests.conftest import ROOT, AssertGolden, Run, run_process
from tests.support.configs import config_from
from tests.support.problems import not_a_choice, out_of_range

OWN = "tests.support.own_plans"
ROLLOUTS, CONCAT, TRAIN, READ = "ParallelRollouts", "ConcatBatches", "TrainOneStep", "ReadRecorded"


def several(*plans: Any, **options: Any) -> dict[str, Any]:
    return {"Concurrently": {"plans": list(plans), **options}}


def queue(operator: str, name: str, **options: Any) -> dict[str, Any]:
    return {operator: {"queue": name, **options}}


FROM_Q_TO_P = [queue("Dequeue", "q"), queue("Enqueue", "p")]

# What several messages allow.
A_PLAN = "a list of operators: Name, {Name: {option: value}}, or {_target_: package.Operator, argument: value}"
A_BEGINNING = "a plan that begins with ParallelRollouts, ReadRecorded, AsyncGradients, Replay, Concurrently, Dequeue"
TAKE_EXPERIENCES = (
    "ConcatBatches, CompleteEpisodes, SelectExperiences, StandardizeFields, StoreToReplayBuffer, "
    "MixInReplay, ComputeGradients, TrainOneStep"
)
OPERATOR_NAMES = ", ".join(OPERATORS)

NO_MODE_BULK = not_a_choice(
    "algorithm.plan.0.ParallelRollouts.mode",
    '"bulk"',
    "bulk_sync, raw, async",
    nearest="bulk_sync",
    where="algorithm.plan.0.ParallelRollouts.mode",
)


def takes_items(key: str, operator: str) -> Problem:
    return Problem(f"{key}: {operator} needs an operator before it that gives items", key, operator, A_BEGINNING)


def no_operator(key: str, name: str, nearest: str) -> Problem:
    return Problem(f"{key}: unknown operator {name}", key, name, OPERATOR_NAMES, nearest)


def not_an_operator(key: str, got: str) -> Problem:
    return Problem(f"{key} is not a valid operator", key, got, A_PLAN)


def not_a_plan(key: str) -> Problem:
    return Problem(f"{key} is not a valid plan", key, "[]", A_PLAN)


def unknown_option(key: str, got: str, expected: str, nearest: str | None = None) -> Problem:
    return Problem(f"unknown key {key}", key, got, expected, nearest)


def only_begins(key: str, got: str) -> Problem:
    operator = got.rpartition(" -> ")[2]
    what = f"{key}: {operator} is a source and must be the first operator of a plan"
    return Problem(what, key, got, "Concurrently with several branches")


def misfit(key: str, giver: tuple[str, str], taker: tuple[str, str], expected: str) -> Problem:
    what = f"{key}: {giver[0]} gives {giver[1]}, but {taker[0]} takes {taker[1]}"
    return Problem(what, key, f"{giver[0]} -> {taker[0]}", f"after {giver[0]}: {expected}")


def ends_early(key: str) -> Problem:
    return Problem(
        f"{key}: StandardMetricsReporting ends an iteration of the complete plan",
        where=key,
        fix="make it the last operator of algorithm.plan, or remove it",
    )


def other_weights(got: str) -> Problem:
    what = "algorithm.plan.0: round_robin_weights needs one weight for each of the 2 branches"
    return Problem(what, "algorithm.plan.0", got, "integers >= 1, or '*'")


def no_shares(got: str) -> Problem:
    return Problem(
        "algorithm.plan.0: round_robin_weights: auto needs a sampling and a training branch",
        where="algorithm.plan.0",
        got=got,
        expected="mode: round_robin, and two branches: the first samples, the second trains",
    )


def never_waits(plan: int, got: str) -> Problem:
    return Problem(
        f"algorithm.plan.0: branch {plan} never waits, so with the weight '*' its turn would never end",
        where="algorithm.plan.0",
        got=got,
        expected="a number, or a branch that begins with Dequeue or samples with mode: async",
    )


def never_filled(key: str, name: str) -> Problem:
    return Problem(
        f"{key}: no other branch fills the queue {name}, so Dequeue would wait forever",
        where=key,
        got=name,
        expected=f"{{Enqueue: {{queue: {name}}}}} in another branch of Concurrently",
    )


def never_emptied(key: str, name: str) -> Problem:
    return Problem(
        f"{key}: no branch empties the queue {name}, so Enqueue would wait forever when it is full",
        where=key,
        got=name,
        expected=f"{{Dequeue: {{queue: {name}}}}} at the beginning of a branch",
    )


def in_a_circle(key: str, name: str) -> Problem:
    return Problem(
        f"{key}: the queue {name} is only filled from queues that wait for it, so it stays empty",
        where=key,
        got=name,
        expected=f"{{Enqueue: {{queue: {name}}}}} in a branch that samples or reads recorded data",
    )


MISTAKES = [
    pytest.param(
        [ROLLOUTS, "ConcatBatch", TRAIN],
        [no_operator("algorithm.plan.1", "ConcatBatch", "ConcatBatches")],
        id="unknown operator",
    ),
    pytest.param(
        [{ROLLOUTS: {"mod": "raw"}}, TRAIN],
        [
            unknown_option(
                "algorithm.plan.0.ParallelRollouts.mod",
                '"raw"',
                "deterministic, max_weights_lag, mode, num_async",
                "mode",
            )
        ],
        id="unknown option",
    ),
    pytest.param(
        [ROLLOUTS, {"CompleteEpisodes": {"length": 1}}, TRAIN],
        [unknown_option("algorithm.plan.1.CompleteEpisodes.length", "1", "no keys")],
        id="option of an operator without any",
    ),
    pytest.param(
        [{ROLLOUTS: {"mode": "bulk", "num_async": 0}}, TRAIN],
        [
            out_of_range(
                "algorithm.plan.0.ParallelRollouts.num_async",
                "0",
                "an integer >= 1",
                where="algorithm.plan.0.ParallelRollouts.num_async",
            ),
            NO_MODE_BULK,
        ],
        id="value out of range",
    ),
    pytest.param(
        [ROLLOUTS, {CONCAT: {"min_env_steps": "many"}}, TRAIN],
        [
            not_a_choice(
                "algorithm.plan.1.ConcatBatches.min_env_steps",
                '"many"',
                "an integer >= 1 or auto",
                where="algorithm.plan.1.ConcatBatches.min_env_steps",
            )
        ],
        id="text for a number",
    ),
    pytest.param(
        [{ROLLOUTS: "raw"}, TRAIN],
        [
            Problem(
                "algorithm.plan.0: the options of ParallelRollouts must be a block",
                where="algorithm.plan.0",
                got='"raw"',
                expected="num_async, max_weights_lag, deterministic, mode",
            )
        ],
        id="options that are no block",
    ),
    pytest.param(
        [{ROLLOUTS: {}, TRAIN: {}}],
        [not_an_operator("algorithm.plan.0", '{"ParallelRollouts": {}, "TrainOneStep": {}}')],
        id="two operators in one",
    ),
    pytest.param(
        [ROLLOUTS, 3],
        [not_an_operator("algorithm.plan.1", "3")],
        id="a number for an operator",
    ),
    pytest.param(
        [ROLLOUTS, {"_target_": 3}],
        [
            Problem(
                "algorithm.plan.1._target_ is not a dotted path",
                where="algorithm.plan.1",
                got="3",
                expected="package.module.Name",
            )
        ],
        id="a target that is none",
    ),
    pytest.param([], [not_a_plan("algorithm.plan")], id="nothing"),
    pytest.param(
        [CONCAT, TRAIN],
        [takes_items("algorithm.plan.0", "ConcatBatches")],
        id="no operator that begins",
    ),
    pytest.param(
        [ROLLOUTS, READ, TRAIN],
        [only_begins("algorithm.plan.1", "ParallelRollouts -> ReadRecorded")],
        id="a beginning in the middle",
    ),
    pytest.param(
        [ROLLOUTS, "ApplyGradients"],
        [
            misfit(
                "algorithm.plan.1",
                ("ParallelRollouts", "Experiences"),
                ("ApplyGradients", "Gradients"),
                TAKE_EXPERIENCES,
            )
        ],
        id="items that do not fit",
    ),
    pytest.param(
        [several([ROLLOUTS], [ROLLOUTS, TRAIN]), TRAIN],
        [
            misfit(
                "algorithm.plan.1",
                ("Concurrently", "TrainResult"),
                ("TrainOneStep", "Experiences or RecordedBatches"),
                "Duplicate, Enqueue, DebugPrint, StandardMetricsReporting",
            )
        ],
        id="items of several plans that do not fit",
    ),
    pytest.param(
        [ROLLOUTS, TRAIN, "StandardMetricsReporting", "DebugPrint"],
        [
            misfit(
                "algorithm.plan.3",
                ("StandardMetricsReporting", "Result"),
                ("DebugPrint", "Experiences or RecordedBatches or Gradients or TrainResult"),
                "a custom operator",
            ),
            ends_early("algorithm.plan.2"),
        ],
        id="a result in the middle",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN, "StandardMetricsReporting"], [ROLLOUTS, TRAIN])],
        [ends_early("algorithm.plan.0.Concurrently.plans.0.2")],
        id="a result in one of several plans",
    ),
    pytest.param(
        ["Concurrently"],
        [
            Problem(
                "algorithm.plan.0: Concurrently needs plans",
                where="algorithm.plan.0",
                expected="plans: a list of branches, each a list of operators",
            )
        ],
        id="no plans",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [])],
        [not_a_plan("algorithm.plan.0.Concurrently.plans.1")],
        id="an empty plan of several",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], output_indexes=[0, 2])],
        [
            Problem(
                "algorithm.plan.0: output_indexes contains 2, but the last branch is 1",
                where="algorithm.plan.0",
                got="[0, 2]",
                expected="indexes from 0 to 1",
            )
        ],
        id="outputs that are not there",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], output_indexes=[])],
        [
            Problem(
                "algorithm.plan.0: Concurrently returns no items, so iterations would never end",
                where="algorithm.plan.0",
                got="output_indexes: []",
                expected="indexes from 0 to 1, or null for all",
            )
        ],
        id="no outputs",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1])],
        [other_weights("[1]")],
        id="weights of other plans",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1, "+"])],
        [other_weights('[1, "+"]')],
        id="weights that are none",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1, 2], mode="async")],
        [
            Problem(
                "algorithm.plan.0: round_robin_weights have no effect with mode async",
                where="algorithm.plan.0",
                got="[1, 2]",
                expected="mode: round_robin",
            )
        ],
        id="weights without turns",
    ),
    pytest.param(
        [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights="auto")],
        [no_shares("mode: round_robin, 2 branches")],
        id="shares of plans that do not sample and train",
    ),
    pytest.param(
        [several([ROLLOUTS], [ROLLOUTS, TRAIN], round_robin_weights="auto", mode="async")],
        [no_shares("mode: async, 2 branches")],
        id="shares without turns",
    ),
    pytest.param(
        [several([ROLLOUTS, "DebugPrint"], [ROLLOUTS, TRAIN], round_robin_weights=["*", 1], output_indexes=[1])],
        [never_waits(0, '["*", 1]')],
        id="a plan that is always ready",
    ),
    pytest.param(
        [
            several(
                [ROLLOUTS, "StoreToReplayBuffer"], ["Replay", TRAIN], round_robin_weights=[1, "*"], output_indexes=[1]
            )
        ],
        [never_waits(1, '[1, "*"]')],
        id="replay that is always ready",
    ),
    pytest.param(
        [several([ROLLOUTS, {"Enqueue": {"queue": "q"}}], [{"Dequeue": {"queue": "p"}}, TRAIN])],
        [
            never_filled("algorithm.plan.0.Concurrently.plans.1.0", "p"),
            never_emptied("algorithm.plan.0.Concurrently.plans.0.1", "q"),
        ],
        id="a queue that nobody fills",
    ),
    pytest.param(
        [{"Dequeue": {"queue": "q"}}, {"Enqueue": {"queue": "q"}}, TRAIN],
        [in_a_circle("algorithm.plan.0", "q")],
        id="a queue that fills itself",
    ),
    pytest.param(
        [several([queue("Dequeue", "p"), queue("Enqueue", "q"), TRAIN], FROM_Q_TO_P)],
        [
            in_a_circle("algorithm.plan.0.Concurrently.plans.0.0", "p"),
            in_a_circle("algorithm.plan.0.Concurrently.plans.1.0", "q"),
        ],
        id="queues that fill each other",
    ),
    pytest.param(
        [
            several(
                [ROLLOUTS, queue("Enqueue", "r")],
                [queue("Dequeue", "r"), TRAIN],
                [queue("Dequeue", "p"), queue("Enqueue", "q")],
                FROM_Q_TO_P,
            )
        ],
        [
            in_a_circle("algorithm.plan.0.Concurrently.plans.2.0", "p"),
            in_a_circle("algorithm.plan.0.Concurrently.plans.3.0", "q"),
        ],
        id="queues of which only some have items",
    ),
    pytest.param(
        [
            several(
                [ROLLOUTS, queue("Enqueue", "q", capacity=2)],
                [ROLLOUTS, queue("Enqueue", "q")],
                [queue("Dequeue", "q"), TRAIN],
            )
        ],
        [
            Problem(
                (
                    "algorithm.plan.0.Concurrently.plans.1.1: the queue q has another capacity in "
                    "algorithm.plan.0.Concurrently.plans.0.1"
                ),
                where="algorithm.plan.0.Concurrently.plans.1.1",
                got="16, and 2 there",
                expected="equal capacities",
            )
        ],
        id="two capacities of a queue",
    ),
    pytest.param(
        [ROLLOUTS, "Enqueue", TRAIN],
        [never_emptied("algorithm.plan.1", "queue")],
        id="a queue that nobody empties",
    ),
    pytest.param(
        [several([ROLLOUTS, "Enqueue"], ["Dequeue", "ApplyGradients"])],
        [
            misfit(
                "algorithm.plan.0.Concurrently.plans.1.1",
                ("Dequeue", "Experiences"),
                ("ApplyGradients", "Gradients"),
                TAKE_EXPERIENCES,
            )
        ],
        id="items of a queue that do not fit",
    ),
    pytest.param(
        [{"Duplicate": {"plans": [[TRAIN], [TRAIN]]}}],
        [takes_items("algorithm.plan.0", "Duplicate")],
        id="duplicates of nothing",
    ),
    pytest.param(
        [ROLLOUTS, {"Duplicate": {"plans": [[TRAIN], [ROLLOUTS, TRAIN]]}}],
        [only_begins("algorithm.plan.1.Duplicate.plans.1.0", "Duplicate -> ParallelRollouts")],
        id="a beginning in a duplicate",
    ),
    pytest.param(
        [ROLLOUTS, "SelectExperiences", TRAIN],
        [
            Problem(
                "algorithm.plan.1: SelectExperiences without modules drops every item",
                where="algorithm.plan.1",
                got="[]",
                expected="modules: ids of the modules to keep",
            )
        ],
        id="no experiences are kept",
    ),
    pytest.param(
        [ROLLOUTS, {"_target_": f"{OWN}.EverySecnd"}, TRAIN],
        [
            Problem(
                "algorithm.plan.1._target_: tests.support.own_plans does not define EverySecnd",
                where="algorithm.plan.1._target_",
                got="tests.support.own_plans.EverySecnd",
                expected=(
                    "Computed, EverySecond, Misspelt, NoReduction, OddSteps, ThreeResults, Unknown, "
                    "gradients, made_late, no_flow, reported, two_batches"
                ),
                nearest="EverySecond",
            )
        ],
        id="a missing operator of one's own",
    ),
    pytest.param(
        [ROLLOUTS, {"_target_": f"{OWN}.EverySecond", "last": 1}, TRAIN],
        [
            Problem(
                "algorithm.plan.1._target_: EverySecond does not take the argument last",
                where="algorithm.plan.1._target_",
                got="tests.support.own_plans.EverySecond",
                expected="first",
            )
        ],
        id="an unknown argument of one's own operator",
    ),
    pytest.param(
        [{"_target_": f"{OWN}.EverySecond"}, TRAIN],
        [takes_items("algorithm.plan.0", "tests.support.own_plans.EverySecond")],
        id="one's own operator that begins no plan",
    ),
    pytest.param(
        [ROLLOUTS, {"_target_": f"{OWN}.OddSteps"}, TRAIN],
        [
            misfit(
                "algorithm.plan.2",
                ("tests.support.own_plans.OddSteps", "Numbers"),
                ("TrainOneStep", "Experiences or RecordedBatches"),
                "a custom operator",
            )
        ],
        id="items of one's own that nothing takes",
    ),
    pytest.param(
        [ROLLOUTS, {"_target_": f"{OWN}.two_batches"}],
        [
            Problem(
                (
                    "tests.support.own_plans.two_batches is a function that makes a complete plan, so it cannot "
                    "be a step of a plan"
                ),
                where="algorithm.plan",
                expected="algorithm.plan: {_target_: tests.support.own_plans.two_batches}, or an operator class",
            )
        ],
        id="a function for an operator",
    ),
    pytest.param(
        [{ROLLOUTS: {"mode": "bulk"}}, "ConcatBatch", {"TrainOneStp": {"lr": 1}}],
        [
            NO_MODE_BULK,
            no_operator("algorithm.plan.1", "ConcatBatch", "ConcatBatches"),
            no_operator("algorithm.plan.2", "TrainOneStp", "TrainOneStep"),
        ],
        id="several mistakes",
    ),
]


@pytest.mark.parametrize(("plan", "expected"), MISTAKES)
def test_what_is_said_about_mistakes(plan: list[Any], expected: list[Problem]) -> None:
    assert list(find_plan_problems(plan)) == expected


BUFFER = {"replay": {"_target_": "runner.replay.ReplayBuffer", "capacity": 100}}
STORE, UPDATE = "StoreToReplayBuffer", "UpdatePriorities"
ONLY_REPLAYED = Problem(
    "algorithm.replay_buffers.replay: the plan replays this buffer only",
    where="algorithm.plan",
    expected="StoreToReplayBuffer with buffer: replay",
)


def no_buffer(key: str) -> Problem:
    expected = "algorithm.replay_buffers.replay={_target_: runner.replay.ReplayBuffer, capacity: 10000}"
    return Problem(f"{key}: unknown buffer replay (algorithm.replay_buffers)", key, "replay", expected)


def no_errors_of_rows(key: str) -> Problem:
    return Problem(
        f"{key}: the loss does not return td_error per row",
        key,
        "td_error",
        "a loss whose record lists it in `rows`",
    )


def only_stored(buffer: str) -> Problem:
    return Problem(
        f"algorithm.replay_buffers.{buffer}: the plan stores to this buffer only",
        where="algorithm.plan",
        expected=f"Replay with buffer: {buffer}",
    )


# Buffers, the plan, and its problems.
BUFFER_MISTAKES = [
    pytest.param(
        BUFFER,
        [several([ROLLOUTS, {STORE: {"buffer": "repley"}}], ["Replay", TRAIN])],
        [
            Problem(
                "algorithm.plan.0.Concurrently.plans.0.1: unknown buffer repley (algorithm.replay_buffers)",
                where="algorithm.plan.0.Concurrently.plans.0.1",
                got="repley",
                expected="replay",
                nearest="replay",
            ),
            ONLY_REPLAYED,
        ],
        id="an unknown buffer",
    ),
    pytest.param(
        {},
        [several([ROLLOUTS, STORE], ["Replay", TRAIN])],
        [
            no_buffer("algorithm.plan.0.Concurrently.plans.0.1"),
            no_buffer("algorithm.plan.0.Concurrently.plans.1.0"),
        ],
        id="no buffer",
    ),
    pytest.param(
        BUFFER,
        [ROLLOUTS, STORE, TRAIN],
        [only_stored("replay")],
        id="never replayed",
    ),
    pytest.param(
        BUFFER,
        [several([ROLLOUTS, "DebugPrint"], ["Replay", TRAIN], output_indexes=[1])],
        [ONLY_REPLAYED],
        id="never stored to",
    ),
    pytest.param(
        BUFFER,
        [ROLLOUTS, TRAIN],
        [
            Problem(
                "algorithm.replay_buffers.replay: the plan does not use this buffer",
                where="algorithm.plan",
                expected="StoreToReplayBuffer and Replay with buffer: replay",
            )
        ],
        id="not used",
    ),
    pytest.param(
        {"replay": {"capacity": 100}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                "algorithm.replay_buffers.replay needs the class of a replay buffer",
                where="algorithm.replay_buffers.replay",
                got='{"capacity": 100}',
                expected="{_target_: runner.replay.ReplayBuffer or PrioritizedReplayBuffer, capacity: 10000}",
            )
        ],
        id="no class",
    ),
    pytest.param(
        {"replay": {"_target_": "runner.learners.ppo.PPOLoss"}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                (
                    "algorithm.replay_buffers.replay._target_: runner.learners.ppo.PPOLoss is not a subclass "
                    "of runner.replay.ReplayBuffer"
                ),
                where="algorithm.replay_buffers.replay._target_",
                got="runner.learners.ppo.PPOLoss",
            )
        ],
        id="no buffer's class",
    ),
    pytest.param(
        {"replay": {"_target_": "runner.replay.RepleyBuffer"}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                "algorithm.replay_buffers.replay._target_: runner.replay does not define RepleyBuffer",
                where="algorithm.replay_buffers.replay._target_",
                got="runner.replay.RepleyBuffer",
                expected=(
                    "BufferEmpty, EpisodeReplayBuffer, HindsightReplayBuffer, PrioritizedReplayBuffer, "
                    "ReplayBuffer, Replayed, ShardedReplayBuffer"
                ),
                nearest="ReplayBuffer",
            )
        ],
        id="a missing class",
    ),
    pytest.param(
        {"replay": {"_target_": "runner.replay.ReplayBuffer", "capcity": 100}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                "algorithm.replay_buffers.replay: ReplayBuffer does not take the argument capcity",
                where="algorithm.replay_buffers.replay",
                got="capcity",
                expected="batch_length_T, burn_in_len, capacity, gamma, n_step, replay_mode",
                nearest="capacity",
            )
        ],
        id="an unknown argument",
    ),
    pytest.param(
        BUFFER,
        [several([ROLLOUTS, STORE], [{"Replay": {"learning_starts": 100}}, TRAIN], output_indexes=[1])],
        [
            Problem(
                (
                    "algorithm.plan.0.Concurrently.plans.1.0: the buffer is too small for the 100 env steps "
                    "of learning_starts"
                ),
                where="algorithm.plan.0.Concurrently.plans.1.0",
                got="100",
                expected="less than the capacity of 100",
            )
        ],
        id="learning that never starts",
    ),
    pytest.param(
        BUFFER,
        [ROLLOUTS, "MixInReplay", TRAIN, UPDATE],
        [no_errors_of_rows("algorithm.plan.3")],
        id="errors that the loss does not give",
    ),
    pytest.param(
        {"replay": {"_target_": "runner.replay.PrioritizedReplayBuffer"}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                ("algorithm.replay_buffers.replay: the plan never updates priorities, so sampling is uniform"),
                where="algorithm.plan",
                expected="UpdatePriorities with buffer: replay after TrainOneStep, or runner.replay.ReplayBuffer",
            )
        ],
        id="priorities that never change",
    ),
    pytest.param(
        {"replay": {**BUFFER["replay"], "n_step": 3}},
        [ROLLOUTS, "MixInReplay", TRAIN],
        [
            Problem(
                "algorithm.replay_buffers.replay discounts n-step rewards by 1.0, but the algorithm uses 0.99",
                where="algorithm.replay_buffers.replay.gamma",
                got="1.0",
                expected="gamma: ${algorithm.gamma}, which is 0.99",
            )
        ],
        id="another discount",
    ),
    pytest.param(
        BUFFER,
        [ROLLOUTS, "MixInReplay", "ComputeGradients", "ApplyGradients", UPDATE],
        [
            no_errors_of_rows("algorithm.plan.4"),
            Problem(
                ("algorithm.plan.4: gradients do not identify their rows, so priorities cannot be updated"),
                where="algorithm.plan.4",
                got="ApplyGradients -> UpdatePriorities",
                expected="TrainOneStep -> UpdatePriorities",
            ),
        ],
        id="priorities without rows",
    ),
    pytest.param(
        BUFFER | {"other": BUFFER["replay"]},
        [ROLLOUTS, {STORE: {"buffer": "other"}}, "MixInReplay", TRAIN, {UPDATE: {"buffer": "other"}}],
        [
            no_errors_of_rows("algorithm.plan.4"),
            Problem(
                "algorithm.plan.4: its rows were not replayed from this buffer",
                where="algorithm.plan.4",
                got="buffer other",
                expected="buffer: replay",
            ),
            only_stored("other"),
        ],
        id="priorities of another buffer",
    ),
    pytest.param(
        BUFFER,
        [ROLLOUTS, "MixInReplay", "CompleteEpisodes", TRAIN],
        [
            Problem(
                "algorithm.plan.2: replayed steps never form complete episodes",
                where="algorithm.plan.2",
                got="Replay -> CompleteEpisodes",
                expected="CompleteEpisodes before the buffer",
            )
        ],
        id="replayed episodes",
    ),
]


@pytest.fixture(scope="module")
def a2c() -> ExperimentConfig:
    return config_from("+experiment=a2c_cartpole")


@pytest.mark.parametrize(("buffers", "plan", "expected"), BUFFER_MISTAKES)
def test_what_is_said_about_replay_buffers(
    buffers: dict[str, Any], plan: list[Any], expected: list[Problem], a2c: ExperimentConfig
) -> None:
    config = replace(a2c, algorithm=replace(a2c.algorithm, replay_buffers=buffers, plan=plan))
    assert list(find_buffer_problems(config)) == expected


def test_the_priorities_of_several_buffers_in_a_row() -> None:
    config = config_from("+experiment=dqn_cartpole")
    mixed = [{"MixInReplay": {"buffer": name}} for name in ("replay", "other")]
    updates = [{UPDATE: {"buffer": name}} for name in ("replay", "other")]
    algorithm = replace(
        config.algorithm,
        plan=[ROLLOUTS, *mixed, TRAIN, *updates],
        replay_buffers={name: {"_target_": "runner.replay.PrioritizedReplayBuffer"} for name in ("replay", "other")},
    )
    assert not list(find_buffer_problems(replace(config, algorithm=algorithm)))


@pytest.mark.parametrize(
    ("num_env_runners", "num_shards", "plan", "is_wrong"),
    [
        (2, 3, [ROLLOUTS, "MixInReplay", TRAIN], True),
        (2, 1, [ROLLOUTS, "MixInReplay", TRAIN], False),
        (1, 3, [ROLLOUTS, "MixInReplay", TRAIN], False),
        (2, 3, [{ROLLOUTS: {"mode": "raw"}}, "MixInReplay", TRAIN], False),
        (2, 3, [ROLLOUTS, "CompleteEpisodes", "MixInReplay", TRAIN], False),
    ],
)
def test_several_shards_need_items_of_single_env_runners(
    num_env_runners: int, num_shards: int, plan: list[Any], is_wrong: bool, a2c: ExperimentConfig
) -> None:
    buffers = {"replay": {"_target_": "runner.replay.ShardedReplayBuffer", "num_shards": num_shards}}
    algorithm = replace(a2c.algorithm, replay_buffers=buffers, plan=plan)
    env_runners = replace(a2c.env_runners, num_env_runners=num_env_runners)
    config = replace(a2c, algorithm=algorithm, env_runners=env_runners)
    problem = Problem(
        "algorithm.replay_buffers.replay: only one shard would be filled, because each item has samples of all env "
        "runners",
        where="algorithm.plan",
        got="ParallelRollouts with mode: bulk_sync",
        expected="ParallelRollouts with mode: async or raw, or one shard (num_shards: 1)",
    )
    assert list(find_buffer_problems(config)) == [problem] * is_wrong


def test_where_a_mistake_is(report_of: ReportOf, write_config: WriteConfig) -> None:
    conf = write_config(
        "experiment/mine",
        "# @package _global_\n"
        "defaults: [override /algorithm: a2c, override /env: cartpole]\n"
        "algorithm:\n"
        "  plan: [ParallelRollouts, TrainOneStp]\n"
        "stop: {training_iteration: 1}\n",
    )
    assert "my_conf/experiment/mine.yaml:4" in report_of(["+experiment=mine"], conf)
    override = "algorithm.plan=[ParallelRollouts,{ConcatBatches: {min_env_step: 3}},TrainOneStep]"
    report = report_of(["+experiment=ppo_cartpole", override])
    assert "override algorithm.plan=" in report
    assert "did you mean  min_env_steps" in report


@pytest.mark.parametrize(
    "plan",
    [
        [ROLLOUTS, {"_target_": f"{OWN}.Unknown"}, TRAIN],  # what it gives is not known
        [ROLLOUTS, {"_target_": f"{OWN}.EverySecond", "first": 1}, TRAIN],
        [{"_target_": f"{OWN}.ThreeResults"}],
        [{"_target_": f"{OWN}.two_batches", "every": 2}],
        [several([ROLLOUTS, "Enqueue"], ["Dequeue", TRAIN], round_robin_weights=["*", 1], output_indexes=[1])],
        [several([queue("Dequeue", "p"), TRAIN], FROM_Q_TO_P, [ROLLOUTS, queue("Enqueue", "q")], output_indexes=[0])],
        [
            several(
                [ROLLOUTS, queue("Enqueue", "q")], [queue("Dequeue", "p"), queue("Enqueue", "q")], [*FROM_Q_TO_P, TRAIN]
            )
        ],
        [
            several(
                [queue("Dequeue", "p"), TRAIN], [ROLLOUTS, {"Duplicate": {"plans": [[queue("Enqueue", "p")], [TRAIN]]}}]
            )
        ],
        [several([queue("Dequeue", "p"), TRAIN], [several([ROLLOUTS], [ROLLOUTS]), queue("Enqueue", "p")])],
        [several([ROLLOUTS, TRAIN], ["AsyncGradients", "ApplyGradients"])],
        [READ, "DebugPrint", TRAIN, "UpdateTargetNetwork", "StandardMetricsReporting"],
    ],
)
def test_plans_without_a_mistake(plan: list[Any]) -> None:
    assert find_plan_problems(plan) == []


def test_items_that_a_plan_gives() -> None:
    plan = read_plan([several([ROLLOUTS, "Enqueue"], ["Dequeue", "ComputeGradients"], [ROLLOUTS, TRAIN]), "DebugPrint"])
    given, _ = check_items(plan)
    items = {step.name: given[step.key] for step in steps_of(plan)}
    assert items["Dequeue"] == ("Experiences",)
    assert items["Concurrently"] == items["DebugPrint"] == ("Experiences", "Gradients", "TrainResult")


@pytest.mark.parametrize(
    ("plan", "needs"),
    [
        ("[ParallelRollouts,TrainOneStep]", {"env_runners", "learners"}),
        ("[AsyncGradients,ApplyGradients]", {"env_runners", "learners"}),
        (f"[{{_target_: {OWN}.two_batches}}]", {"env_runners", "learners"}),
        (f"[ParallelRollouts,{{_target_: {OWN}.EverySecond}},TrainOneStep]", {"env_runners", "learners"}),
        (f"[{{_target_: {OWN}.OddSteps}}]", {"env_runners"}),
    ],
)
def test_resources_that_a_plan_needs(plan: str, needs: set[str]) -> None:
    config = config_from("+experiment=ppo_cartpole", "algorithm.plan=[ParallelRollouts,TrainOneStep]")
    values = compose_experiment(["+experiment=ppo_cartpole", f"algorithm.plan={plan}"]).values["algorithm"]["plan"]
    config.algorithm.plan[:] = values
    assert needs_of(config) == needs


# -- drawings ------------------------------------------------------------------------------------------------------

EXPERIMENTS = {
    "ppo": "ppo_cartpole",
    "a2c": "a2c_cartpole",
    "a2c_replay": "a2c_replay_cartpole",
    "dqn": "dqn_cartpole",
    "rainbow": "rainbow_cartpole",
    "sac": "sac_pendulum",
    "td3": "td3_pendulum",
    "a3c": "a2c_cartpole",
    "impala": "impala_cartpole",
    "appo": "appo_cartpole",
    "apex_dqn": "apex_cartpole",
    "pg": "pg_cartpole",
    "bc": "bc_cartpole",
    "marwil": "marwil_cartpole",
    "iql": "iql_pendulum",
    "cql": "cql_pendulum",
}
DRAWN = {
    "concurrently": [
        several(
            [{ROLLOUTS: {"mode": "async"}}, {"Enqueue": {"queue": "fresh"}}],
            [{"Dequeue": {"queue": "fresh"}}, {CONCAT: {"min_env_steps": 100}}, TRAIN],
            output_indexes=[1],
            round_robin_weights=["*", 1],
        ),
        "UpdateTargetNetwork",
    ],
    "duplicate": [
        ROLLOUTS,
        {
            "Duplicate": {
                "plans": [
                    [{"SelectExperiences": {"modules": ["left"]}}, TRAIN],
                    ["CompleteEpisodes", several(["AsyncGradients", "ApplyGradients"], [ROLLOUTS, TRAIN])],
                ]
            }
        },
    ],
    "own operator": [ROLLOUTS, {"_target_": f"{OWN}.EverySecond", "first": 1}, {"_target_": f"{OWN}.Unknown"}, TRAIN],
    "own function": [{"_target_": f"{OWN}.two_batches", "every": 2}],
    "reported": [ROLLOUTS, TRAIN, {"StandardMetricsReporting": {"min_env_steps": 100}}],
}


def test_drawings(assert_golden: AssertGolden, run_main: Run) -> None:
    texts = []
    sampling = ("ppo", "a2c", "a2c_replay", "dqn", "rainbow", "sac", "td3", "a3c", "impala", "appo", "apex_dqn", "pg")
    for name, experiment in EXPERIMENTS.items():
        others = [] if name in sampling else ["offline.input_=somewhere"]
        if name == "a3c":
            others = ["algorithm=a3c"]
        outcome = run_main("show", "--plan", f"+experiment={experiment}", *others)
        assert (outcome.code, outcome.err) == (0, "")
        texts.append(f"== {name}\n{outcome.out}")
    assert {path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml")} - {
        "cql_discrete",
        "crossq",  # the plan of sac
        "ddpg",
        "ippo",
        "mappo",
        "munchausen_dqn",  # the plan of dqn
        "ppo_sb3",  # the plan of ppo
        "pqn",  # the plan of ppo
        "qmix",
        "sac_discrete",
        "tqc",
        "vdn",
    } == set(EXPERIMENTS)
    texts += [f"== {name}\n{draw_plan(read_plan(plan))}\n" for name, plan in DRAWN.items()]
    assert_golden("plan_drawings", "\n".join(texts))


def test_every_operator_and_option_is_documented() -> None:
    guide = (ROOT / "docs/guides/training_loop.md").read_text(encoding="utf-8")
    reference = (ROOT / "docs/reference/components.md").read_text(encoding="utf-8")
    for name, schema in OPERATORS.items():
        assert f"`{name}`" in guide
        assert f"{{configuration}} {schema.__module__}.{schema.__name__}\n" in reference  # a table of its options


# -- without torch -------------------------------------------------------------------------------------------------

LOADED = (
    "import sys; from runner.cli.main import main; code = main(sys.argv[1:]); "
    "print(code, [name for name in ('torch', 'ray', 'gymnasium.vector') if name in sys.modules])"
)


@pytest.mark.parametrize("verb", [("validate",), ("show", "--plan")])
@pytest.mark.parametrize(
    ("plan", "code"), [("[ParallelRollouts,TrainOneStp]", 2), ("[ParallelRollouts,TrainOneStep]", 0)]
)
def test_neither_torch_nor_ray_is_imported(verb: tuple[str, ...], plan: str, code: int, tmp_path: Path) -> None:
    arguments = [*verb, "+experiment=ppo_cartpole", f"algorithm.plan={plan}"]
    done = run_process(tmp_path, *arguments, program=("-c", LOADED), exit_code=None)
    assert done.stdout.splitlines()[-1].startswith(f"{code} ["), done.stderr
    assert "torch" not in done.stdout.splitlines()[-1]
    assert "ray" not in done.stdout.splitlines()[-1]


def test_options_in_python() -> None:
    assert read_options("ConcatBatches", {"min_env_steps": 3}) == type(read_options("ConcatBatches", {}))(
        min_env_steps=3
    )
    with pytest.raises(ConfigError, match="num_async"):
        read_options("ParallelRollouts", {"num_async": 0})


@pytest.mark.parametrize(
    ("overrides", "known", "nearest"),
    [
        (["+experiment=ppo_cartpole"], "default_policy", "default_policy"),
        (["+experiment=ppo_multi_agent_cartpole"], "p0, p1", None),
    ],
)
def test_modules_that_no_run_has(overrides: list[str], known: str, nearest: str | None, report_of: ReportOf) -> None:
    plan = "algorithm.plan=[ParallelRollouts,{SelectExperiences: {modules: [defaultpolicy]}},TrainOneStep]"
    report = report_of([*overrides, plan])
    assert "SelectExperiences contains an unknown module" in report
    assert f"expected      {known}\n" in f"{report}\n"
    assert nearest is None or f"did you mean  {nearest}" in report
