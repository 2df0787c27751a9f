"""Whole runs whose modules share parameters: acting, resumed, on Ray, with gradients that travel, and mistakes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint
from runner.config.errors import ConfigError
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.runner_identity import RunnerIdentity
from runner.episodes import nested
from runner.episodes.columns import concat_rollouts
from runner.episodes.rollout_parts import split_rollout
from runner.experiment.env_runner_builder import TRAINING, build_env_runner
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.learner_builder import build_learner_group
from runner.experiment.trainer import Trainer
from runner.learners.gradients import average_gradients
from runner.module_building import build_modules, make_module_specs
from runner.modules.flat_parameters import flat_values
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from tests.conftest import QUICK, Run, without_times
from tests.support.coded_agents import make_coded_run
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray, train

AGENTS = "ppo_multi_agent_cartpole"
MODULES = "tests.support.joint_modules"
KEY = "multi_agent.multi_rl_module"
ENCODER = (f"{KEY}={{_target_: {MODULES}.SharedEncoder}}",)
CRITIC = (
    f"{KEY}={{_target_: {MODULES}.SharedCritic, hidden: 8}}",
    "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
    "connector: {_target_: runner.pipelines.AddObservationsOfAllAgentsToTrainBatch}}]",
)


def trainer_of(*overrides: str) -> Trainer:
    return Trainer.from_experiment(AGENTS, [*QUICK, *overrides])


# -- acting ------------------------------------------------------------------------------------------------------------


def test_a_plain_multi_module_acts_as_each_module_by_itself() -> None:
    alone, together = make_coded_run(7, 3, 4, 1), make_coded_run(7, 3, 4, 1)
    acting = {module_id: runner.acting for module_id, runner in together.runner._modules.items()}
    modules = MultiRLModule({module_id: one.module for module_id, one in acting.items()})
    identity = RunnerIdentity("env_runner", 0, 0, seed=0)
    joined = MultiAgentEnvRunner(together.runner.env, acting, modules, identity, 1, is_joined=True)
    weights = {ALL_MODULES: flat_values(modules)}
    for _ in range(3):
        expected = alone.runner.sample(25, True, alone.weights, {}).rollout
        rollout = joined.sample(25, True, weights, {}).rollout
        assert list(rollout.blocks) == list(expected.blocks)
        for module_id, block in rollout.blocks.items():
            assert nested.equal(dict(block.columns), dict(expected.blocks[module_id].columns))


def test_a_vector_step_is_one_forward_pass_of_all_modules() -> None:
    overrides = [f"+experiment={AGENTS}", *QUICK, f"{KEY}={{_target_: {MODULES}.Counting}}"]
    config = config_from(*overrides)
    runner: Any = build_env_runner(config, make_module_specs(config), TRAINING, 0, 0)
    sample = runner.sample(40, True)
    runner.close()
    assert sample.rollout.num_env_steps == 40
    assert runner.module.num_modules[:8] == [2] * 8, "one pass of two modules in each step of 4 sub-environments"


# -- interrupted and distributed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        CRITIC,
        (*ENCODER, "multi_agent.modules_to_train=[p1]"),
        (*CRITIC, "multi_agent.algorithm_config_overrides_per_module.p1={use_kl_loss: true, num_epochs: 1}"),
        (*ENCODER, "algorithm.optimizer={name: rmsprop}"),
    ],
    ids=["critic", "untrained", "overrides", "rmsprop"],
)
def test_a_run_resumes_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, *overrides), tmp_path, cuts=[1])


def test_metrics_are_by_module() -> None:
    with trainer_of(*CRITIC, "algorithm.minibatch_size=null") as trainer:
        (result,) = train(trainer, 1)
    of_learners = {name.split("/")[1] for name in result if name.startswith("learners/")}
    assert of_learners == {"p0", "p1"}
    norms = [result[f"learners/{id_}/gradients_default_optimizer_global_norm"] for id_ in ("p0", "p1")]
    assert norms[0] == norms[1]
    assert result["learners/p0/vf_loss"] != result["learners/p1/vf_loss"]


@pytest.mark.slow
@pytest.mark.ray
def test_two_ray_actors_make_the_numbers_of_two_inline_runners(ray_cluster: None) -> None:
    assert_same_on_ray(partial(trainer_of, *CRITIC, "env_runners.num_env_runners=2"), 2)


@pytest.mark.slow
@pytest.mark.ray
def test_two_learners_take_the_step_of_the_mean_gradient_of_two_parts(ray_cluster: None) -> None:
    """Each has half of the rows, and reads what all agents saw in the whole rollout."""
    same = ("algorithm.num_epochs=1", "algorithm.minibatch_size=null", "learners.num_learners=2")
    with trainer_of(*CRITIC, *same) as both:
        config = replace(both.config, learners=replace(both.config.learners, num_learners=0))
        runners = build_env_runner_group(config, TRAINING, build_modules(config))
        runners.set_weights(both.learners.get_weights())
        rollout = concat_rollouts([sample.rollout for sample in runners.sample(300, True)])
        runners.close()
        parts = [replace(part, unsplit=rollout.blocks) for part in split_rollout(rollout, 2, 1)]
        alone = build_learner_group(config, build_modules(config))
        alone.set_weights(both.learners.get_weights())
        expected = average_gradients([alone.gradients(part, 0) for part in parts])
        gradients = both.learners.gradients(rollout, 0)
        for module_id, gradient in gradients.modules.items():
            np.testing.assert_allclose(gradient.vector, expected.modules[module_id].vector, atol=2e-3)
        both.learners.update(rollout, 0)
        alone.apply(gradients, 0)
        after = both.learners.get_weights()[ALL_MODULES]
        np.testing.assert_allclose(after, alone.get_weights()[ALL_MODULES], atol=1e-6)
        assert without_times(both.train())["training_iteration"] == 1


def test_env_runners_compute_gradients() -> None:
    """As A3C's; inline, so that the numbers are the same each time."""
    overrides = ("algorithm=a3c", "engine=inline", "env_runners.num_env_runners=2", "algorithm.microbatch_size=null")
    results = []
    for _ in range(2):
        trainer = Trainer.from_experiment(
            AGENTS, [*_without_ppo(), *CRITIC, *overrides, "algorithm.train_batch_size_per_learner=64"]
        )
        with trainer:
            before = trainer.learners.get_weights()[ALL_MODULES]
            results.append(train(trainer, 2))
            assert not np.array_equal(trainer.learners.get_weights()[ALL_MODULES], before)
    assert results[0] == results[1]
    assert "learners/p1/vf_loss" in results[0][0]


