"""Callbacks: what they hear and when, their metrics and custom data, exact resume, errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import Trainer
from runner.callbacks import EPISODE_HOOKS, HOOKS
from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.config.errors import ConfigError, RunFailure
from runner.config.required_trust import find_trust_requirements
from tests.callbacks.own_callbacks import Listener
from tests.conftest import ROOT, Run, run_process
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray

OWN = "tests.callbacks.own_callbacks"
RETURNS, OWN_RETURN = f"callbacks=[{{_target_: {OWN}.Returns}}]", "callbacks/own_return"
EPISODES = "env_runners/num_episodes"
PPO = (
    *("+experiment=ppo_cartpole", "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=32"),
    *("algorithm.num_epochs=1", "module.fcnet_hiddens=[8]", "env_runners.num_envs_per_env_runner=3"),
    *("evaluation.evaluation_interval=2", "evaluation.evaluation_duration=2"),
)
DQN = (
    *("+experiment=dqn_cartpole", "algorithm.num_steps_sampled_before_learning_starts=40", "module.fcnet_hiddens=[8]"),
    *("algorithm.min_sample_timesteps_per_iteration=90", "algorithm.train_batch_size_per_learner=8"),
    *("env_runners.num_envs_per_env_runner=2", "evaluation.evaluation_interval=null"),
)


def trainer_of(*overrides: str) -> Trainer:
    return Trainer(config_from(*overrides, "tracking=none"))


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    Listener.heard.clear()
    yield Listener.heard
    Listener.heard.clear()


def test_events_of_a_run_in_order(heard: list[tuple[str, dict[str, Any]]]) -> None:
    with trainer_of(*PPO, f"callbacks=[{{_target_: {OWN}.Listener}}]") as trainer:
        for _ in range(2):
            result = trainer.train()
    hooks = [hook for hook, _ in heard]
    of_run = [hook for hook in hooks if hook not in EPISODE_HOOKS or hook == "on_sample_end"]
    iteration = ["on_sample_end", "on_update_start", "on_update_end"]
    assert of_run == [
        *iteration,
        "on_train_result",
        *iteration,
        "on_evaluate_start",
        "on_evaluate_end",
        "on_train_result",
    ]
    assert hooks[0] == "on_environment_created"
    last = heard[-1][1]
    assert last["trainer"] is trainer
    assert last["result"]["env_runners/episode_return_mean"] == result["env_runners/episode_return_mean"]
    [updates] = [event["updates"] for hook, event in heard if hook == "on_update_end"][-1:]
    assert updates[0]["default_policy"]["total_loss"] == result["learners/default_policy/total_loss"]


@pytest.mark.parametrize("run", [PPO, DQN], ids=["fragments", "single steps"])
def test_episodes_are_created_started_stepped_and_ended(
    run: Sequence[str], heard: list[tuple[str, dict[str, Any]]]
) -> None:
    """In each sub-environment one after the other, with every env step heard once."""
    with trainer_of(*run, f"callbacks=[{{_target_: {OWN}.Listener}}]") as trainer:
        result = [trainer.train() for _ in range(3)][-1]
    num_steps = num_ends = 0
    for n in range(trainer.config.env_runners.num_envs_per_env_runner):
        of_env = [(hook, event) for hook, event in heard if event.get("env_index") == n]
        events = [(hook, event) for hook, event in of_env if not event["is_evaluation"]]
        t, custom_data, id_ = 0, None, None
        for position, (hook, event) in enumerate(events):
            before = events[position - 1][0] if position else "on_episode_end"
            if hook == "on_episode_created":
                assert before == "on_episode_end"
                t, custom_data = 0, event["custom_data"]
                continue
            assert event["custom_data"] is custom_data
            own_id, t_started, length, is_done = event["episode"]
            if hook == "on_episode_start":
                assert (before, t_started, length, is_done) == ("on_episode_created", 0, 0, False)
                id_ = own_id
                continue
            assert own_id == id_
            if hook == "on_episode_step":
                t, num_steps = t + 1, num_steps + 1
                assert t_started + length == t
            else:
                assert (before, hook, is_done) == ("on_episode_step", "on_episode_end", True)
                assert event["episode_return"] == t  # CartPole pays 1 a step
                num_ends += 1
    assert num_steps == result["num_env_steps_sampled_lifetime"]
    assert num_ends == result["num_episodes_lifetime"] > 3


@pytest.mark.parametrize("run", [PPO, DQN], ids=["fragments", "single steps"])
def test_metrics_are_those_of_the_run(run: Sequence[str]) -> None:
    with trainer_of(*run, RETURNS) as trainer:
        total = 0.0
        for number in range(4):
            result = trainer.train()
            assert result["callbacks/episodes"] == (result[EPISODES] or None)
            assert result["callbacks/iterations"] == number + 1
            if result[EPISODES]:
                assert result["callbacks/error"] == 0.0
                total += (result[OWN_RETURN] or 0.0) * (result[EPISODES] or 0)
    episodes = result["num_episodes_lifetime"] or 0
    assert total / episodes == pytest.approx(result["env_runners/episode_return_mean"])


def test_evaluations_are_heard_by_instances_of_their_own(heard: list[tuple[str, dict[str, Any]]]) -> None:
    """Only the episodes that count, and each evaluation begins as the first one."""
    blocks = f"callbacks=[{{_target_: {OWN}.Listener}}, {{_target_: {OWN}.Returns}}, {{_target_: {OWN}.Ordinals}}]"
    with trainer_of(*PPO, blocks, "evaluation.num_envs_per_env_runner=3") as trainer:
        result = [trainer.train() for _ in range(4)][-1]
    assert result["evaluation/callbacks/own_return"] == result["evaluation/env_runners/episode_return_mean"]
    assert (result["evaluation/callbacks/episodes"], result["evaluation/callbacks/iterations"]) == (2, None)
    assert result["evaluation/callbacks/ordinal"] == 2
    assert result["callbacks/ordinal"] == result["num_episodes_lifetime"]
    of_evaluation = [hook for hook, event in heard if event.get("is_evaluation")]
    assert of_evaluation.count("on_episode_created") == of_evaluation.count("on_episode_end") == 2 * 2


@pytest.mark.parametrize("experiment", ["ppo_cartpole", "ppo_multi_agent_cartpole"])
def test_evaluations_of_env_steps_are_heard_step_by_step(experiment: str) -> None:
    """Exactly so many env steps, and the ends of the episodes that count."""
    steps = ("evaluation.evaluation_duration=200", "evaluation.evaluation_duration_unit=env_steps")
    overrides = (f"callbacks=[{{_target_: {OWN}.Counts}}]", *steps, "evaluation.num_envs_per_env_runner=3")
    with trainer_of(f"+experiment={experiment}", *overrides) as trainer:
        for _ in range(2):
            result = trainer.evaluate()
            assert result["evaluation/callbacks/steps"] == 200
            assert result["evaluation/callbacks/ends"] == result["evaluation/env_runners/num_episodes"]
            assert (result["evaluation/callbacks/ends"] or 0) > 2


def test_a_metric_of_evaluations_is_one_of_the_run() -> None:
    stop = "stop.evaluation.callbacks.own_return=20"
    config = config_from(*PPO, RETURNS, stop)
    assert config.stop["evaluation/callbacks/own_return"] == 20
    with pytest.raises(ConfigError, match="evaluation/callbacks/own_return"):
        trainer_of(*PPO, RETURNS, "evaluation.evaluation_interval=null", stop)


@pytest.mark.slow
def test_a_run_that_ends_by_a_callback_is_evaluated_and_recorded(run_main: Run) -> None:
    """Evaluations call no callback, and nothing of them ends by its metrics."""
    stop = ("stop.callbacks.own_return=1", "stop.evaluation.callbacks.own_return=1", f"checkpoint.metric={OWN_RETURN}")
    assert run_main(*PPO, RETURNS, *stop, "hydra.run.dir=run").code == 0
    for command in (("evaluate", "run"), ("record", "run", "offline.output=data"), ("play", "run", "--output=x.gif")):
        outcome = run_main(*command, *([] if command[0] == "play" else ["evaluation.evaluation_duration=1"]))
        assert outcome.code == 0, outcome.err


def test_a_hook_that_does_not_take_what_it_does_not_read_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"on_sample_end does not take all arguments of its event(.*\n)*.*own_callbacks\.py"
    ):
        trainer_of(*PPO, f"callbacks=[{{_target_: {OWN}.Deaf}}]")


def test_hooks_see_the_newest_observation() -> None:
    with trainer_of(*PPO, f"callbacks=[{{_target_: {OWN}.Seen}}]") as trainer:
        for _ in range(3):
            result = trainer.train()
            assert (result["callbacks/difference"] or 0.0) < 1e-5
            assert (result["callbacks/size"] or 0.0) > 0.1


def test_hooks_see_what_connectors_make_of_the_newest_observation() -> None:
    """Normalised: neither what another step left there nor zeros."""
    filtered = "connectors.env_to_module=[{prepend: {_target_: runner.pipelines.MeanStdFilter}}]"
    with trainer_of(*PPO, filtered, f"callbacks=[{{_target_: {OWN}.Seen}}]") as trainer:
        [caller] = trainer.context.env_runners.actors.callers
        runner = caller.held
        seen = []
        [hook] = runner._on_step

        def on_step(step: Any) -> None:
            hook(step)
            seen.append(np.abs(step.episodes[0].get_observations(-1) - runner._to_module["obs"][0].numpy()).max())

        runner._on_step = (on_step,)
        for _ in range(2):
            trainer.train()
    assert max(seen) < 1e-6


def test_the_same_callback_twice_has_custom_data_for_each() -> None:
    blocks = f"callbacks=[{{_target_: {OWN}.Returns}}, {{_target_: {OWN}.Returns}}]"
    with trainer_of(*PPO, blocks) as trainer:
        result = [trainer.train() for _ in range(2)][-1]
    assert result["callbacks/episodes"] == 2 * (result[EPISODES] or 0) > 0


def test_a_callback_that_joins_later_hears_of_the_next_episodes(tmp_path: Path) -> None:
    with trainer_of(*PPO) as trainer:
        trainer.train()
        save_checkpoint(tmp_path / "one", trainer.get_state(), {})
    with trainer_of(*PPO, RETURNS) as trainer:
        trainer.set_state(load_checkpoint(tmp_path / "one")[0])
        results = [trainer.train() for _ in range(4)]
    heard = sum(result["callbacks/episodes"] or 0 for result in results)
    assert 0 < heard == sum(result[EPISODES] or 0 for result in results) - 3  # the ones that were running


def test_an_error_at_the_end_leaves_the_checkpoint(tmp_path: Path) -> None:
    ends = ["tracking=none", "stop={training_iteration: 2}", f"hydra.run.dir={tmp_path / 'run'}"]
    done = run_process(ROOT, *PPO, f"callbacks=[{{_target_: {OWN}.FailingAtTheEnd}}]", *ends, exit_code=1)
    assert "FailingAtTheEnd.on_stop failed: KeyError: 'goal'" in done.stderr
    assert (tmp_path / "run" / "checkpoints" / "iteration_000002").is_dir()


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_numbers_in_runners_of_their_own() -> None:
    runners = ("env_runners.num_env_runners=2", "env_runners.num_cpus_per_env_runner=0.1")
    results = assert_same_on_ray(partial(trainer_of, *PPO, RETURNS, *runners), 3)
    assert results[-1][OWN_RETURN] is not None


@pytest.mark.parametrize("run", [PPO, DQN], ids=["fragments", "single steps"])
def test_a_run_with_custom_data_and_state_resumes_exactly(run: Sequence[str], tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, *run, RETURNS), tmp_path, cuts=[1], num_after=3)


@pytest.mark.slow
def test_a_run_hears_of_checkpoints_and_its_end(tmp_path: Path) -> None:
    """On the command line, where the callback's module is found in the working directory."""
    (tmp_path / "own.py").write_text(
        "from runner.callbacks import Callback\n\n\n"
        "class Told(Callback):\n"
        "    def on_checkpoint_saved(self, *, path, **kwargs):\n        print('saved', path.name)\n\n"
        "    def on_checkpoint_loaded(self, *, trainer, **kwargs):\n"
        "        print('loaded', trainer.training_iteration)\n\n"
        "    def on_stop(self, *, status, reason, **kwargs):\n        print('stop', status, reason)\n"
    )

    def told(*arguments: str) -> list[str]:
        done = run_process(tmp_path, *arguments)
        return [line for line in done.stdout.splitlines() if line.startswith(("saved", "loaded", "stop "))]

    run = [*PPO, "callbacks=[{_target_: own.Told}]", "tracking=none", "hydra.run.dir=run"]
    assert told(*run, "stop={training_iteration: 2}", "checkpoint.every_iterations=1") == [
        "saved iteration_000001",
        "saved iteration_000002",
        "stop finished reached 2 iterations",
    ]
    resumed = told("resume", "run", "stop.training_iteration=3")
    assert resumed == ["loaded 2", "saved iteration_000003", "stop finished reached 3 iterations"]


