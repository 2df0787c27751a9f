"""The default frequency of updates of each algorithm with replay, its module, and the warning about few updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runner.config.paths import conf_dir, list_options
from runner.config.plans.training_ratio import describe_updates, env_steps_per_round, find_few_updates, training_ratio
from runner.config.schemas import ExperimentConfig
from tests.conftest import ROOT, Run
from tests.support.configs import config_from

AGENTS_AS_ONE = "env.wrappers=[{_target_: runner.environments.AgentsAsOne}]"
RECORDED = ROOT / "tests/data/rllib_episodes"
# Algorithm -> environment, env steps between two updates of the default size, class of its module.
DEFAULTS = {
    "dqn": ("acrobot", 4, "DoubleQModule"),
    "rainbow": ("acrobot", 4, "DoubleQModule"),
    "qmix": ("two_step_game", 4, "MixedQModule"),
    "vdn": ("two_step_game", 4, "MixedQModule"),
    "sac": ("pendulum", 1, "SACModule"),
    "sac_discrete": ("acrobot", 1, "DiscreteSACModule"),
    "td3": ("pendulum", 1, "TD3Module"),
    "ddpg": ("pendulum", 1, "TD3Module"),
    "tqc": ("pendulum", 1, "SACModule"),
}


def config_of(*overrides: str, config_dir: Path | None = None) -> ExperimentConfig:
    return config_from(*overrides, "stop.training_iteration=1", config_dir=config_dir)


def newcomers(algorithm: str, *overrides: str) -> ExperimentConfig:
    """The configuration of an algorithm with nothing but an environment."""
    env = DEFAULTS[algorithm][0]
    wrappers = [AGENTS_AS_ONE] if env == "two_step_game" else []
    return config_of(f"algorithm={algorithm}", f"env={env}", *wrappers, *overrides)


@pytest.mark.parametrize("algorithm", DEFAULTS)
def test_defaults_with_nothing_but_an_environment(algorithm: str) -> None:
    _, num_env_steps, module = DEFAULTS[algorithm]
    config = newcomers(algorithm)
    batch_size = config.algorithm.train_batch_size_per_learner
    assert batch_size == {"ddpg": 64}.get(algorithm, 32 if num_env_steps == 4 else 256)
    assert config.algorithm.training_intensity == batch_size / num_env_steps
    assert training_ratio(config) == batch_size / num_env_steps
    assert env_steps_per_round(config, 1) == num_env_steps
    assert config.module._target_ == f"runner.modules.{module}"
    assert find_few_updates(config) is None


@pytest.mark.parametrize("algorithm", DEFAULTS)
@pytest.mark.parametrize("batch_size", [16, 100])
def test_the_frequency_of_updates_does_not_depend_on_their_size(algorithm: str, batch_size: int) -> None:
    num_env_steps = DEFAULTS[algorithm][1]
    config = newcomers(algorithm, f"algorithm.train_batch_size_per_learner={batch_size}")
    assert config.algorithm.training_intensity == batch_size / num_env_steps
    assert env_steps_per_round(config, 1) == num_env_steps


def test_what_is_shown_of_updates() -> None:
    assert describe_updates(newcomers("dqn")) == "1 of 32 rows for every 4 env steps"
    assert describe_updates(newcomers("sac")) == "1 of 256 rows for each env step"
    assert describe_updates(newcomers("sac", "algorithm.training_intensity=5120")) == "20 of 256 rows for each env step"
    assert describe_updates(config_of("env=acrobot")) is None


@pytest.mark.parametrize(
    ("overrides", "ratio"),
    [
        (["algorithm.training_intensity=0.5"], 0.5),
        (["algorithm.training_intensity=null"], 1.0),
        (["algorithm.training_intensity=null", "env_runners.rollout_fragment_length=64"], 0.5),
        (["algorithm.training_intensity=null", "env_runners.num_envs_per_env_runner=2"], 1.0),
        (
            [
                *("algorithm.training_intensity=null", "env_runners.rollout_fragment_length=4"),
                *("env_runners.num_envs_per_env_runner=8", "env_runners.num_env_runners=2", "engine=inline"),
            ],
            0.5,
        ),
        (["algorithm.training_intensity=null", "algorithm.plan.0.Concurrently.round_robin_weights=[4,1]"], 0.25),
    ],
)
def test_a_plan_that_trains_on_each_sampled_step_less_than_once(overrides: list[str], ratio: float) -> None:
    config = newcomers("dqn", *overrides)
    assert training_ratio(config) == ratio
    warning = find_few_updates(config)
    assert (warning is not None) == (ratio < 1)
    if warning is not None:
        assert f"{ratio:.2g} times" in warning
        assert "algorithm.training_intensity=32" in warning


@pytest.mark.parametrize("name", list_options([conf_dir()], "experiment"))
def test_no_experiment_trains_on_sampled_steps_less_than_once(name: str) -> None:
    reads_recorded = name.startswith(("bc_", "cql_", "iql_", "marwil_", "sac_rlpd_"))
    recorded = [f"offline.input_={RECORDED}"] if reads_recorded else []
    assert find_few_updates(config_of(f"+experiment={name}", *recorded)) is None


def test_validate_and_the_banner_warn(run_main: Run) -> None:
    few = ("algorithm=dqn", "env=cartpole", "algorithm.training_intensity=0.1", "stop.training_iteration=1")
    assert "  warning      the plan trains on each sampled env step 0.1 times" in run_main("validate", *few).out
    out = run_main(*few, "tracking=none", "module.fcnet_hiddens=[4]").out
    assert "  warning      the plan trains on each sampled env step 0.1 times" in out
    assert "  updates      1 of 32 rows for every 320 env steps" in out
    assert "warning" not in run_main("validate", *few, "algorithm.training_intensity=1").out


def test_an_algorithm_in_a_user_folder_has_the_module_of_the_one_that_it_builds_on(tmp_path: Path) -> None:
    for group, name, text in (
        ("algorithm", "mine", "defaults: [rainbow, _self_]\nlr: 1e-3\n"),
        ("algorithm", "other", "defaults: [dqn, _self_]\n"),
        ("module", "other", "defaults: [double_q, _self_]\nfcnet_hiddens: [7]\n"),
    ):
        path = tmp_path / group / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    mine = config_of("algorithm=mine", "env=cartpole", config_dir=tmp_path)
    assert (mine.module.q_distribution, mine.module.noisy) == ("categorical", True)
    assert config_of("algorithm=other", "env=cartpole", config_dir=tmp_path).module.fcnet_hiddens == [7]


def test_a_chosen_module_and_the_modules_of_agents_stay() -> None:
    assert config_of("algorithm=dqn", "module=rainbow", "env=cartpole").module.noisy
    config = config_of("+experiment=ppo_dqn_multi_agent_cartpole")
    assert config.module._target_ == "runner.modules.ActorCriticModule"
    assert config.multi_agent.modules["p1"]["_target_"] == "runner.modules.DoubleQModule"


def test_a_resumed_run_follows_another_size_of_updates(run_main: Run, tmp_path: Path) -> None:
    start = ("algorithm=dqn", "env=cartpole", "module.fcnet_hiddens=[4]", "tracking=none", "hydra.run.dir=run")
    assert run_main(*start, "stop.training_iteration=1").code == 0
    OmegaConf.clear_resolver("product")  # another process has not composed anything
    outcome = run_main("resume", "run", "stop.training_iteration=2", "algorithm.train_batch_size_per_learner=64")
    assert outcome.code == 0, outcome.err
    assert "updates      1 of 64 rows for every 4 env steps" in outcome.out
