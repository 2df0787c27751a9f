"""Values that a resolver gives, such as passwords from the environment: runs store and print the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.callbacks import Callback
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.references import Digests, with_references
from runner.config.resolvers import find_references
from runner.modules import ActorCriticModule
from runner.sweep.trial_settings import TrialSettings
from runner.sweep.trial_training import TrialTraining
from tests.conftest import Run, lines_of, result_of

HERE = "tests.experiment.test_references"
SECRET, OTHER = "hunter2-is-secret", "hunter3-is-secret"
KEYS = (
    f"env._target_={HERE}.Guarded",
    "env.env_config={password: '${oc.env:SIM_PASSWORD}', again: '${env.env_config.password}'}",
    f"module._target_={HERE}.Keyed",
    "+module.model_config.login={user: a, text: 'pw=${oc.env:SIM_PASSWORD}'}",
    f"env.wrappers=[{{_target_: {HERE}.Wrapper, given: ['${{oc.env:SIM_PASSWORD}}']}}]",
    f"callbacks=[{{_target_: {HERE}.Told, password: '${{oc.env:SIM_PASSWORD}}'}}]",
)
QUICK = (
    *("algorithm=ppo", "algorithm.train_batch_size_per_learner=64", "algorithm.minibatch_size=64"),
    *("algorithm.num_epochs=1", "module.fcnet_hiddens=[8]"),
)
WRONG = (
    *(*KEYS, *QUICK, "env.env_config.password='no ${oc.env:SIM_PASSWORD}'", "stop.training_iteration=1"),
    "tracking=none",
)


class Guarded(gym.Env[Any, int]):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, password: str = "", again: str = "") -> None:
        assert password == again
        assert password in (SECRET, OTHER)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self._t += 1
        return np.zeros(2, np.float32), float(action), self._t == 7, False, {}


class Keyed(ActorCriticModule):
    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        assert config.model_config["login"]["text"] in (f"pw={SECRET}", f"pw={OTHER}")
        super().__init__(observation_space, action_space, config)


class Wrapper(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, given: Any) -> None:
        assert given[0] in (SECRET, OTHER)
        super().__init__(env)


class Told(Callback):
    def __init__(self, password: str) -> None:
        assert password in (SECRET, OTHER)


def files_with(text: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes()]


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_PASSWORD", SECRET)


@pytest.mark.slow
@pytest.mark.usefixtures("password")
def test_nothing_of_a_run_has_the_value(run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = f"hydra.run.dir={tmp_path}/outputs/one"
    outcomes = [run_main(*KEYS, *QUICK, "stop.training_iteration=2", run_dir, "tracking.extra_trackers=[csv]")]
    outcomes.append(run_main("resume", "outputs/one", "stop.training_iteration=3"))
    outcomes.append(
        run_main("resume", "outputs/one", "stop.training_iteration=4", "env.env_config.again='${oc.env:SIM_PASSWORD}'")
    )
    outcomes.append(run_main("show", *KEYS, *QUICK, "stop.training_iteration=2"))
    outcomes.append(run_main("validate", *KEYS, *QUICK, "stop.training_iteration=2", "--build"))
    assert [one.code for one in outcomes] == [0] * 5, [one.err for one in outcomes]
    assert all(SECRET not in one.out + one.err for one in outcomes)
    assert 'password: "${oc.env:SIM_PASSWORD}"' in outcomes[3].out
    assert (tmp_path / "outputs" / "mlflow.db").is_file()
    assert files_with(SECRET, tmp_path) == []
    assert "outputs/mlflow.db" in files_with("${oc.env:SIM_PASSWORD}", tmp_path)


@pytest.mark.usefixtures("password")
def test_the_same_value_resumes_exactly_and_another_one_is_reported(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = (*KEYS, *QUICK, "tracking=none")
    assert run_main(*common, "stop.training_iteration=2", "hydra.run.dir=straight").code == 0
    for name in ("same", "other"):
        assert run_main(*common, "stop.training_iteration=1", f"hydra.run.dir={name}").code == 0
    same = run_main("resume", "same", "stop.training_iteration=2")
    assert lines_of(tmp_path / "same") == lines_of(tmp_path / "straight")
    assert "SIM_PASSWORD" not in same.out + same.err
    monkeypatch.setenv("SIM_PASSWORD", OTHER)
    other = run_main("resume", "other", "stop.training_iteration=2")
    printed = " ".join((other.out + other.err).split())
    assert other.code == 0, other.err
    assert "values differ from the checkpoint" in printed
    assert "env.env_config.password (${oc.env:SIM_PASSWORD})" in printed
    assert "module.model_config.login.text (pw=${oc.env:SIM_PASSWORD})" in printed
    assert OTHER not in printed


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize(
    "override",
    [
        "algorithm.lr=${oc.env:SIM_PASSWORD}",
        "env.env_config={passwort: 'x ${oc.env:SIM_PASSWORD}'}",
        "env=a=${oc.env:SIM_PASSWORD}",
    ],
)
def test_messages_of_mistakes_have_the_reference(override: str, run_main: Run) -> None:
    outcome = run_main("validate", f"env._target_={HERE}.Guarded", "stop.training_iteration=1", override)
    assert outcome.code == 2
    assert SECRET not in outcome.out + outcome.err


@pytest.mark.usefixtures("password")
@pytest.mark.parametrize("verb", [["train"], ["profile"], ["validate", "--build"], ["show"]], ids=" ".join)
def test_an_environment_that_cannot_be_made(verb: list[str], run_main: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("validate and show do not write files")
    outcome = run_main(*verb, *WRONG, f"hydra.run.dir={tmp_path}/one")
    assert outcome.code == 2
    assert "no ${oc.env:SIM_PASSWORD}" in " ".join(outcome.err.split())
    assert SECRET not in outcome.out + outcome.err
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.usefixtures("password")
def test_a_conversion_for_an_environment_that_cannot_be_made(run_main: Run) -> None:
    outcome = run_main("convert", "in", "out", *KEYS, "env.env_config.password='no ${oc.env:SIM_PASSWORD}'")
    assert outcome.code == 2
    assert "no ${oc.env:SIM_PASSWORD}" in " ".join(outcome.err.split())
    assert SECRET not in outcome.out + outcome.err


@pytest.mark.usefixtures("password")
def test_a_trial_whose_environment_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        TrialTraining(TrialSettings(0, {"seed": "1"}, WRONG, str(tmp_path / "0"), None))
    assert "no ${oc.env:SIM_PASSWORD}" in " ".join(result_of(tmp_path / "0")["stop_reason"].split())
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.usefixtures("password")
def test_an_evaluation_whose_environment_cannot_be_made(run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(*KEYS, *QUICK, "stop.training_iteration=1", "hydra.run.dir=one", "tracking=none").code == 0
    monkeypatch.setenv("SIM_PASSWORD", "not-the-password")
    outcome = run_main("evaluate", "one")
    assert outcome.code == 2
    assert "${oc.env:SIM_PASSWORD}" in outcome.err
    assert "not-the-password" not in outcome.out + outcome.err


@pytest.mark.usefixtures("password")
def test_references_reach_other_keys() -> None:
    composed = compose_experiment(["env=cartpole", *KEYS])
    assert composed.values["env"]["env_config"]["again"] == SECRET
    assert composed.references["env.env_config.again"] == "${oc.env:SIM_PASSWORD}"
    assert SECRET not in str(with_references(composed.values, composed.references))
    assert find_references({"a": 1, "b": "${a}"}) == {}


def test_digests_differ_by_salt_and_value() -> None:
    one = Digests({"a": "${oc.env:A}"}, {"a": "x"})
    other = Digests({"a": "${oc.env:A}"}, {"a": "y"})
    assert one.of_each() != other.of_each()
    assert one.with_salt("s").of_each() == Digests({"a": "${oc.env:A}"}, {"a": "x"}, "s").of_each()
    assert list(other.with_salt(one.salt).changed(one.of_each())) == ["a (${oc.env:A})"]
    assert list(one.with_salt(one.salt).changed(one.of_each())) == []
