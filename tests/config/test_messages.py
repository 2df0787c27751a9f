"""The problems of each mistake; test_errors.py tests how they are rendered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.config.algorithms import A2CConfig, PPOConfig
from runner.config.compose import compose_experiment
from runner.config.errors import Problem
from runner.config.schemas import ExperimentConfig, ModuleConfig
from tests.config.conftest import ProblemsOf, ReportOf, WriteConfig
from tests.support.problems import Including, not_a_choice, out_of_range, unknown_key, wrong_type

CARTPOLE = "+experiment=ppo_cartpole"

# What several messages allow.
SCHEDULE = "a number >= 0 or a schedule [[0, value], [env_steps, value], ...]"
ONE_EDIT = "exactly one of prepend, append, insert_before, insert_after, replace, remove"
GROUPS = (
    "algorithm, checkpoint, connectors, env, env_defaults, env_runners, evaluation, learners, module, offline, rllink, "
    "sweep, tracking"
)
LEARNER_CONNECTORS = (
    "AddColumnsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch, "
    "AddOneTsToEpisodesAndTruncate, AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad, "
    "AgentToModuleMapping, BatchIndividualItems, GeneralAdvantageEstimation, NumpyToTensor"
)
AN_OVERRIDE = "key=value, group=option, ~key (remove)"

# Problems of several mistakes.
NO_MLFOW = Problem(
    "unknown option 'mlfow' of the config group tracking",
    where="override tracking=mlfow",
    got="mlfow",
    expected="mlflow, none; or a file in DIR/tracking with --config-dir DIR",
    nearest="mlflow",
)
NO_CARTPOL = Problem(
    "the environment CartPol-v1 is not registered",
    where="override env.env=CartPol-v1",
    got="CartPol-v1",
    expected=(
        "Acrobot-v1, CarRacing-v3, CartPole-v0, CartPole-v1, CliffWalking-v1, Pendulum-v1, "
        "phys2d/CartPole-v0, phys2d/CartPole-v1, ... (55 more); module:id imports the module "
        "that registers the id"
    ),
    nearest="CartPole-v1",
)
NO_VALUE = Problem("seed is not an override: the value is missing", where="override seed", expected=AN_OVERRIDE)
NEGATIVE_LR = out_of_range("algorithm.lr", "-1", SCHEDULE)
NO_BLOCK = Problem(
    "this experiment file is not a block of keys, or lacks the first line `# @package _global_`",
    where="my_conf/experiment/mine.yaml:1",
)
CHOSEN_TWICE = Problem(
    "algorithm is already chosen, so the experiment must override it",
    where="my_conf/experiment/mine.yaml:3",
    got="algorithm: ppo_sb3",
    fix="- override /algorithm: ppo_sb3",
)

RESTARTS = "env_runners.restart_failed_sub_environments=true"
STEP_TIMEOUT = "env_runners.env_step_timeout_s=1"
ASYNC = "env_runners.gym_env_vectorize_mode=async"
SEPARATE = (RESTARTS, ASYNC, STEP_TIMEOUT)
TOGETHER = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
ODD_CUSTOM_RESOURCES = "env_runners.custom_resources_per_env_runner={CPU: 2, memory: 1, simulator: 1.5, license: 0}"
CONNECTOR_WITHOUT_A_PLACE = "connectors.learner=[{_target_: runner.pipelines.ClipRewards, limit: 1}]"
MISSPELT_CONNECTOR = "connectors.learner=[{insert_after: GAE, conector: {_target_: runner.pipelines.ClipRewards}}]"
ODD_CONV_FILTERS = "module.conv_filters=[[16,4,2],[32,3],[0,3,1]]"
ODD_EDITS = (
    "connectors.learner=[{inser: 3}, {prepend: 3}, {prepend: {x: 1}}, {remove: 3}, {insert_after: A}, "
    "{remove: A, append: {_target_: runner.pipelines.MeanStdFilter}}, {}]"
)


def no_effect(key: str, got: str, actors: str, expected: str, where: str | None = None) -> Problem:
    where = where or f"override {key}=" + got.strip('"')
    return Problem(f"{key} has no effect without remote {actors}", where, got, expected)


def no_separate_processes(reason: str, *settings: str, otherwise: str = "") -> list[Problem]:
    """Return the problems of settings (all: those of SEPARATE) that mean nothing to an environment."""
    shown = {
        RESTARTS: (RESTARTS.partition("=")[0], "true", "false"),
        STEP_TIMEOUT: (STEP_TIMEOUT.partition("=")[0], "1.0", "null"),
        ASYNC: (ASYNC, '"async"', '"auto"'),
    }
    return [
        Problem(f"{what} {reason}", f"override {setting}", got, expected + otherwise)
        for setting, (what, got, expected) in shown.items()
        if setting in (settings or SEPARATE)
    ]


def kept_by_ray(key: str, where: str, got: str) -> Problem:
    return Problem(
        f"{key} contains a reserved name of Ray", where, got, "a custom resource that nodes were started with"
    )


def no_amount(key: str, where: str, got: str) -> Problem:
    return Problem(f"{key} is not a valid amount", where, got, "a fraction of 1, or an integer")


def no_filter(place: int, got: str) -> Problem:
    where, expected = f"override {ODD_CONV_FILTERS}", "[out_channels, kernel, stride], integers >= 1"
    return Problem(f"module.conv_filters[{place}] is not a valid filter", where, got, expected)


def no_metric(name: str, where: str, expected: str) -> Problem:
    nearest = "env_runners/episode_return_mean"
    return Problem(f"this run does not produce the metric {name}", where, name, expected, nearest)


def not_a_connector(place: str, got: str) -> Problem:
    expected = "{_target_: package.module.Connector, argument: value, ...}"
    what = f"connectors.learner.{place} must be a connector with a _target_"
    return Problem(what, f"override {ODD_EDITS}", got, expected)


def not_a_key_of_list(key: str, name: str, override: str) -> Problem:
    expected = f"{key}.0 for its first item, or {key}=[...] for all of them"
    return Problem(f"{key} is a list, so {name} is not one of its keys", f"override {override}", expected=expected)


def not_one_edit(place: int, got: str) -> Problem:
    return Problem(f"connectors.learner.{place} must be one edit", f"override {ODD_EDITS}", got, ONE_EDIT)


MISTAKES = [
    pytest.param(
        ["algorithm.gama=0.9"], [unknown_key("algorithm.gama", "0.9", PPOConfig, nearest="gamma")], id="unknown_key"
    ),
    pytest.param(
        ["algoritm.gamma=0.9"],
        [
            unknown_key(
                "algoritm", '{"gamma": 0.9}', ExperimentConfig, nearest="algorithm", where="override algoritm.gamma=0.9"
            )
        ],
        id="unknown_block",
    ),
    pytest.param(
        ["seed.x=1"],
        [wrong_type("seed", '{"x": 1}', "an integer >= 0", where="override seed.x=1")],
        id="unknown_key_below_a_number",
    ),
    pytest.param(
        ["experiment=ppo_cartpol", "algorithm.gama=0.9"],
        [
            Problem(
                "unknown experiment 'ppo_cartpol'",
                where="override experiment=ppo_cartpol",
                got="ppo_cartpol",
                expected=Including(
                    "a2c_cartpole, ",
                    " ppo_cartpole, ",
                    " more); or a file in DIR/experiment with --config-dir DIR",
                ),
                nearest="ppo_cartpole, ppo_cartpole_remote, ppo_cartpole_two_learners",
            ),
            unknown_key("algorithm.gama", "0.9", PPOConfig, nearest="gamma"),
        ],
        id="unknown_experiment",
    ),
    pytest.param(["tracking=mlfow"], [NO_MLFOW], id="unknown_option"),
    pytest.param(
        ["hydra.run.dri=x"],
        [
            Problem(
                "hydra.run.dri has no effect, because runner creates the folders and logs of runs itself",
                where="override hydra.run.dri=x",
                expected="hydra.job.name, hydra.run.dir, hydra.searchpath, hydra.sweep.dir",
                nearest="hydra.run.dir",
            )
        ],
        id="unknown_hydra_key",
    ),
    pytest.param(
        ["hydra.run.dir=${hydra:runtime.cwd}/x"],
        [
            Problem(
                "hydra.run.dir cannot be resolved",
                where="override hydra.run.dir=${hydra:runtime.cwd}/x",
                expected="a folder",
                fix="${hydra.runtime.cwd} instead of ${hydra:runtime.cwd}, for example",
            )
        ],
        id="run_dir_of_hydras_job",
    ),
    pytest.param(
        ["hydra.run.dir=", "offline.output=", "checkpoint.upload_to=''", "sweep.name="],
        [
            Problem("hydra.run.dir is empty", "override hydra.run.dir=", '""', "a folder"),
            Problem("offline.output is empty", "override offline.output=", '""', "a path, or null"),
            Problem("checkpoint.upload_to is empty", "override checkpoint.upload_to=''", '""', "a path, or null"),
            Problem("sweep.name is empty", "override sweep.name=", '""', "a name, or null"),
        ],
        id="empty_paths",
    ),
    pytest.param(["env.env=CartPol-v1"], [NO_CARTPOL], id="unknown_environment"),
    pytest.param(
        ["env.env_config.sutton_barto_rewrd=true"],
        [
            Problem(
                "env.env_config: CartPoleVectorEnv does not take the argument sutton_barto_rewrd",
                where="override env.env_config.sutton_barto_rewrd=true",
                got='{"sutton_barto_rewrd": true}',
                expected="max_episode_steps, render_mode, sutton_barto_reward",
                nearest="sutton_barto_reward",
            )
        ],
        id="unknown_environment_argument",
    ),
    pytest.param(
        ["stop.env_runners.episode_retrn_mean=1"],
        [
            no_metric(
                "env_runners/episode_retrn_mean",
                "override stop.env_runners.episode_retrn_mean=1",
                Including("env_runners/episode_len_max, ", "env_runners/episode_return_mean, ", " more)"),
            )
        ],
        id="unknown_metric",
    ),
    pytest.param(
        ["evaluation=none", "stop.evaluation.env_runners.episode_return_mean=1"],
        [
            Problem(
                (
                    "this run does not produce the metric evaluation/env_runners/episode_return_mean, because "
                    "evaluation.evaluation_interval is null"
                ),
                where="override stop.evaluation.env_runners.episode_return_mean=1",
                got="evaluation/env_runners/episode_return_mean",
                expected="evaluation.evaluation_interval=10, or a metric of training",
            )
        ],
        id="metric_of_evaluation_that_is_off",
    ),
    pytest.param(
        ["checkpoint.metric=episode_return_mean"],
        [
            no_metric(
                "episode_return_mean",
                "override checkpoint.metric=episode_return_mean",
                Including("env_runners/episode_return_mean, evaluation/env_runners/episode_return_mean, ", " more)"),
            )
        ],
        id="metric_of_checkpoints",
    ),
    pytest.param(
        ["checkpoint.metric=null"],
        [Problem("checkpoint.metric has the wrong type", "override checkpoint.metric=null", "null", "text")],
        id="metric_of_checkpoints_without_value",
    ),
    pytest.param(["seed"], [NO_VALUE], id="override_without_value"),
    pytest.param(
        ["module.fcnet_hiddens=[32"],
        [
            Problem(
                "this override cannot be read: no viable alternative at input '[32'",
                where="override module.fcnet_hiddens=[32",
                got="module.fcnet_hiddens=[32",
                expected=AN_OVERRIDE,
            )
        ],
        id="override_that_cannot_be_read",
    ),
    pytest.param(
        ["seed=" + "9" * 5000],
        [
            Problem(
                Including("this override cannot be read: Exceeds the limit"),
                where=Including("override seed=9"),
                got=Including("seed=9"),
                expected=AN_OVERRIDE,
            )
        ],
        id="number_with_too_many_digits",
    ),
    pytest.param(
        ["tracking.run_name=~me", "module.load_state_path=/data/für/run"],
        [
            Problem(
                Including("this override cannot be read: token recognition error at: "),
                where="override tracking.run_name=~me",
                got="tracking.run_name=~me",
                expected="quotes: \"tracking.run_name='~me'\"",
            ),
            Problem(
                Including("this override cannot be read: token recognition error at: "),
                where="override module.load_state_path=/data/für/run",
                got="module.load_state_path=/data/für/run",
                expected="quotes: \"module.load_state_path='/data/für/run'\"",
            ),
        ],
        id="text_that_needs_quotes",
    ),
    pytest.param(
        ["seed=1,2"],
        [
            Problem(
                "seed has several values, which needs a sweep",
                where="override seed=1,2",
                got="1,2",
                fix=(
                    "`runner sweep` (or -m) for one run per value, [1,2] for a list, '1,2' in quotes for text with a "
                    "comma"
                ),
            )
        ],
        id="sweep_without_multirun",
    ),
    pytest.param(
        ["seed='3'"], [wrong_type("seed", '"3"', "an integer >= 0", where="override seed='3'")], id="text_for_a_number"
    ),
    pytest.param(
        ["algorithm.gamma=1.5", "algorithm.clip_param=0", "module.fcnet_hiddens=[32,0]"],
        [
            out_of_range("algorithm.gamma", "1.5", "a number >= 0 and <= 1"),
            out_of_range("algorithm.clip_param", "0", "a number > 0"),
            out_of_range(
                "module.fcnet_hiddens",
                "[32, 0]",
                "a list of integers >= 1",
                where="override module.fcnet_hiddens=[32,0]",
            ),
        ],
        id="out_of_range",
    ),
    pytest.param(
        ["env_runners.sample_timeout_s=inf"],
        [
            out_of_range(
                "env_runners.sample_timeout_s",
                "Infinity",
                "a number > 0 and <= 1e+09",
                where="override env_runners.sample_timeout_s=inf",
            )
        ],
        id="infinite_time",
    ),
    pytest.param(
        ["algorithm.num_env_runners=4", "num_env_runners=4", "module.lr=0.1", "algorithm.explore=false"],
        [
            unknown_key("algorithm.num_env_runners", "4", PPOConfig, nearest="env_runners.num_env_runners"),
            unknown_key("algorithm.explore", "false", PPOConfig, nearest="env_runners.explore, evaluation.explore"),
            unknown_key("num_env_runners", "4", ExperimentConfig, nearest="env_runners.num_env_runners"),
            unknown_key("module.lr", "0.1", ModuleConfig, nearest="algorithm.lr"),
        ],
        id="keys_of_other_blocks",
    ),
    pytest.param(
        [CARTPOLE, "experiment=dqn_cartpole"],
        [
            Problem(
                "experiment is given twice",
                where="override experiment=dqn_cartpole",
                got="dqn_cartpole",
                fix="use one override per group",
            )
        ],
        id="two_experiments",
    ),
    pytest.param(
        ["module.fcnet_activation=tan", "env_runners.rollout_fragment_length=aut", "learners.compile=yes"],
        [
            not_a_choice("module.fcnet_activation", '"tan"', "tanh, relu, silu, elu, gelu, linear", nearest="tanh"),
            not_a_choice("env_runners.rollout_fragment_length", '"aut"', "an integer >= 1 or auto", nearest="auto"),
            not_a_choice("learners.compile", '"yes"', "true or false or auto"),
        ],
        id="none_of_the_choices",
    ),
    pytest.param(
        ["algorithm.lr=[[5,1e-3],[10,1e-4]]"],
        [
            Problem(
                "algorithm.lr is not a valid schedule: it must start at env step 0, not 5",
                where="override algorithm.lr=[[5,1e-3],[10,1e-4]]",
                got="[[5, 0.001], [10, 0.0001]]",
                expected=SCHEDULE,
            )
        ],
        id="schedule_that_starts_late",
    ),
    pytest.param(
        ["algorithm.minibatch_size=5000"],
        [
            Problem(
                "algorithm.minibatch_size 5000 is larger than algorithm.train_batch_size_per_learner 4000",
                where="override algorithm.minibatch_size=5000",
                got="5000",
                expected="at most 4000, or null for the complete batch",
            )
        ],
        id="large_minibatch",
    ),
    pytest.param(
        ["~stop"],
        [
            Problem(
                "stop is empty, so the run would never end",
                where="override ~stop",
                got="{}",
                expected="stop.training_iteration=100, stop.env_runners.episode_return_mean=450, or any other metric",
            )
        ],
        id="empty_stop",
    ),
    pytest.param(
        [
            "env_runners.scheduling_strategy=SPREAD",
            "learners.scheduling_strategy=PACK",
            "learners.custom_resources_per_learner={rack: 1}",
        ],
        [
            no_effect(
                "env_runners.scheduling_strategy",
                '"SPREAD"',
                "env runners",
                '"DEFAULT", or env_runners.num_env_runners=1',
            ),
            no_effect(
                "learners.custom_resources_per_learner",
                '{"rack": 1.0}',
                "learners",
                "{}, or learners.num_learners=1",
                where="override learners.custom_resources_per_learner={rack: 1}",
            ),
            no_effect("learners.scheduling_strategy", '"PACK"', "learners", '"DEFAULT", or learners.num_learners=1'),
        ],
        id="placement_without_actors",
    ),
    pytest.param(
        ["experiment=impala_cartpole", "learners.prefetch=true"],
        [
            Problem(
                "learners.prefetch: the learner runs in the driver's process, which cannot prepare a batch during "
                "the update",
                where="override learners.prefetch=true",
                got="true",
                expected="false, or learners.num_learners >= 1",
            )
        ],
        id="prefetch_of_the_driver",
    ),
    pytest.param(
        ["engine=inline", "env_runners.num_env_runners=2", "env_runners.scheduling_strategy=SPREAD"],
        [
            no_effect(
                "env_runners.scheduling_strategy",
                '"SPREAD"',
                "env runners",
                '"DEFAULT", or env_runners.num_env_runners=1 with engine=ray',
            )
        ],
        id="placement_inline",
    ),
    pytest.param(
        [
            "env_runners.num_env_runners=2",
            "env_runners.num_cpus_per_env_runner=0",
            "env_runners.scheduling_strategy=PACK",
        ],
        [
            Problem(
                (
                    "env_runners.scheduling_strategy=PACK reserves the resources of each env runner, but none are "
                    "requested"
                ),
                where="override env_runners.scheduling_strategy=PACK",
                got="PACK",
                expected="env_runners.num_cpus_per_env_runner above 0, or DEFAULT",
            )
        ],
        id="placement_of_nothing",
    ),
    pytest.param(
        ["env_runners.num_env_runners=2", ODD_CUSTOM_RESOURCES],
        [
            Problem(
                "env_runners.custom_resources_per_env_runner contains CPU, which has its own key",
                where=f"override {ODD_CUSTOM_RESOURCES}",
                got="2.0",
                fix="env_runners.num_cpus_per_env_runner=2",
            ),
            kept_by_ray("env_runners.custom_resources_per_env_runner", f"override {ODD_CUSTOM_RESOURCES}", "memory"),
            no_amount(
                "env_runners.custom_resources_per_env_runner.simulator", f"override {ODD_CUSTOM_RESOURCES}", "1.5"
            ),
            no_amount("env_runners.custom_resources_per_env_runner.license", f"override {ODD_CUSTOM_RESOURCES}", "0.0"),
        ],
        id="odd_custom_resources",
    ),
    pytest.param(
        [
            "env_runners.custom_resources_per_env_runner={license: 1, simulator: many}",
            "learners.custom_resources_per_learner={simulator: null}",
        ],
        [
            wrong_type(
                "env_runners.custom_resources_per_env_runner.simulator",
                '"many"',
                "a number",
                where="override env_runners.custom_resources_per_env_runner={license: 1, simulator: many}",
            ),
            wrong_type(
                "learners.custom_resources_per_learner.simulator",
                "null",
                "a number",
                where="override learners.custom_resources_per_learner={simulator: null}",
            ),
        ],
        id="text_for_custom_resources",
    ),
    pytest.param(
        ["learners.custom_resources_per_learner=simulator"],
        [wrong_type("learners.custom_resources_per_learner", '"simulator"', "a block of keys")],
        id="text_for_a_block",
    ),
    pytest.param(
        ["learners.num_learners=2", "learners.num_gpus_per_learner=4"],
        [
            Problem(
                "learners.num_gpus_per_learner is at most 1: a learner uses one GPU",
                where="override learners.num_gpus_per_learner=4",
                got="4",
                expected="at most 1",
                fix="learners.num_learners=8 learners.num_gpus_per_learner=1",
            )
        ],
        id="gpus_of_a_learner",
    ),
    pytest.param(
        [
            "experiment=ppo_curriculum_goal_maze",
            "curriculum={num_levels: null, evaluate: [], tasks: {a: {options: {level: 0}}, b: {env_config: {siz: 5}}}}",
        ],
        [
            Problem(
                "curriculum.tasks.b.env_config: GoalMaze does not take the argument siz",
                where=(
                    "override curriculum={num_levels: null, evaluate: [], tasks: {a: {options: {level: "
                    "0}}, b: {env_config: {siz: 5}}}}"
                ),
                got='{"siz": 5}',
                expected="max_steps, num_levels, render_mode, size",
                nearest="size",
            )
        ],
        id="task_argument",
    ),
    pytest.param(
        ["stop.training_iteration=many"],
        [wrong_type("stop.training_iteration", '"many"', "a number")],
        id="stop_at_text",
    ),
    pytest.param(
        ["env=none"],
        [
            Problem(
                "no environment is chosen",
                expected="env=cartpole, or env.env: a gymnasium id, or env._target_: the dotted path of a class",
            )
        ],
        id="no_environment",
    ),
    pytest.param(
        ["env=null"],
        [
            Problem(
                "unknown option 'null' of the config group env",
                where="override env=null",
                got="null",
                expected=Including(" none, ", " more); or a file in DIR/env with --config-dir DIR"),
            )
        ],
        id="option_null",
    ),
    pytest.param(
        ["env._target_=my.Env"],
        [
            Problem(
                "env.env and env._target_ are both set",
                where="override env._target_=my.Env",
                got="CartPole-v1 and my.Env",
                expected="only one: env.env: a gymnasium id, or env._target_: the dotted path of a class",
            )
        ],
        id="two_environments",
    ),
    pytest.param(
        ["evaluation.evaluation_parallel_to_training=true", "engine=inline"],
        [
            Problem(
                (
                    "evaluation.evaluation_parallel_to_training needs "
                    "evaluation.evaluation_num_env_runners above 0 and engine=ray"
                ),
                where="override evaluation.evaluation_parallel_to_training=true",
                got="true",
            )
        ],
        id="parallel_evaluation",
    ),
    pytest.param(
        ["algorithm.lr=${algorithm.gama}"],
        [
            Problem(
                "algorithm.lr refers to a key that does not exist: Interpolation key 'algorithm.gama' not found",
                where="override algorithm.lr=${algorithm.gama}",
                got="${algorithm.gama}",
                nearest="algorithm.gamma",
            )
        ],
        id="interpolation_to_nowhere",
    ),
    pytest.param(
        ["algorithm.lr=${oc.env:NO_SUCH_VARIABLE}", "seed=${no_such_resolver:1}"],
        [
            Problem(
                "seed cannot be resolved: Unsupported interpolation type no_such_resolver",
                where="override seed=${no_such_resolver:1}",
                got="${no_such_resolver:1}",
            ),
            Problem(
                Including("algorithm.lr cannot be resolved: ", "Environment variable 'NO_SUCH_VARIABLE' not found"),
                where="override algorithm.lr=${oc.env:NO_SUCH_VARIABLE}",
                got="${oc.env:NO_SUCH_VARIABLE}",
            ),
        ],
        id="values_that_cannot_be_resolved",
    ),
    pytest.param(
        ["seed=???"],
        [Problem("seed does not have a value", where="override seed=???", expected="an integer >= 0")],
        id="missing_value",
    ),
    pytest.param(
        ["experiment=ppo_multi_agent_cartpole", *SEPARATE],
        no_separate_processes(
            "needs an environment with a single agent; runner.environments.MultiAgentCartPole has several"
        ),
        id="separate_settings_of_several_agents",
    ),
    pytest.param(
        ["experiment=ppo_external_cartpole", *SEPARATE],
        no_separate_processes("has no effect on external simulators (env.port)"),
        id="separate_settings_of_simulators",
    ),
    pytest.param(
        ["env.env=null", f"env._target_={TOGETHER}", RESTARTS, ASYNC],
        no_separate_processes(
            f"needs separate sub-environments, but {TOGETHER} steps all of them together",
            *(RESTARTS, ASYNC),
            otherwise=", or a gymnasium.Env",
        ),
        id="separate_settings_of_environments_together",
    ),
    pytest.param(
        ["env_runners.restart_failed_sub_environments=true", "env_runners.gym_env_vectorize_mode=vector_entry_point"],
        [
            Problem(
                (
                    "env_runners.gym_env_vectorize_mode=vector_entry_point steps all sub-environments together, so a "
                    "single one cannot be restarted"
                ),
                where="override env_runners.gym_env_vectorize_mode=vector_entry_point",
                got="vector_entry_point",
                expected="sync or async, or restart_failed_sub_environments=false",
            )
        ],
        id="restart_in_a_batched_implementation",
    ),
    pytest.param(
        ["env_runners.env_step_timeout_s=5"],
        [
            Problem(
                "env_runners.env_step_timeout_s needs sub-environments in separate processes",
                where="override env_runners.env_step_timeout_s=5",
                got="5, gym_env_vectorize_mode=auto",
                expected="gym_env_vectorize_mode=async",
            )
        ],
        id="timeout_without_processes",
    ),
    pytest.param(
        [
            "env_runners.gym_env_vectorize_mode=async",
            "env_runners.env_step_timeout_s=60",
            "env_runners.num_env_runners=2",
        ],
        [
            Problem(
                (
                    "env_runners.env_step_timeout_s has no effect: an env runner counts as failed after "
                    "env_runners.sample_timeout_s"
                ),
                where="override env_runners.env_step_timeout_s=60",
                got="60",
                expected="less than 60",
            )
        ],
        id="timeout_that_is_not_reached",
    ),
    pytest.param(
        ["module.use_lstm=true", "module.use_gru=true"],
        [
            Problem(
                "module.use_lstm and module.use_gru are both true",
                where="override module.use_gru=true",
                got="true and true",
                expected="only one of them",
            )
        ],
        id="two_memories",
    ),
    pytest.param(
        [ODD_CONV_FILTERS],
        [
            no_filter(1, "[32, 3]"),
            no_filter(2, "[0, 3, 1]"),
        ],
        id="odd_conv_filters",
    ),
    pytest.param(
        ["module.conv_filters=[large]"],
        [
            wrong_type(
                "module.conv_filters",
                '["large"]',
                "a list of lists or null",
                where="override module.conv_filters=[large]",
            )
        ],
        id="conv_filters_of_text",
    ),
    pytest.param(
        ["module._target_=runner.modules.actor_critic_modul.ActorCriticModule"],
        [
            Problem(
                "module._target_: runner.modules does not define actor_critic_modul",
                where="override module._target_=runner.modules.actor_critic_modul.ActorCriticModule",
                got="runner.modules.actor_critic_modul.ActorCriticModule",
                expected=Including("ActionDistribution, ActorCriticModule, ", " actor_critic_module, ", " more)"),
                nearest="actor_critic_module",
            )
        ],
        id="missing_module",
    ),
    pytest.param(
        ["module._target_=nowhere_to_be_found.Net"],
        [
            Problem(
                (
                    "module._target_: there is no package nowhere_to_be_found in the working directory, in "
                    "PYTHONPATH, or installed"
                ),
                where="override module._target_=nowhere_to_be_found.Net",
                got="nowhere_to_be_found.Net",
                fix=(
                    "run the command in the folder that contains nowhere_to_be_found, add this folder to PYTHONPATH, "
                    "or install the package"
                ),
            )
        ],
        id="missing_package",
    ),
    pytest.param(
        ["algorithm.schema=runner.config.algorithms.PPOConfg"],
        [
            Problem(
                (
                    "algorithm.schema is not a valid dataclass: module runner.config.algorithms does not define "
                    "PPOConfg; did you mean PPOConfig?"
                ),
                where="override algorithm.schema=runner.config.algorithms.PPOConfg",
                got='"runner.config.algorithms.PPOConfg"',
            )
        ],
        id="missing_schema",
    ),
    pytest.param(
        ["algorithm.schema=pathlib.Path"],
        [
            Problem(
                (
                    "algorithm.schema is not a valid dataclass: pathlib.Path is not a dataclass that inherits "
                    "runner.config.algorithms.AlgorithmConfig"
                ),
                where="override algorithm.schema=pathlib.Path",
                got='"pathlib.Path"',
            )
        ],
        id="schema_that_is_none",
    ),
    pytest.param(
        ["connectors.learner=[{prepend: {_target_: runner.pipelines.MeanStdFiltr}}]"],
        [
            Problem(
                "connectors.learner.0.prepend._target_: runner.pipelines does not define MeanStdFiltr",
                where="override connectors.learner=[{prepend: {_target_: runner.pipelines.MeanStdFiltr}}]",
                got="runner.pipelines.MeanStdFiltr",
                expected=Including(" MeanStdFilter, ", " more)"),
                nearest="MeanStdFilter",
            )
        ],
        id="missing_connector",
    ),
    pytest.param(
        [CONNECTOR_WITHOUT_A_PLACE],
        [
            Problem(
                "connectors.learner.0: ClipRewards does not take the argument limit",
                where=f"override {CONNECTOR_WITHOUT_A_PLACE}",
                got="runner.pipelines.ClipRewards",
                expected="high, low, sign",
            ),
            Problem(
                "connectors.learner.0 is a connector without a position",
                where=f"override {CONNECTOR_WITHOUT_A_PLACE}",
                got='{"_target_": "runner.pipelines.ClipRewards", "limit": 1}',
                expected="{append: {_target_: ...}}, {prepend: ...}, or "
                "{insert_after: CONNECTOR, connector: {_target_: ...}}",
            ),
        ],
        id="connector_without_a_place",
    ),
    pytest.param(
        [MISSPELT_CONNECTOR],
        [
            Problem(
                "the learner pipeline does not contain a connector GAE",
                where=f"override {MISSPELT_CONNECTOR}",
                got="GAE",
                expected=LEARNER_CONNECTORS,
            ),
            Problem(
                "connectors.learner.0: unknown edit conector",
                where=f"override {MISSPELT_CONNECTOR}",
                got="conector",
                expected=ONE_EDIT,
                nearest="connector",
            ),
        ],
        id="misspelt_connector",
    ),
    pytest.param(
        ["connectors.learner={append: {_target_: runner.pipelines.ClipRewards}}"],
        [
            Problem(
                (
                    "connectors.learner={append: {_target_: runner.pipelines.ClipRewards}} cannot be "
                    "applied: it is a list of edits, [{append: ...}, ...]"
                ),
                where="override connectors.learner={append: {_target_: runner.pipelines.ClipRewards}}",
            )
        ],
        id="block_for_a_list_of_edits",
    ),
    pytest.param(
        ["callbacks.mine=3", "connectors.learner.GeneralAdvantageEstimation.lambda_=0.9", "algorithm.plan.Train.x=1"],
        [
            not_a_key_of_list("callbacks", "mine", "callbacks.mine=3"),
            not_a_key_of_list("algorithm.plan", "Train", "algorithm.plan.Train.x=1"),
            not_a_key_of_list(
                "connectors.learner",
                "GeneralAdvantageEstimation",
                "connectors.learner.GeneralAdvantageEstimation.lambda_=0.9",
            ),
        ],
        id="names_in_lists",
    ),
    pytest.param(
        ["~algorithm.plan.0"],
        [
            Problem(
                "a single item of a list cannot be removed",
                where="override ~algorithm.plan.0",
                expected="algorithm.plan=[...] with the other items",
            )
        ],
        id="removed_item_of_a_list",
    ),
    pytest.param(
        ["callbacks.5.every=3"],
        [
            Problem(
                Including("callbacks.5.every cannot be set: ", "index out of range"),
                where="override callbacks.5.every=3",
            )
        ],
        id="index_beyond_a_list",
    ),
    pytest.param(
        ["callbacks={_target_: my.Callback}"],
        [
            Problem(
                "callbacks cannot be a block",
                where="override callbacks={_target_: my.Callback}",
                expected="callbacks=[{...}, ...], if it is a list",
            )
        ],
        id="block_for_a_list",
    ),
    pytest.param(
        ["experiment=ppo_league_tictactoe", "league.opponents={1: 0.5}"],
        [
            Problem(
                "league.opponents has an unknown kind",
                where="override league.opponents={1: 0.5}",
                got="1",
                expected="latest, uniform, prioritised, fixed",
            )
        ],
        id="number_for_a_key",
    ),
    pytest.param(
        ["metrics.env_runners/won.info=won"],
        [
            Problem(
                "this override cannot be read: mismatched input '/' expecting EQUAL",
                where="override metrics.env_runners/won.info=won",
                got="metrics.env_runners/won.info=won",
                expected="'metrics={env_runners/NAME: {info: KEY}}', the complete block",
            )
        ],
        id="metric_by_slashes",
    ),
    pytest.param(
        ["metrics={env_runners/won: {info: won, at: episode_ends}}", "stop.env_runners.won=1"],
        [
            Problem(
                "metrics.env_runners/won: at is not one of its choices",
                where="override metrics={env_runners/won: {info: won, at: episode_ends}}",
                got="episode_ends",
                expected="episode_end, episode_sum, episode_mean, episode_min, episode_max",
                nearest="episode_end",
            )
        ],
        id="faulty_metric_that_is_asked_for",
    ),
    pytest.param(
        ["metrics={env_runners/won: won}", "stop.env_runners.won=1"],
        [
            Problem(
                "metrics.env_runners/won: a metric from infos must be a block",
                where="override metrics={env_runners/won: won}",
                got='"won"',
                expected="{info: key, at: episode_end, reduce: mean}",
            )
        ],
        id="metric_that_is_no_block",
    ),
    pytest.param(
        ["module.width=3"],
        [unknown_key("module.width", "3", ModuleConfig, nearest="mixer_width")],
        id="option_of_an_own_module",
    ),
    pytest.param(
        ["algorithm.schema=runner.config.algorithms.A2CConfig", "algorithm.loss=runner.learners.ppo.PPOLoss"],
        [
            unknown_key("algorithm.clip_param", "0.2", A2CConfig, where="conf/experiment/ppo_cartpole.yaml:7"),
            unknown_key("algorithm.use_kl_loss", "false", A2CConfig, where="conf/experiment/ppo_cartpole.yaml:7"),
            Problem(
                "algorithm.loss is required with a custom schema: its default, PPOLoss, needs PPOConfig",
                where="override algorithm.schema=runner.config.algorithms.A2CConfig",
                got="runner.config.algorithms.A2CConfig",
                fix="set algorithm.loss to the dotted path of the loss",
            ),
        ],
        id="missing_loss",
    ),
    pytest.param(
        [ODD_EDITS],
        [
            Problem(
                "the learner pipeline does not contain a connector A",
                where=f"override {ODD_EDITS}",
                got="A",
                expected=LEARNER_CONNECTORS,
            ),
            Problem(
                "connectors.learner.0: unknown edit inser",
                where=f"override {ODD_EDITS}",
                got="inser",
                expected=ONE_EDIT,
                nearest="insert_before",
            ),
            not_a_connector("1.prepend", "3"),
            not_a_connector("2.prepend", '{"x": 1}'),
            Problem(
                "connectors.learner.3.remove must name a connector of the pipeline",
                where=f"override {ODD_EDITS}",
                got="3",
                expected="a class name",
            ),
            not_a_connector("4.connector", "null"),
            not_one_edit(5, "append, remove"),
            not_one_edit(6, "{}"),
        ],
        id="odd_edits",
    ),
    pytest.param(
        ["connectors.learner=3"],
        [wrong_type("connectors.learner", "3", "a list of blocks of keys")],
        id="edits_that_are_no_list",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), MISTAKES)
def test_message(overrides: list[str], expected: list[Problem], problems_of: ProblemsOf) -> None:
    base = [] if any("experiment=" in text for text in overrides) else [CARTPOLE]
    assert problems_of([*base, *overrides]) == expected


EXPERIMENTS = [
    pytest.param(
        (
            "# @package _global_\ndefaults:\n  - override /env: cartpole\n"
            "algorithm:\n  gama: 0.9\nalgoritm:\n  gamma: 1\nmodule: 3\nstop:\n  training_iteration: 1\n"
        ),
        [
            unknown_key("algorithm.gama", "0.9", PPOConfig, nearest="gamma", where="my_conf/experiment/mine.yaml:5"),
            NEGATIVE_LR,
            unknown_key(
                "algoritm",
                '{"gamma": 1}',
                ExperimentConfig,
                nearest="algorithm",
                where="my_conf/experiment/mine.yaml:6",
            ),
            Problem(
                "module must be a block",
                where="my_conf/experiment/mine.yaml:8",
                got="3",
                expected=Including("keys: _target_, action_distribution, action_mask_key, ", " more)"),
            ),
        ],
        id="file_unknown_keys",
    ),
    pytest.param(
        (
            "# @package _global_\ndefaults:\n  - override /env: cartpol\n"
            "  - override /algorithm: ppoo\nstop:\n  training_iteration: 1\nsed: 3\n"
        ),
        [
            Problem(
                "unknown option 'cartpol' of the config group env",
                where="my_conf/experiment/mine.yaml:3",
                got="cartpol",
                expected=Including("acrobot, ", " cartpole, ", " more)", "an id of Gymnasium"),
                nearest="cartpole, CartPole-v1, CartPole-v0",
            ),
            Problem(
                "unknown algorithm 'ppoo'",
                where="my_conf/experiment/mine.yaml:4",
                got="ppoo",
                expected=Including("a2c, ", " ppo, ppo_sb3, ", " more)"),
                nearest="ppo",
            ),
            unknown_key("sed", "3", ExperimentConfig, nearest="seed", where="my_conf/experiment/mine.yaml:7"),
        ],
        id="file_unknown_option",
    ),
    pytest.param(
        "# @package _global_\ndefaults:\n  - override /envs: cartpole\nstop: {training_iteration: 1}\n",
        [
            Problem(
                "`envs` is not a config group",
                where="my_conf/experiment/mine.yaml:3",
                got="envs",
                expected=GROUPS,
                nearest="env",
            ),
            NEGATIVE_LR,
        ],
        id="file_unknown_group",
    ),
    pytest.param(
        "# @package _global_\nalgorithm: {gamma: 0.9\nseed: 1\n",
        [
            Problem("this is not valid YAML: expected ',' or '}', but got ':'", where="my_conf/experiment/mine.yaml:3"),
            NEGATIVE_LR,
        ],
        id="file_bad_yaml",
    ),
    pytest.param(
        "# @package _global_\nseed: 1\nseed: 2\n",
        [
            Problem("this is not valid YAML: found duplicate key seed", where="my_conf/experiment/mine.yaml:3"),
            NEGATIVE_LR,
        ],
        id="file_double_key",
    ),
    pytest.param("seed: 1\n", [NO_BLOCK, NEGATIVE_LR], id="file_without_header"),
    pytest.param(
        "defaults:\n  - override /env: cartpole\nstop: {training_iteration: 1}\n",
        [
            Problem(
                "this experiment file needs the first line `# @package _global_`",
                where="my_conf/experiment/mine.yaml:1",
            ),
            NEGATIVE_LR,
        ],
        id="file_with_defaults_without_header",
    ),
    pytest.param(
        "# @package _global_\ndefaults:\n  - algorithm: ppo_sb3\nstop: {training_iteration: 1}\n",
        [CHOSEN_TWICE, NEGATIVE_LR],
        id="file_that_chooses_without_override",
    ),
    pytest.param(
        "# @package _global_\ndefaults:\n  - /algorithm: ppo_sb3\nstop: {training_iteration: 1}\n",
        [CHOSEN_TWICE, NEGATIVE_LR],
        id="file_that_chooses_twice",
    ),
    pytest.param(
        "# @package _global_\ndefaults:\n  - override algorithm: ppo_sb3\nstop: {training_iteration: 1}\n",
        [
            Problem(
                "`experiment/algorithm@algorithm` is not a config group",
                where="my_conf/experiment/mine.yaml",
                got="experiment/algorithm@algorithm",
                expected=GROUPS,
                nearest="override /algorithm",
            ),
            NEGATIVE_LR,
        ],
        id="file_that_overrides_a_relative_group",
    ),
    pytest.param("- seed: 1\n", [NO_BLOCK, NEGATIVE_LR], id="file_of_a_list"),
]


@pytest.mark.parametrize(("text", "expected"), EXPERIMENTS)
def test_message_of_an_experiment_file(
    text: str, expected: list[Problem], problems_of: ProblemsOf, write_config: WriteConfig
) -> None:
    config_dir = write_config("experiment/mine", text)
    assert problems_of(["+experiment=mine", "algorithm.lr=-1"], config_dir) == expected


@pytest.mark.parametrize(("block", "option"), [("env", "cartpole"), ("algorithm", "dqn")])
def test_an_option_in_place_of_a_block(block: str, option: str, report_of: ReportOf, write_config: WriteConfig) -> None:
    config_dir = write_config("experiment/mine", f"# @package _global_\n{block}: {option}\n")
    report = report_of(["+experiment=mine"], config_dir)
    assert f"{block} must be a block\n   where         my_conf/experiment/mine.yaml:2\n" in report
    assert f"fix           `- override /{block}: {option}` in the list `defaults` of the file" in report


def test_a_variable_of_the_environment_is_text(problems_of: ProblemsOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNING_RATE", "1e-3")
    reference = "${oc.env:LEARNING_RATE}"
    decoded = f'algorithm.lr="${{oc.decode:{reference}}}"'
    fix = f"'{decoded}', which reads the text as a value"
    problem = wrong_type("algorithm.lr", reference, SCHEDULE)
    assert problems_of([CARTPOLE, f"algorithm.lr={reference}"]) == [replace(problem, got=f'"{reference}"', fix=fix)]
    assert compose_experiment([CARTPOLE, decoded]).values["algorithm"]["lr"] == 1e-3
    (unquoted,) = problems_of([CARTPOLE, decoded.replace('"', "")])
    assert unquoted.expected == f"quotes: '{decoded}'"


def test_a_variable_of_the_environment_in_a_file_is_text(problems_of: ProblemsOf, write_config: WriteConfig) -> None:
    text = "# @package _global_\ndefaults: [ppo_cartpole]\nalgorithm: {lr: '${oc.env:HOME}'}\n"
    (problem,) = problems_of(["+experiment=mine"], write_config("experiment/mine", text))
    assert problem.fix == "'${oc.decode:${oc.env:HOME}}', which reads the text as a value"


@pytest.mark.parametrize("name", ["2048", "1e3", "nan", "true"])
def test_names_of_options_that_read_as_values(name: str, problems_of: ProblemsOf, write_config: WriteConfig) -> None:
    text = "# @package _global_\ndefaults: [ppo_cartpole]\nseed: -1\n"
    (problem,) = problems_of([f"experiment={name}"], write_config(f"experiment/{name}", text))
    assert problem.where == f"my_conf/experiment/{name}.yaml:3"
    (problem,) = problems_of([CARTPOLE, f"tracking={name}"])
    assert problem.what == f"unknown option '{name}' of the config group tracking"


def test_files_that_list_each_other(problems_of: ProblemsOf, write_config: WriteConfig) -> None:
    write_config("experiment/second", "# @package _global_\ndefaults: [first]\n")
    config_dir = write_config("experiment/first", "# @package _global_\ndefaults: [second]\n")
    what = "the list `defaults` of this file contains the file itself, or a file that leads back to it"
    expected = Problem(what, "my_conf/experiment/first.yaml", fix="remove this entry of the list")
    assert problems_of(["+experiment=first"], config_dir) == [expected]
    write_config("env/mine", "defaults: [mine]\n")
    assert problems_of([CARTPOLE, "env=mine"], config_dir) == [replace(expected, where="my_conf/env/mine.yaml")]


def test_a_file_in_another_encoding(problems_of: ProblemsOf, write_config: WriteConfig) -> None:
    config_dir = write_config("experiment/mine", "")
    text = "# @package _global_\n# Für mich.\nstop: {training_iteration: 1}\n"
    (config_dir / "experiment" / "mine.yaml").write_bytes(text.encode("latin-1"))
    what = "this is not valid YAML: the file is not encoded in UTF-8"
    assert problems_of(["+experiment=mine"], config_dir) == [Problem(what, where="my_conf/experiment/mine.yaml:2")]


def test_a_file_that_a_built_in_one_hides(problems_of: ProblemsOf, write_config: WriteConfig) -> None:
    config_dir = write_config("env/cartpole", "env: Acrobot-v1\n")
    assert problems_of([CARTPOLE], config_dir) == [
        Problem(
            "env/cartpole.yaml is hidden by a built-in file with the same name",
            where="my_conf/env/cartpole.yaml",
            fix="rename the file",
        )
    ]


def test_all_problems_are_in_one_report(problems_of: ProblemsOf) -> None:
    overrides = ["seed=1.0", "seed", "algorithm.gama=3", "engine=inlin", "tracking=mlfow", "env.env=CartPol-v1"]
    assert problems_of([CARTPOLE, *overrides]) == [
        NO_VALUE,
        NO_MLFOW,
        unknown_key("algorithm.gama", "3", PPOConfig, nearest="gamma"),
        wrong_type("seed", "1.0", "an integer >= 0"),
        not_a_choice("engine", '"inlin"', "ray, inline", nearest="inline"),
        NO_CARTPOL,
    ]
