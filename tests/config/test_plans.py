"""Plans as data: what is said about mistakes, how plans are drawn, and that torch is needed for neither."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.config import build_experiment_config, compose_experiment
from runner.config.errors import ConfigError
from runner.config.operators import OPERATORS
from runner.config.plans import (
    draw_plan,
    find_buffer_problems,
    find_plan_problems,
    items_after,
    needs_of,
    read_options,
    read_plan,
    steps_of,
)
from tests.conftest import ROOT, WAIT_S, Outcome

AssertGolden = Callable[[str, str], None]
OWN = "tests.plans.own_plans"
ROLLOUTS, CONCAT, TRAIN, READ = "ParallelRollouts", "ConcatBatches", "TrainOneStep", "ReadRecorded"


def several(*plans: Any, **options: Any) -> dict[str, Any]:
    return {"Concurrently": {"plans": list(plans), **options}}


def queue(operator: str, name: str, **options: Any) -> dict[str, Any]:
    return {operator: {"queue": name, **options}}


FROM_Q_TO_P = [queue("Dequeue", "q"), queue("Enqueue", "p")]

MISTAKES: Mapping[str, list[Any]] = {
    "unknown operator": [ROLLOUTS, "ConcatBatch", TRAIN],
    "unknown option": [{ROLLOUTS: {"mod": "raw"}}, TRAIN],
    "option of an operator without any": [ROLLOUTS, {TRAIN: {"lr": 1}}],
    "value out of range": [{ROLLOUTS: {"mode": "bulk", "num_async": 0}}, TRAIN],
    "text for a number": [ROLLOUTS, {CONCAT: {"min_env_steps": "many"}}, TRAIN],
    "options that are no block": [{ROLLOUTS: "raw"}, TRAIN],
    "two operators in one": [{ROLLOUTS: {}, TRAIN: {}}],
    "a number for an operator": [ROLLOUTS, 3],
    "a target that is none": [ROLLOUTS, {"_target_": 3}],
    "nothing": [],
    "no operator that begins": [CONCAT, TRAIN],
    "a beginning in the middle": [ROLLOUTS, READ, TRAIN],
    "items that do not fit": [ROLLOUTS, "ApplyGradients"],
    "items of several plans that do not fit": [several([ROLLOUTS], [ROLLOUTS, TRAIN]), TRAIN],
    "a result in the middle": [ROLLOUTS, TRAIN, "StandardMetricsReporting", "DebugPrint"],
    "a result in one of several plans": [several([ROLLOUTS, TRAIN, "StandardMetricsReporting"], [ROLLOUTS, TRAIN])],
    "no plans": ["Concurrently"],
    "an empty plan of several": [several([ROLLOUTS, TRAIN], [])],
    "outputs that are not there": [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], output_indexes=[0, 2])],
    "no outputs": [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], output_indexes=[])],
    "weights of other plans": [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1])],
    "weights that are none": [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1, "+"])],
    "weights without turns": [several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights=[1, 2], mode="async")],
    "shares of plans that do not sample and train": [
        several([ROLLOUTS, TRAIN], [ROLLOUTS, TRAIN], round_robin_weights="auto")
    ],
    "shares without turns": [several([ROLLOUTS], [ROLLOUTS, TRAIN], round_robin_weights="auto", mode="async")],
    "a plan that is always ready": [
        several([ROLLOUTS, "DebugPrint"], [ROLLOUTS, TRAIN], round_robin_weights=["*", 1], output_indexes=[1])
    ],
    "replay that is always ready": [
        several([ROLLOUTS, "StoreToReplayBuffer"], ["Replay", TRAIN], round_robin_weights=[1, "*"], output_indexes=[1])
    ],
    "a queue that nobody fills": [
        several([ROLLOUTS, {"Enqueue": {"queue": "q"}}], [{"Dequeue": {"queue": "p"}}, TRAIN])
    ],
    "a queue that fills itself": [{"Dequeue": {"queue": "q"}}, {"Enqueue": {"queue": "q"}}, TRAIN],
    "queues that fill each other": [several([queue("Dequeue", "p"), queue("Enqueue", "q"), TRAIN], FROM_Q_TO_P)],
    "queues of which only some have items": [
        several(
            [ROLLOUTS, queue("Enqueue", "r")],
            [queue("Dequeue", "r"), TRAIN],
            [queue("Dequeue", "p"), queue("Enqueue", "q")],
            FROM_Q_TO_P,
        ),
    ],
    "two capacities of a queue": [
        several(
            [ROLLOUTS, queue("Enqueue", "q", capacity=2)],
            [ROLLOUTS, queue("Enqueue", "q")],
            [queue("Dequeue", "q"), TRAIN],
        )
    ],
    "a queue that nobody empties": [ROLLOUTS, "Enqueue", TRAIN],
    "items of a queue that do not fit": [several([ROLLOUTS, "Enqueue"], ["Dequeue", "ApplyGradients"])],
    "duplicates of nothing": [{"Duplicate": {"plans": [[TRAIN], [TRAIN]]}}],
    "a beginning in a duplicate": [ROLLOUTS, {"Duplicate": {"plans": [[TRAIN], [ROLLOUTS, TRAIN]]}}],
    "no experiences are kept": [ROLLOUTS, "SelectExperiences", TRAIN],
    "a missing operator of one's own": [ROLLOUTS, {"_target_": f"{OWN}.EverySecnd"}, TRAIN],
    "an unknown argument of one's own operator": [ROLLOUTS, {"_target_": f"{OWN}.EverySecond", "last": 1}, TRAIN],
    "one's own operator that begins no plan": [{"_target_": f"{OWN}.EverySecond"}, TRAIN],
    "items of one's own that nothing takes": [ROLLOUTS, {"_target_": f"{OWN}.OddSteps"}, TRAIN],
    "a function for an operator": [ROLLOUTS, {"_target_": f"{OWN}.two_batches"}],
    "several mistakes": [{ROLLOUTS: {"mode": "bulk"}}, "ConcatBatch", {"TrainOneStp": {"lr": 1}}],
}


def test_what_is_said_about_mistakes(assert_golden: AssertGolden) -> None:
    texts = []
    for name, plan in MISTAKES.items():
        problems = find_plan_problems(plan, lambda key: key)
        assert problems, name
        texts.append(f"== {name}\n{ConfigError(problems)}")
    assert_golden("plan_mistakes", "\n\n".join(texts))


BUFFER = {"replay": {"_target_": "runner.replay.ReplayBuffer", "capacity": 100}}
STORE, UPDATE = "StoreToReplayBuffer", "UpdatePriorities"
# Name -> buffers and plan.
BUFFER_MISTAKES: dict[str, tuple[object, list[Any]]] = {
    "an unknown buffer": (BUFFER, [several([ROLLOUTS, {STORE: {"buffer": "repley"}}], ["Replay", TRAIN])]),
    "no buffer": ({}, [several([ROLLOUTS, STORE], ["Replay", TRAIN])]),
    "never replayed": (BUFFER, [ROLLOUTS, STORE, TRAIN]),
    "never stored to": (BUFFER, [several([ROLLOUTS, "DebugPrint"], ["Replay", TRAIN], output_indexes=[1])]),
    "not used": (BUFFER, [ROLLOUTS, TRAIN]),
    "no class": ({"replay": {"capacity": 100}}, [ROLLOUTS, "MixInReplay", TRAIN]),
    "no buffer's class": ({"replay": {"_target_": "runner.learners.ppo.PPOLoss"}}, [ROLLOUTS, "MixInReplay", TRAIN]),
    "a missing class": ({"replay": {"_target_": "runner.replay.RepleyBuffer"}}, [ROLLOUTS, "MixInReplay", TRAIN]),
    "an unknown argument": (
        {"replay": {"_target_": "runner.replay.ReplayBuffer", "capcity": 100}},
        [ROLLOUTS, "MixInReplay", TRAIN],
    ),
    "learning that never starts": (
        BUFFER,
        [several([ROLLOUTS, STORE], [{"Replay": {"learning_starts": 100}}, TRAIN], output_indexes=[1])],
    ),
    "errors that the loss does not give": (BUFFER, [ROLLOUTS, "MixInReplay", TRAIN, UPDATE]),
    "priorities that never change": (
        {"replay": {"_target_": "runner.replay.PrioritizedReplayBuffer"}},
        [ROLLOUTS, "MixInReplay", TRAIN],
    ),
    "another discount": ({"replay": {**BUFFER["replay"], "n_step": 3}}, [ROLLOUTS, "MixInReplay", TRAIN]),
    "priorities without rows": (BUFFER, [ROLLOUTS, "MixInReplay", "ComputeGradients", "ApplyGradients", UPDATE]),
    "priorities of another buffer": (
        BUFFER | {"other": BUFFER["replay"]},
        [ROLLOUTS, {STORE: {"buffer": "other"}}, "MixInReplay", TRAIN, {UPDATE: {"buffer": "other"}}],
    ),
    "replayed episodes": (BUFFER, [ROLLOUTS, "MixInReplay", "CompleteEpisodes", TRAIN]),
}


def test_what_is_said_about_replay_buffers(assert_golden: AssertGolden) -> None:
    config = build_experiment_config(compose_experiment(["+experiment=a2c_cartpole"]))
    texts = []
    for name, (buffers, plan) in BUFFER_MISTAKES.items():
        algorithm = replace(config.algorithm, replay_buffers=buffers, plan=plan)
        problems = list(find_buffer_problems(replace(config, algorithm=algorithm), lambda key: key))
        assert problems, name
        texts.append(f"== {name}\n{ConfigError(problems)}")
    assert_golden("replay_buffer_mistakes", "\n\n".join(texts))


def test_the_priorities_of_several_buffers_in_a_row() -> None:
    config = build_experiment_config(compose_experiment(["+experiment=dqn_cartpole"]))
    mixed = [{"MixInReplay": {"buffer": name}} for name in ("replay", "other")]
    updates = [{UPDATE: {"buffer": name}} for name in ("replay", "other")]
    algorithm = replace(
        config.algorithm,
        plan=[ROLLOUTS, *mixed, TRAIN, *updates],
        replay_buffers={name: {"_target_": "runner.replay.PrioritizedReplayBuffer"} for name in ("replay", "other")},
    )
    assert not list(find_buffer_problems(replace(config, algorithm=algorithm), lambda key: key))


def test_where_a_mistake_is(report_of: Callable[..., str], write_config: Callable[[str, str], Path]) -> None:
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
    assert "nearest  min_env_steps" in report


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
    assert find_plan_problems(plan, lambda key: key) == []


def test_items_that_a_plan_gives() -> None:
    plan = read_plan([several([ROLLOUTS, "Enqueue"], ["Dequeue", "ComputeGradients"], [ROLLOUTS, TRAIN]), "DebugPrint"])
    items = {step.name: items_after(plan)[step.key] for step in steps_of(plan)}
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
    composed = compose_experiment(["+experiment=ppo_cartpole", "algorithm.plan=[ParallelRollouts,TrainOneStep]"])
    config = build_experiment_config(composed)
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


def test_drawings(assert_golden: AssertGolden, run_main: Callable[..., Outcome]) -> None:
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
        "ddpg",
        "ippo",
        "mappo",
        "ppo_sb3",  # the plan of ppo
        "qmix",
        "sac_discrete",
        "tqc",
        "vdn",
    } == set(EXPERIMENTS)
    texts += [f"== {name}\n{draw_plan(read_plan(plan))}\n" for name, plan in DRAWN.items()]
    assert_golden("plan_drawings", "\n".join(texts))


def test_every_operator_and_option_is_documented() -> None:
    text = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    for name, schema in OPERATORS.items():
        assert f"`{name}`" in text
        for field in fields(schema):
            assert f"`{field.name}" in text, f"{field.name} of {name}"


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
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)
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
def test_modules_that_no_run_has(
    overrides: list[str], known: str, nearest: str | None, report_of: Callable[..., str]
) -> None:
    plan = "algorithm.plan=[ParallelRollouts,{SelectExperiences: {modules: [defaultpolicy]}},TrainOneStep]"
    report = report_of([*overrides, plan])
    assert "SelectExperiences keeps a module that this run does not have" in report
    assert f"allowed  {known}\n" in f"{report}\n"
    assert nearest is None or f"nearest  {nearest}" in report
