"""`schema` and `new experiment`: the JSON schema accepts what runs, and finds what `validate` finds in one key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from omegaconf import OmegaConf

from runner.config.compose import compose_experiment
from runner.config.json_schema import experiment_schema
from runner.config.paths import conf_dir, list_options, search_dirs
from tests.conftest import Run

OWN_ALGORITHM = """\
from dataclasses import dataclass

from runner.config.algorithms import PPOConfig
from runner.config.fields import option


@dataclass(frozen=True)
class Config(PPOConfig):
    bonus: float = option(0.1, "weight of the bonus", minimum=0, maximum=1)
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = experiment_schema(search_dirs(None))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(json.loads(json.dumps(schema)))


def read(text: str) -> Any:
    """Return the values as Hydra reads them, for which `1e-3` is a number."""
    return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def places(validator: jsonschema.Draft7Validator, text: str) -> list[str]:
    """Return the dotted keys of the values that are errors; for a wrong key, the block that contains it."""
    return sorted(".".join(map(str, error.absolute_path)) for error in validator.iter_errors(read(text)))


@pytest.mark.parametrize("name", list_options([conf_dir()], "experiment"))
def test_experiments_are_valid(name: str, validator: jsonschema.Draft7Validator) -> None:
    text = (conf_dir() / "experiment" / f"{name}.yaml").read_text()
    assert places(validator, text) == []


@pytest.mark.parametrize("name", ["ppo_cartpole", "rainbow_cartpole", "sac_rlpd_pendulum", "ppo_league_pursuit"])
def test_complete_configurations_are_valid(name: str, validator: jsonschema.Draft7Validator) -> None:
    values = compose_experiment([f"experiment={name}"], None).values
    assert [*validator.iter_errors(json.loads(json.dumps(values)))] == []
    values["algorithm"]["gama"] = 1
    assert [error.validator for error in validator.iter_errors(values)] == ["additionalProperties"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sede: 1", [""]),
        ("seed: x", ["seed"]),
        ("seed: -1", ["seed"]),
        ("seed: '${oc.env:SEED}'", []),
        ("engine: rai", ["engine"]),
        ("engine: '${oc.env:ENGINE}'", []),
        ("debug: 1", ["debug"]),
        ("env_runners: {num_env_runers: 2}", ["env_runners"]),
        ("env_runners: {num_envs_per_env_runner: 0}", ["env_runners.num_envs_per_env_runner"]),
        ("module: {fcnet_hiddens: [64, x]}", ["module.fcnet_hiddens.1"]),
        ("module: {fcnet_hiddens: [64, 0]}", ["module.fcnet_hiddens.1"]),
        ("module: {conv_filters: null}", []),
        ("stop: {env_runners/episode_return_mean: 450, my_metric: 2}", []),
        ("stop: {env_runners/episode_return_mean: x}", ["stop.env_runners/episode_return_mean"]),
        ("stop: {env_runners: {episode_return_mean: 450}, my_metric: null}", []),
        ("stop: {training_iteration: '${oc.env:ITERATIONS}'}", []),
        ("stop: {my_metric: true}", ["stop.my_metric"]),
        ("defaults: [ppo_cartpol]", ["defaults.0"]),
        ("defaults: [override /env: cartpol]", ["defaults.0"]),
        ("defaults: [override /env: Acrobot-v1, override /env: 'ale_py:ALE/Pong']", []),
        ("defaults: [override /envs: cartpole]", ["defaults.0"]),
        ("defaults: [/algorithm@multi_agent.modules.p1.algorithm: dqn, _self_]", []),
        ("hydra: {run: {dir: outputs/x}}", []),
        # The algorithm is PPO, unless the file chooses another one.
        ("algorithm: {clip_param: 0.1}", []),
        ("algorithm: {clip_param: 0}", ["algorithm.clip_param"]),
        ("algorithm: {lr: [[0, 1e-3], [1000, 1e-4]]}", []),
        ("algorithm: {lr: [[0, -1]]}", ["algorithm.lr.0.1"]),
        ("algorithm: {lr: [[0]]}", ["algorithm.lr.0"]),
        ("algorithm: {double_q: true}", ["algorithm"]),
        ("{defaults: [override /algorithm: dqn], algorithm: {double_q: true}}", []),
        ("{defaults: [override /algorithm: rainbow], algorithm: {double_q: true}}", []),
        ("{defaults: [override /algorithm: dqn], algorithm: {clip_param: 0.1}}", ["algorithm"]),
        ("{defaults: [dqn_cartpole, _self_], algorithm: {double_q: true}}", []),
        ("{defaults: [dqn_cartpole_compiled, _self_], algorithm: {clip_param: 0.1}}", ["algorithm"]),
        ("{defaults: [dqn_cartpole, override /algorithm: ppo], algorithm: {clip_param: 0.1}}", []),
        ("{defaults: [dqn_cartpole, override /algorithm: ppo], algorithm: {double_q: true}}", ["algorithm"]),
        ("{defaults: [override /algorithm: munchausen_dqn], algorithm: {double_q: true}}", ["algorithm.double_q"]),
        ("{defaults: [override /algorithm: munchausen_dqn], algorithm: {double_q: false}}", []),
        ("algorithm: {schema: runner.config.algorithms.DQNConfig, double_q: true}", []),
        ("algorithm: {schema: my_package.Config, anything: 1}", []),
        ("algorithm: {plan: [ParallelRollouts, {ConcatBatches: {}}, {_target_: my.Operator, k: 1}, TrainOneStep]}", []),
        ("algorithm: {plan: [ParallelRollout]}", ["algorithm.plan.0"]),
        ("algorithm: {plan: [{ParallelRollouts: {mod: async}}]}", ["algorithm.plan.0"]),
        ("algorithm: {plan: [{Concurrently: {plans: [[Replay, TrainOneStp]]}}]}", ["algorithm.plan.0"]),
    ],
)
def test_errors(text: str, expected: list[str], validator: jsonschema.Draft7Validator) -> None:
    assert places(validator, text) == expected