def train_long(trainer: Trainer) -> None:
    for _ in range(9):
        trainer.train()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_in_a_hook_is_told_with_its_line(heard: list[tuple[str, dict[str, Any]]]) -> None:
    blocks = f"callbacks=[{{_target_: {OWN}.Failing}}, {{_target_: {OWN}.Listener}}]"
    with trainer_of(*PPO, blocks) as trainer, pytest.raises(RunFailure) as failure:
        train_long(trainer)
    text = (ROOT / "tests" / "callbacks" / "own_callbacks.py").read_text().splitlines()
    line = text.index('        raise KeyError("goal")') + 1
    assert "Failing.on_episode_end failed: KeyError: 'goal'" in str(failure.value)
    assert f"own_callbacks.py:{line}" in str(failure.value)
    assert heard[-1][0] == "on_exception"
    assert heard[-1][1]["error"] is failure.value


def test_an_error_about_an_error_hides_nothing() -> None:
    block = f"callbacks=[{{_target_: {OWN}.FailingTwice}}]"
    with trainer_of(*PPO, block) as trainer, pytest.raises(RunFailure, match="KeyError: 'goal'"):
        train_long(trainer)


def test_a_callback_of_somebody_else_is_imported_with_trust_only() -> None:
    [demand] = find_trust_requirements({"callbacks": [{"_target_": "their_package.Callback"}]})
    assert (demand.verb, demand.key) == ("imports", "callbacks.0._target_")
    assert find_trust_requirements({"callbacks": [{"_target_": "runner.callbacks.Callback"}]}) == []
    [demand] = find_trust_requirements({"callbacks": [{"_target_": "runner.pipelines.ClipRewards"}]})
    assert demand.verb == "imports"


