"""Composition of YAML files and overrides, and the source of each value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from runner.cli.main import main
from runner.config.compose import compose_experiment
from runner.config.defaults import core_groups
from runner.config.errors import ConfigError, UserError
from runner.config.paths import conf_dir, list_options
from runner.config.validation import build_experiment_config
from tests.config.conftest import ProblemsOf, WriteConfig
from tests.support.configs import config_from

CARTPOLE = "+experiment=ppo_cartpole"
YAML_FILES = sorted(path.relative_to(conf_dir()).with_suffix("").as_posix() for path in conf_dir().rglob("*.yaml"))


@pytest.mark.parametrize("name", YAML_FILES)
def test_every_yaml_file_composes_and_validates(name: str) -> None:
    group, _, option = name.rpartition("/")
    if not group:
        return  # config.yaml itself is part of every composition
    if group == "experiment":
        overrides = [f"+experiment={option}"]
    elif name == "algorithm/tqc":  # learns with no other module
        overrides = ["algorithm=tqc", "module=tqc", "env=pendulum", "+stop.training_iteration=1"]
    elif name in ("algorithm/mappo", "multi_agent/centralised_critic"):  # of several agents
        overrides = ["algorithm=mappo", "env=multi_agent_cartpole", "+stop.training_iteration=1"]
    elif group == "algorithm":  # without the values that an experiment gives to its own
        overrides = [f"algorithm={option}", "env=cartpole", "+stop.training_iteration=1"]
    elif name == "module/rainbow":  # PPO does not support it
        overrides = ["algorithm=rainbow", "module=rainbow", "env=cartpole", "+stop.training_iteration=1"]
    elif group == "env_defaults" and option.startswith(("dqn", "sac")):
        env = "pendulum" if option == "sac_continuous" else "cartpole"
        overrides = [
            f"algorithm={option.partition('_')[0]}",
            f"env={env}",
            name.replace("/", "="),
            "+stop.training_iteration=1",
        ]
    elif name in ("module/crossq", "module/td3", "module/ddpg", "module/tqc"):
        overrides = [f"algorithm={option}", name.replace("/", "="), "env=pendulum", "+stop.training_iteration=1"]
    else:
        overrides = [CARTPOLE, f"{group}={option}"]
    if name == "env/none":
        overrides.append("env.env=CartPole-v1")
    if name.startswith("env/external"):
        overrides.append("env_runners.num_envs_per_env_runner=1")
    if name == "env/external":
        box = "{space: box, low: -1, high: 1, shape: [3], dtype: float32}"
        overrides += [f"env.observation_space={box}", f"env.action_space={box}", "evaluation=none"]
    if option == "sac_rlpd_pendulum":
        overrides.append("offline.input_=data")
    if group in ("experiment", "algorithm") and option.startswith(("bc", "cql", "iql", "marwil")):
        overrides += ["offline.input_=data", "checkpoint.metric=training_iteration"]
    if group == "algorithm" and option == "marwil":
        overrides += ["offline.materialize_mapped_data=false", "offline.dataset_num_iters_per_learner=1"]
    composed = compose_experiment(overrides)
    config = build_experiment_config(composed)
    assert config.stop
    assert composed.problems == ()


def test_every_group_has_its_files() -> None:
    for group, option in core_groups().items():
        assert option is None or option in list_options([conf_dir()], group)


@pytest.mark.parametrize("name", list_options([conf_dir()], "experiment"))
def test_an_experiment_file_is_short(name: str) -> None:
    path = conf_dir() / "experiment" / f"{name}.yaml"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 15


@pytest.mark.parametrize("spelling", ["experiment", "+experiment", "++experiment"])
def test_an_experiment_is_chosen_with_or_without_plus(spelling: str) -> None:
    composed = compose_experiment([f"{spelling}=ppo_cartpole"])
    assert composed.experiment == "ppo_cartpole"
    assert composed.overrides == (CARTPOLE,)
    assert build_experiment_config(composed).experiment_name == "ppo_cartpole"


def test_values_know_where_they_came_from() -> None:
    composed = compose_experiment([CARTPOLE, "algorithm.lr=1e-3", "env.env_config={a: 1}", "env.env_config.b=2"])
    assert composed.sources["algorithm.lr"] == "override algorithm.lr=1e-3"
    assert composed.sources["algorithm.num_epochs"] == "conf/experiment/ppo_cartpole.yaml:7"
    assert composed.sources["algorithm.loss"] == "conf/algorithm/ppo.yaml:3"
    assert composed.sources["algorithm.gamma"] == "default"
    assert composed.sources["env.env_config.a"] == "override env.env_config={a: 1}"
    assert composed.sources["env.env_config.b"] == "override env.env_config.b=2"
    assert composed.where("algorithm.learner_pipeline.1.append.gamma") == "conf/algorithm/ppo.yaml:12"
    assert composed.where("algorithm.gamma") is None


def test_the_run_dir_may_refer_to_a_default_of_the_algorithm() -> None:
    composed = compose_experiment([CARTPOLE, "algorithm=ppo_sb3", "hydra.run.dir=runs/${algorithm.gamma}"])
    assert (composed.run_dir, composed.problems) == ("runs/0.99", ())


def test_overrides_change_and_remove_defaults_of_the_algorithm_and_references_to_them() -> None:
    overrides = ["algorithm.epsilon.1.0=5000", "~algorithm.tau", "~algorithm.replay_buffers.replay.gamma"]
    composed = compose_experiment(["algorithm=dqn", *overrides])
    assert composed.problems == ()
    assert composed.values["algorithm"]["epsilon"] == [[0, 1.0], [5000, 0.05]]
    assert composed.values["algorithm"]["tau"] == 1.0
    assert "gamma" not in composed.values["algorithm"]["replay_buffers"]["replay"]


@pytest.mark.parametrize(("key", "target"), [("algorithm.schema", "nowhere"), ("algorithm.lr", "None.lr")])
def test_a_reference_to_nowhere(problems_of: ProblemsOf, key: str, target: str) -> None:
    problems = problems_of([CARTPOLE, f"{key}=${{{target}}}"])
    what = f"{key} refers to a key that does not exist: Interpolation key '{target}' not found"
    assert what in [problem.what for problem in problems]


def test_interpolations_follow_overrides() -> None:
    config = config_from(CARTPOLE, "algorithm.lambda_=0.5")
    assert config.algorithm.learner_pipeline[1]["append"]["lambda_"] == 0.5


@pytest.mark.parametrize(
    "stop",
    [
        "{env_runners/episode_return_mean: 7}",
        "{env_runners: {episode_return_mean: 7}}",
        "{env_runners.episode_return_mean: 7}",
    ],
)
def test_a_metric_in_yaml_may_be_spelled_in_each_way(write_config: WriteConfig, stop: str) -> None:
    text = f"# @package _global_\ndefaults:\n  - override /env: cartpole\nstop: {stop}\n"
    composed = compose_experiment(["+experiment=mine"], write_config("experiment/mine", text))
    assert build_experiment_config(composed).stop == {"env_runners/episode_return_mean": 7}
    assert composed.sources["stop.env_runners/episode_return_mean"] == "my_conf/experiment/mine.yaml:4"


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize("slash", [".", "/"])
def test_a_metric_on_the_command_line_replaces_that_of_the_file(plus: str, slash: str) -> None:
    override = f"{plus}stop.env_runners{slash}episode_return_mean=9"
    composed = compose_experiment([CARTPOLE, override])
    assert composed.values["stop"] == {
        "env_runners/episode_return_mean": 9,
        "num_env_steps_sampled_lifetime": 300000,
    }
    where = composed.sources["stop.env_runners/episode_return_mean"]
    assert where == "override stop.env_runners.episode_return_mean=9"


@pytest.mark.parametrize("experiment", ["ppo_acrobot", "ppo_league_tictactoe", "sac_pendulum"])
def test_a_metric_of_a_stop_block_on_one_line_is_removed(experiment: str) -> None:
    """Files of other groups, which are merged before it, have as many keys."""
    metric = next(name for name in compose_experiment([f"+experiment={experiment}"]).values["stop"] if "/" in name)
    for spelling in (metric, metric.replace("/", ".")):
        assert metric not in compose_experiment([f"+experiment={experiment}", f"~stop.{spelling}"]).values["stop"]


@pytest.mark.parametrize(
    "override", ["~stop.env_runners.episode_return_mean", "stop.env_runners.episode_return_mean=null"]
)
def test_a_metric_can_be_taken_out_of_stop(override: str) -> None:
    composed = compose_experiment([CARTPOLE, override])
    assert composed.values["stop"] == {"num_env_steps_sampled_lifetime": 300000}


def test_open_blocks_take_new_keys_without_plus() -> None:
    overrides = [
        CARTPOLE,
        "stop.training_iteration=5",
        "env.env_config.sutton_barto_reward=true",
    ]
    config = config_from(*overrides)
    assert config.env.env_config == {"sutton_barto_reward": True}
    assert config.stop["training_iteration"] == 5


def test_composing_leaves_hydra_as_it_was() -> None:
    GlobalHydra.instance().clear()
    compose_experiment([CARTPOLE])
    assert not GlobalHydra.instance().is_initialized()
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert compose_experiment([CARTPOLE]).values["algorithm"]["lr"] == 3e-3
        assert GlobalHydra.instance().hydra is before
        assert compose("config", [CARTPOLE]).algorithm.num_epochs == 6


def test_the_composition_of_its_own_overrides_is_the_same() -> None:
    first = compose_experiment(["experiment=ppo_cartpole", "algorithm.lr=1", "~stop.env_runners.episode_return_mean"])
    # The run directory is named by the second in which a composition was made.
    assert replace(compose_experiment(first.overrides), run_dir=first.run_dir) == first


def test_a_config_dir_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        compose_experiment([CARTPOLE], tmp_path / "nowhere")


def test_a_file_that_changes_is_read_again(write_config: WriteConfig) -> None:
    """Files are parsed once in a process, and again after any change, also one that keeps their length."""
    text = "# @package _global_\ndefaults: [ppo_cartpole]\nalgorithm: {num_epochs: %d}\n"
    for number in (3, 4, 4, 5):
        folder = write_config("experiment/mine", text % number)
        config = config_from("+experiment=mine", config_dir=folder)
        assert config.algorithm.num_epochs == number


def test_the_file_of_an_option_is_the_option() -> None:
    files = ["experiment=dqn_cartpole.yaml", "module=double_q.yaml", "algorithm=rainbow.yaml"]
    named, by_file = (compose_experiment(texts) for texts in ([text.removesuffix(".yaml") for text in files], files))
    assert (by_file.values, by_file.sources) == (named.values, named.sources)
    assert (by_file.experiment, by_file.overrides) == ("dqn_cartpole", named.overrides)


def test_files_that_are_not_chosen_may_be_unreadable(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of another encoding, links to nowhere, and the hidden files of editors and notebooks."""
    folder = write_config("algorithm/other", "schema: nowhere.Config\n")
    write_config("algorithm/.ipynb_checkpoints/other-checkpoint", "schema: nowhere.Config\n")
    (folder / "algorithm" / "latin.yaml").write_bytes(b"# F\xfcr mich.\nschema: nowhere.Config\n")
    (folder / "algorithm" / "gone.yaml").symlink_to("nowhere")
    (folder / "algorithm" / ".#other.yaml").symlink_to("me@here.1")
    assert compose_experiment([CARTPOLE], folder).problems == ()
    assert list(list_options([folder], "algorithm")) == ["gone", "latin", "other"]
    assert main(["list", "algorithm", "--config-dir", "my_conf"]) == 0
    assert "  gone            cannot be read: No such file or directory\n" in capsys.readouterr().out


@pytest.mark.parametrize("block", ["algorithm", "env_runners"])
def test_a_key_that_is_no_text_is_unknown(write_config: WriteConfig, block: str) -> None:
    text = f"# @package _global_\ndefaults: [ppo_cartpole]\n{block}: {{1: 2}}\n"
    folder = write_config("experiment/mine", text)
    with pytest.raises(ConfigError, match=f"unknown key {block}.1"):
        config_from("+experiment=mine", config_dir=folder)


def test_compositions_share_no_values() -> None:
    """Lists of edits and plans are changed while files are merged: the files' own values stay as they are."""
    values = ["seed=99", "algorithm.lr=0.7", "stop.training_iteration=9", "env_runners.num_envs_per_env_runner=77"]
    edit = "algorithm.learner_pipeline=[{append: {_target_: runner.pipelines.NumpyToTensor}}]"
    plain = compose_experiment([CARTPOLE]).unresolved
    assert len(compose_experiment([CARTPOLE, edit, *values]).unresolved["algorithm"]["learner_pipeline"]) == 3
    assert compose_experiment([CARTPOLE]).unresolved == plain