def test_descriptions_have_the_unit_the_range_and_the_default(validator: jsonschema.Draft7Validator) -> None:
    gamma = validator.schema["definitions"]["runner.config.algorithms.DQNConfig"]["properties"]["gamma"]
    assert gamma["description"] == "discount factor\n\na number >= 0 and <= 1; default: 0.99"
    assert gamma["default"] == 0.99
    steps = validator.schema["definitions"]["runner.config.algorithms.DQNConfig"]["properties"]["n_step"]
    assert "env steps whose rewards a target sums" in steps["description"]


def test_an_algorithm_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bonus_algorithm.py").write_text(OWN_ALGORITHM)
    (tmp_path / "conf" / "algorithm").mkdir(parents=True)
    (tmp_path / "conf" / "algorithm" / "bonus.yaml").write_text("schema: bonus_algorithm.Config\n")
    (tmp_path / "conf" / "algorithm" / "broken.yaml").write_text("schema: no_such_module.Config\n")
    validator = jsonschema.Draft7Validator(experiment_schema(search_dirs(tmp_path / "conf")))
    for text, expected in (
        ("{defaults: [override /algorithm: bonus], algorithm: {bonus: 0.2, clip_param: 0.1}}", []),
        ("{defaults: [override /algorithm: bonus], algorithm: {bonus: 2}}", ["algorithm.bonus"]),
        ("{defaults: [override /algorithm: broken], algorithm: {anything: 2}}", []),
    ):
        assert places(validator, text) == expected


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (
            ["--env", "Acrobot-v1", "--algorithm", "dqn"],
            {
                "defaults": [
                    {"override /algorithm": "dqn"},
                    {"override /env": "Acrobot-v1"},
                    {"override /evaluation": "periodic"},
                ],
                "stop": {"num_env_steps_sampled_lifetime": 500000},
            },
        ),
        (
            ["--env", "pendulum", "--algorithm", "sac"],
            {
                "defaults": [
                    {"override /algorithm": "sac"},
                    {"override /env": "pendulum"},
                    {"override /evaluation": "periodic"},
                ],
                "stop": {"num_env_steps_sampled_lifetime": 500000},
            },
        ),
        (
            ["--env", "runner.environments.TwoStepGame"],
            {
                "defaults": [{"override /algorithm": "ppo"}, {"override /evaluation": "periodic"}],
                "env": {"_target_": "runner.environments.TwoStepGame"},
                "stop": {"num_env_steps_sampled_lifetime": 500000},
            },
        ),
    ],
)
def test_a_new_experiment(options: list[str], values: Any, run_main: Run) -> None:
    outcome = run_main("new", "experiment", "mine", *options)
    assert outcome.code == 0
    assert "runner train mine --config-dir conf" in outcome.out
    text = Path("conf/experiment/mine.yaml").read_text()
    assert text.splitlines()[:2] == ["# @package _global_", "# yaml-language-server: $schema=../runner.schema.json"]
    assert read(text) == values
    validator = jsonschema.Draft7Validator(json.loads(Path("conf/runner.schema.json").read_text()))
    assert places(validator, text) == []
    assert places(validator, "defaults: [mine]") == []
    assert run_main("validate", "mine", "--config-dir", "conf").code == 0