def test_an_undeclared_metric() -> None:
    message = r"Undeclared reports is_succes, .*(\n.*)*is_success"
    with (
        trainer_of(*PPO, f"callbacks=[{{_target_: {OWN}.Undeclared}}]") as trainer,
        pytest.raises(RunFailure, match=message),
    ):
        train_long(trainer)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((f"callbacks=[{{_target_: {OWN}.Return}}]",), r"callbacks\.0\._target_.*\n(.*\n)*.*Returns"),
        (
            ("callbacks=[{_target_: runner.pipelines.ClipRewards}]",),
            r"is not a subclass of runner\.callbacks\.Callback",
        ),
        ((f"callbacks=[{{_target_: {OWN}.Returns, scales: 2}}]",), r"does not take the argument scales(.*\n)*.*scale"),
        (("callbacks=[{target: x}]",), r"callbacks\.0 must be a callback with a _target_"),
        (
            (f"callbacks=[{{_target_: {OWN}.Misspelt}}]",),
            r"on_episode_ends, which no event calls(.*\n)*.*on_episode_end",
        ),
        (
            (f"callbacks=[{{_target_: {OWN}.Returns}}, {{_target_: {OWN}.LastReturn}}]",),
            "LastReturn.reports.'own_return'. is .*but an earlier declaration is",
        ),
        (
            (f"callbacks=[{{_target_: {OWN}.NoReduction}}]",),
            r"NoReduction.reports\['is_success'\] has an unknown reduction\n +where +callbacks, .*own_callbacks.py:"
            r"\d+,\s+"
            r"NoReduction\n +got +medain\n +expected +mean, sum, min, max, median, last, p1 to p99\n"
            r" +did you mean +median",
        ),
        ((RETURNS, "stop.callbacks.own_retrun=3"), r"own_retrun(.*\n)*.*callbacks/own_return"),
        (
            (RETURNS, "+experiment=ppo_external_cartpole"),
            "no env runner of this run(.*\n)*.*on_episode_created, on_episode_step, with simulators that connect",
        ),
    ],
)
def test_mistakes(overrides: Sequence[str], message: str) -> None:
    run = [] if any("+experiment" in override for override in overrides) else PPO
    with pytest.raises(ConfigError, match=message):
        trainer_of(*run, *overrides)


def test_a_metric_of_a_callback_is_one_of_the_run() -> None:
    config = config_from(*PPO, RETURNS, "stop.callbacks.own_return=20", f"checkpoint.metric={OWN_RETURN}")
    assert config.stop[OWN_RETURN] == 20


def test_every_hook_has_a_call() -> None:
    """Each hook's name stands in the code that tells callbacks, outside of the base class."""
    files = [path for path in (ROOT / "runner").rglob("*.py") if path.name != "callback.py"]
    source = "".join(path.read_text() for path in files)
    assert [hook for hook in HOOKS if f'"{hook}"' not in source] == []
