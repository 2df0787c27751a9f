"""`check-env` finds each thing that is wrong, and nothing else."""

from __future__ import annotations

import pytest

from runner.cli.main import main
from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.testing.environment_check import EnvironmentCheck, check_environment

FAULTY = "tests.testing.faulty_environments"


def check(name: str, num_steps: int = 60, **config: object) -> EnvironmentCheck:
    return check_environment(EnvConfig(_target_=f"{FAULTY}.{name}", **config), num_steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "what", "got"),
    [
        ("RaisesInReset", "reset(seed=0) raised RuntimeError: no licence", None),
        ("ResetsWithoutInfo", "reset does not return two values", "ndarray of shape (2,) and dtype float32"),
        ("StepsWithFourValues", "step does not return five values", "4 values: ndarray, float, bool, dict"),
        ("RaisesInStep", "step raised ValueError: the motor is off", "action "),
        ("ReturnsOtherShapes", "the environment's observations do not have the shape of its space", "shape (1, 3)"),
        ("ReturnsNaN", "an observation of the environment is not finite", "obs[1] = nan"),
        ("RewardsWithArrays", "a reward is no number", "ndarray of shape (1,) and dtype float64"),
        ("RewardsWithInfinity", "a reward is not finite", "inf"),
        ("RewardsWithText", "a reward is no number", "str of shape ()"),
        ("EndsWithArrays", "terminated or truncated is no bool", "ndarray of shape (2,) and dtype bool"),
    ],
)
def test_fault(name: str, what: str, got: str | None) -> None:
    found = check(name)
    (fault,) = found.faults
    assert fault.what == what
    assert got is None or got in str(fault.got)
    assert "env steps/s" not in found.facts
    assert not found.warnings


def test_observation_that_is_no_array() -> None:
    (fault,) = check("ReturnsRaggedLists").faults
    assert fault.what.startswith("an observation is no array: ")


def test_fault_in_a_later_episode() -> None:
    (fault,) = check("FailsInItsSecondEpisode").faults
    assert fault.what == "reset(seed=1) raised RuntimeError: only once"


def test_fault_that_only_the_measurement_meets() -> None:
    (fault,) = check("FailsWhenMadeThreeTimes").faults
    assert fault.what == "the environment raised RuntimeError in reset: only twice"


def test_no_space() -> None:
    with pytest.raises(ConfigError, match="HasNoSpace has no action_space"):
        check("HasNoSpace")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("LeavesItsSpace", "an observation leaves the environment's observation space"),
        ("EndsWithNumbers", "terminated is no bool"),
        ("NeverEnds", "no episode has ended after 60 env steps: returns are counted when episodes end"),
        ("ActsWithoutBounds", "actions have no bounds: they are neither scaled nor clipped"),
    ],
)
def test_warning(name: str, what: str) -> None:
    found = check(name)
    assert [warning.what for warning in found.warnings] == [what]
    assert not found.faults
    assert "env steps/s, together" in found.facts


def test_answers_that_differ_in_a_second_environment() -> None:
    (warning,) = check("DrawsFromElsewhere").warnings
    assert "a run is not reproducible" in warning.what
    assert warning.where == "step"


def test_observation_out_of_bounds_is_a_fault_where_the_block_says_so() -> None:
    assert check("LeavesItsSpace", observation_check="error").faults
    assert not check("LeavesItsSpace", observation_check="off").warnings


@pytest.mark.parametrize("name", ["Walk", "RewardsWithBools"])
def test_nothing_is_wrong(name: str) -> None:
    found = check(name)
    assert not found.faults + found.warnings
    assert found.facts["episodes"].startswith("6 of 10 to 10 env steps (mean 10.0), mean return 10")


def test_several_agents_are_refused() -> None:
    with pytest.raises(ConfigError, match="one environment with one agent"):
        check_environment(EnvConfig(_target_="runner.environments.MultiAgentCartPole"))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["CartPole-v1"], 0, "CartPole-v1: usable"),
        (["catch"], 0, "runner.environments.Catch: usable"),
        ([f"{FAULTY}.Walk", "env.env_config.length=3"], 0, "of 3 to 3 env steps"),
        ([f"{FAULTY}.ReturnsNaN"], 1, "1. an observation of the environment is not finite"),
    ],
)
def test_command(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "ENV is missing"),
        (["CartPole-v1", "seed=3"], "got      seed=3"),
        (["CartPol-v1"], "Did you mean"),
        (["my_package.Nowhere"], "my_package cannot be imported"),
        (["CartPole-v1", "env.env_confg.x=1"], "env_config"),
    ],
)
def test_command_refuses(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == 2
    assert text in capsys.readouterr().err
