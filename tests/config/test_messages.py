"""The messages: what each mistake leads to, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CARTPOLE = "+experiment=ppo_cartpole"
ReportOf = Callable[..., str]
AssertGolden = Callable[[str, str], None]
WriteConfig = Callable[[str, str], Path]

MISTAKES: dict[str, list[str]] = {
    "unknown_key": ["algorithm.gama=0.9"],
    "unknown_block": ["algoritm.gamma=0.9"],
    "unknown_key_below_a_number": ["seed.x=1"],
    "unknown_experiment": ["experiment=ppo_cartpol", "algorithm.gama=0.9"],
    "unknown_option": ["tracking=mlfow"],
    "unknown_hydra_key": ["hydra.run.dri=x"],
    "unknown_environment": ["env.env=CartPol-v1"],
    "unknown_environment_argument": ["env.env_config.sutton_barto_rewrd=true"],
    "unknown_metric": ["stop.env_runners.episode_retrn_mean=1"],
    "metric_of_evaluation_that_is_off": [
        "evaluation=none",
        "stop.evaluation.env_runners.episode_return_mean=1",
    ],
    "metric_of_checkpoints": ["checkpoint.metric=episode_return_mean"],
    "override_without_value": ["seed"],
    "override_that_cannot_be_read": ["module.fcnet_hiddens=[32"],
    "sweep_without_multirun": ["seed=1,2"],
    "text_for_a_number": ["seed='3'"],
    "float_for_an_integer": ["algorithm.num_epochs=1.0"],
    "truth_for_a_number": ["algorithm.lr=true"],
    "null_for_a_number": ["algorithm.gamma=null"],
    "out_of_range": ["algorithm.gamma=1.5", "algorithm.clip_param=0", "module.fcnet_hiddens=[32,0]"],
    "none_of_the_choices": ["module.fcnet_activation=tan", "env_runners.rollout_fragment_length=aut"],
    "schedule_that_starts_late": ["algorithm.lr=[[5,1e-3],[10,1e-4]]"],
    "schedule_that_goes_back": ["algorithm.lr=[[0,1e-3],[10,1e-4],[5,1e-4]]"],
    "schedule_of_odd_items": ["algorithm.entropy_coeff=[[0,1e-3],7]"],
    "schedule_out_of_range": ["algorithm.lr=[[0,-1e-3]]"],
    "large_minibatch": ["algorithm.minibatch_size=5000"],
    "empty_stop": ["~stop"],
    "placement_without_actors": [
        "env_runners.scheduling_strategy=SPREAD",
        "learners.scheduling_strategy=PACK",
        "learners.custom_resources_per_learner={rack: 1}",
    ],
    "placement_of_no_aggregators": [
        "experiment=impala_cartpole",
        "learners.aggregator_scheduling_strategy=SPREAD",
        "learners.custom_resources_per_aggregator_actor={rack: 1}",
    ],
    "misspelt_placement_of_aggregators": [
        "experiment=impala_cartpole",
        "learners.num_aggregator_actors=2",
        "learners.aggregator_scheduling_strategy=SPRED",
    ],
    "prefetch_of_the_driver": ["experiment=impala_cartpole", "learners.prefetch=true"],
    "placement_inline": ["engine=inline", "env_runners.num_env_runners=2", "env_runners.scheduling_strategy=SPREAD"],
    "placement_of_nothing": [
        "env_runners.num_env_runners=2",
        "env_runners.num_cpus_per_env_runner=0",
        "env_runners.scheduling_strategy=PACK",
    ],
    "odd_custom_resources": [
        "env_runners.num_env_runners=2",
        "env_runners.custom_resources_per_env_runner={CPU: 2, memory: 1, simulator: 1.5, license: 0}",
    ],
    "odd_custom_resources_of_aggregators": [
        "experiment=impala_cartpole",
        "learners.num_aggregator_actors=2",
        "learners.custom_resources_per_aggregator_actor={CPU: 2, simulator: 1.5}",
    ],
    "text_for_custom_resources": [
        "env_runners.custom_resources_per_env_runner={license: 1, simulator: many}",
        "learners.custom_resources_per_learner={simulator: null}",
        "learners.custom_resources_per_aggregator_actor=simulator",
    ],
    "gpus_of_a_learner": ["learners.num_learners=2", "learners.num_gpus_per_learner=4"],
    "task_argument": [
        "experiment=ppo_curriculum_goal_maze",
        "curriculum={num_levels: null, evaluate: [], tasks: {a: {options: {level: 0}}, b: {env_config: {siz: 5}}}}",
    ],
    "stop_at_text": ["stop.training_iteration=many"],
    "no_environment": ["env=none"],
    "option_null": ["env=null"],
    "two_environments": ["env._target_=my.Env"],
    "parallel_evaluation": ["evaluation.evaluation_parallel_to_training=true", "engine=inline"],
    "interpolation_to_nowhere": ["algorithm.lr=${algorithm.gama}"],
    "missing_value": ["seed=???"],
    "separate_settings_of_several_agents": [
        "experiment=ppo_multi_agent_cartpole",
        "env_runners.restart_failed_sub_environments=true",
        "env_runners.gym_env_vectorize_mode=async",
        "env_runners.env_step_timeout_s=1",
    ],
    "separate_settings_of_simulators": [
        "experiment=ppo_external_cartpole",
        "env_runners.restart_failed_sub_environments=true",
        "env_runners.gym_env_vectorize_mode=async",
        "env_runners.env_step_timeout_s=1",
    ],
    "separate_settings_of_environments_together": [
        "env.env=null",
        "env._target_=gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv",
        "env_runners.restart_failed_sub_environments=true",
        "env_runners.gym_env_vectorize_mode=async",
    ],
    "restart_in_a_batched_implementation": [
        "env_runners.restart_failed_sub_environments=true",
        "env_runners.gym_env_vectorize_mode=vector_entry_point",
    ],
    "timeout_without_processes": ["env_runners.env_step_timeout_s=5"],
    "timeout_that_is_not_reached": [
        "env_runners.gym_env_vectorize_mode=async",
        "env_runners.env_step_timeout_s=60",
        "env_runners.num_env_runners=2",
    ],
    "two_memories": ["module.use_lstm=true", "module.use_gru=true"],
    "odd_conv_filters": ["module.conv_filters=[[16,4,2],[32,3],[0,3,1]]"],
    "conv_filters_of_text": ["module.conv_filters=[large]"],
    "missing_module": ["module._target_=runner.modules.actor_critic_modul.ActorCriticModule"],
    "missing_package": ["module._target_=nowhere_to_be_found.Net"],
    "missing_schema": ["algorithm.schema=runner.config.algorithms.PPOConfg"],
    "schema_that_is_none": ["algorithm.schema=pathlib.Path"],
    "missing_piece": ["connectors.learner=[{prepend: {_target_: runner.pipelines.MeanStdFiltr}}]"],
    "piece_without_a_place": ["connectors.learner=[{_target_: runner.pipelines.ClipRewards, limit: 1}]"],
    "misspelt_piece": ["connectors.learner=[{insert_after: GAE, pice: {_target_: runner.pipelines.ClipRewards}}]"],
    "block_for_a_list_of_edits": ["connectors.learner={append: {_target_: runner.pipelines.ClipRewards}}"],
    "block_for_a_list": ["callbacks={_target_: my.Callback}"],
    "metric_by_slashes": ["metrics.env_runners/won.info=won"],
    "faulty_metric_that_is_asked_for": [
        "metrics={env_runners/won: {info: won, at: episode_ends}}",
        "stop.env_runners.won=1",
    ],
    "metric_that_is_no_block": ["metrics={env_runners/won: won}", "stop.env_runners.won=1"],
    "option_of_an_own_module": ["module.width=3"],
    "missing_loss": [
        "algorithm.schema=runner.config.algorithms.A2CConfig",
        "algorithm.loss=runner.learners.ppo.PPOLoss",
    ],
    "odd_edits": [
        "connectors.learner=[{inser: 3}, {prepend: 3}, {prepend: {x: 1}}, {remove: 3}, {insert_after: A}, "
        "{remove: A, append: {_target_: runner.pipelines.MeanStdFilter}}, {}]"
    ],
    "edits_that_are_no_list": ["connectors.learner=3"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str, report_of: ReportOf, assert_golden: AssertGolden) -> None:
    overrides = MISTAKES[name]
    base = [] if any("experiment=" in text for text in overrides) else [CARTPOLE]
    assert_golden(name, report_of([*base, *overrides]))


EXPERIMENTS: dict[str, str] = {
    "file_unknown_keys": "# @package _global_\ndefaults:\n  - override /env: cartpole\n"
    "algorithm:\n  gama: 0.9\nalgoritm:\n  gamma: 1\nmodule: 3\nstop:\n  training_iteration: 1\n",
    "file_unknown_option": "# @package _global_\ndefaults:\n  - override /env: cartpol\n"
    "  - override /algorithm: ppoo\nstop:\n  training_iteration: 1\nsed: 3\n",
    "file_unknown_group": "# @package _global_\ndefaults:\n  - override /envs: cartpole\n"
    "stop: {training_iteration: 1}\n",
    "file_bad_yaml": "# @package _global_\nalgorithm: {gamma: 0.9\nseed: 1\n",
    "file_double_key": "# @package _global_\nseed: 1\nseed: 2\n",
    "file_without_header": "seed: 1\n",
    "file_with_defaults_without_header": "defaults:\n  - override /env: cartpole\nstop: {training_iteration: 1}\n",
    "file_that_chooses_without_override": "# @package _global_\ndefaults:\n  - algorithm: ppo_sb3\n"
    "stop: {training_iteration: 1}\n",
    "file_that_chooses_twice": "# @package _global_\ndefaults:\n  - /algorithm: ppo_sb3\n"
    "stop: {training_iteration: 1}\n",
    "file_that_overrides_a_relative_group": "# @package _global_\ndefaults:\n  - override algorithm: ppo_sb3\n"
    "stop: {training_iteration: 1}\n",
    "file_of_a_list": "- seed: 1\n",
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_message_of_an_experiment_file(
    name: str, report_of: ReportOf, assert_golden: AssertGolden, write_config: WriteConfig
) -> None:
    config_dir = write_config("experiment/mine", EXPERIMENTS[name])
    assert_golden(name, report_of(["+experiment=mine", "algorithm.lr=-1"], config_dir))


def test_a_file_that_a_built_in_one_hides(
    report_of: ReportOf, assert_golden: AssertGolden, write_config: WriteConfig
) -> None:
    config_dir = write_config("env/cartpole", "env: Acrobot-v1\n")
    assert_golden("file_hidden", report_of([CARTPOLE], config_dir))


def test_all_problems_are_in_one_report(report_of: ReportOf, assert_golden: AssertGolden) -> None:
    overrides = [
        "seed=1.0",
        "seed",
        "algorithm.gama=3",
        "engine=inlin",
        "tracking=mlfow",
        "env.env=CartPol-v1",
    ]
    report = report_of([CARTPOLE, *overrides])
    assert report.startswith("6 problems")
    assert_golden("all_problems", report)