def _without_ppo() -> list[str]:
    ours = ("algorithm.train_batch_size_per_learner", "algorithm.minibatch_size", "algorithm.num_epochs")
    unknown = ("lambda_", "clip_param", "use_kl_loss", "num_epochs")
    return [text for text in QUICK if not text.startswith(ours)] + [f"~algorithm.{name}" for name in unknown]


# -- other runs' modules -----------------------------------------------------------------------------------------------


def test_a_new_run_begins_with_modules_that_shared_parameters(run_main: Run, tmp_path: Path) -> None:
    arguments = (f"+experiment={AGENTS}", *QUICK, "stop.training_iteration=1")
    outcome = run_main(*arguments, *ENCODER, "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    saved = load_checkpoint(checkpoint)[0]["learners"]["learners"][ALL_MODULES]["module"]
    with trainer_of(f"module.load_state_path={checkpoint}") as trainer:
        parameters = {id_: module.state_dict() for id_, module in trainer.learners._modules.items()}
    for module_id, values in parameters.items():
        for name, value in values.items():
            np.testing.assert_array_equal(value, saved[f"[{module_id}].{name}"])
    outcome = run_main("resume", "run", "stop.training_iteration=2")
    assert outcome.code == 0, outcome.err
    outcome = run_main("export", "run", "p1.onnx", "--module", "p1")
    assert outcome.code == 0, outcome.err


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((f"{KEY}={{_target_: {MODULES}.Refusing}}",), "these modules do not go together"),
        ((f"{KEY}={{_target_: {MODULES}.Unreadable}}",), "Unreadable of module p0 reads messages"),
        (CRITIC[:1], r"reads obs_of_agents, agents_mask, which no connector of the learner pipeline\s+writes"),
    ],
)
def test_mistakes_that_show_when_parts_are_built(overrides: tuple[str, ...], message: str) -> None:
    config = config_from(f"+experiment={AGENTS}", *overrides)
    with pytest.raises(ConfigError, match=message):
        build_modules(config)


def test_modules_that_act_together_are_not_exported(run_main: Run) -> None:
    together = f"{KEY}={{_target_: {MODULES}.ActsTogether}}"
    assert (
        run_main(f"+experiment={AGENTS}", *QUICK, together, "stop.training_iteration=1", "hydra.run.dir=run").code == 0
    )
    outcome = run_main("export", "run", "p1.onnx", "--module", "p1")
    assert outcome.code == 2
    assert "a module of ActsTogether cannot be exported" in outcome.err