def test_a_new_experiment_on_recorded_data(run_main: Run) -> None:
    assert run_main("new", "experiment", "deep/mine", "--env", "cartpole", "--algorithm", "bc", "-cd", "own").code == 0
    outcome = run_main("validate", "deep/mine", "-cd", "own")
    assert outcome.code == 2
    assert "offline.input_ is not set" in outcome.err
    assert "own/experiment/deep/mine.yaml:9" in outcome.err
    first_lines = Path("own/experiment/deep/mine.yaml").read_text().splitlines()
    assert first_lines[1] == "# yaml-language-server: $schema=../../runner.schema.json"
    assert Path("own/runner.schema.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine"], "--env is missing"),
        (["two words", "--env", "cartpole"], "NAME is not a valid name of an experiment"),
        (["../mine", "--env", "cartpole"], "NAME is not a valid name of an experiment"),
        (["ppo_cartpole", "--env", "cartpole"], "an experiment of runner has this name"),
        (["mine", "--env", "CartPol-v1"], "did you mean  CartPole-v1"),
        (["mine", "--env", "cartpole", "--algorithm", "ppoo"], "did you mean  ppo"),
    ],
)
def test_a_new_experiment_that_is_not_written(words: list[str], message: str, run_main: Run) -> None:
    outcome = run_main("new", "experiment", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert not Path("conf").exists()


def test_a_wrong_algorithm_and_a_wrong_environment_are_reported_together(run_main: Run) -> None:
    outcome = run_main("new", "experiment", "mine", "--env", "CartPol-v1", "--algorithm", "ppoo")
    assert outcome.code == 2
    assert outcome.err.startswith("2 problems in the configuration")
    assert "unknown algorithm 'ppoo'" in outcome.err
    assert "the environment CartPol-v1 is not registered" in outcome.err


def test_an_existing_experiment_is_kept(run_main: Run) -> None:
    command = ("new", "experiment", "mine", "--env")
    assert run_main(*command, "cartpole").code == 0
    assert run_main(*command, "pendulum").code == 2
    assert "override /env: cartpole" in Path("conf/experiment/mine.yaml").read_text()
    assert run_main(*command, "pendulum", "--force").code == 0
    assert "override /env: pendulum" in Path("conf/experiment/mine.yaml").read_text()


def test_the_schema_is_printed_or_written(tmp_path: Path, run_main: Run) -> None:
    file = tmp_path / "new" / "runner.schema.json"
    printed = json.loads(run_main("schema").out)
    assert printed["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert run_main("schema", "-o", str(file)).code == 0
    assert json.loads(file.read_text()) == printed
    assert run_main("schema", "-o", str(file)).code == 2
    assert run_main("schema", "-o", str(file), "--force").code == 0
    os.mkfifo(tmp_path / "pipe")
    outcome = run_main("schema", "-o", "pipe", "--force")
    assert outcome.code == 2
    assert "the file cannot be written: this is not a regular file" in outcome.err


def test_an_experiment_in_a_folder_that_was_not_named(run_main: Run) -> None:
    assert run_main("new", "experiment", "mine", "--env", "cartpole", "--config-dir", "my_conf").code == 0
    outcome = run_main("validate", "mine")
    assert outcome.code == 2
    assert "fix           add --config-dir my_conf, which has this experiment" in outcome.err
    assert run_main("validate", "mine.yaml", "--config-dir", "my_conf").code == 0


@pytest.mark.parametrize("group", ["experiment", "algorithm"])
def test_files_that_build_on_each_other(group: str, tmp_path: Path) -> None:
    (tmp_path / group).mkdir()
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / group / f"{name}.yaml").write_text(f"defaults: [{other}]\n")
    validator = jsonschema.Draft7Validator(experiment_schema(search_dirs(tmp_path)))
    assert places(validator, "algorithm: {clip_param: 0.1}") == []
