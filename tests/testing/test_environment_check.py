"""`check-env` finds each thing that is wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runner.cli.main import main
from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.environments import Catch
from runner.testing import BrokenContract, EnvironmentCheck, check_environment, inspect_environment
from tests.conftest import portable
from tests.support.problems import raised_in
from tests.testing import faulty_environments

FAULTY = "tests.testing.faulty_environments"


def check(name: str, num_steps: int = 60, **config: object) -> EnvironmentCheck:
    return inspect_environment(EnvConfig(_target_=f"{FAULTY}.{name}", **config), num_steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "what", "got"),
    [
        ("RaisesInReset", "reset(seed=0) raised RuntimeError: no licence", None),
        ("ResetsWithoutInfo", "reset does not return two values", "ndarray of shape (2,) and dtype float32"),
        ("StepsWithFourValues", "step does not return five values", "4 values: ndarray, float, bool, dict"),
        ("RaisesInStep", "step raised ValueError: the motor is off", "action "),
        ("ReturnsOtherShapes", "the environment's observations do not fit its space", "shape (3,)"),
        ("ReturnsNaN", "an observation of the environment is not finite", "obs[1] = nan"),
        ("RewardsWithInfinity", "a reward is not finite", "inf"),
        ("RewardsBeyondFloat32", "a reward is not finite", "1e+39"),
        ("RewardsWithText", "a reward is not a number", "str of shape ()"),
        ("EndsWithArrays", "terminated or truncated is not a bool", "ndarray of shape (2,) and dtype bool"),
    ],
)
def test_fault(name: str, what: str, got: str | None) -> None:
    found = check(name)
    (fault,) = found.faults
    assert fault.what == what
    assert got is None or got in str(fault.got)
    assert "env steps/s" not in found.facts
    assert not found.warnings


@pytest.mark.parametrize(
    ("raising", "where"),
    [
        (faulty_environments.RaisesInReset.reset, "reset"),
        (faulty_environments.RaisesInStep.step, "step"),
        (faulty_environments.RaisesTogether.step, "step"),
        (faulty_environments.RaisesWithAgents.spoilt, "sub-environment 0, episode 0, step 0"),
    ],
)
def test_the_line_that_raised(raising: Callable[..., Any], where: str) -> None:
    (fault,) = check(raising.__qualname__.partition(".")[0]).faults
    assert portable(str(fault.where)) == f"{where}, {raised_in(raising, 'raise ')}"


def test_observation_that_is_no_array() -> None:
    (fault,) = check("ReturnsRaggedLists").faults
    assert fault.what.startswith("an observation is not an array: ")


def test_fault_in_a_later_episode() -> None:
    (fault,) = check("FailsInItsSecondEpisode").faults
    assert fault.what == "reset(seed=1) raised RuntimeError: only once"


def test_fault_that_only_the_measurement_meets() -> None:
    (fault,) = check("FailsWhenMadeThreeTimes").faults
    assert fault.what == "the environment raised RuntimeError in reset: only twice"


def test_no_space() -> None:
    with pytest.raises(ConfigError, match="HasNoSpace does not define action_space"):
        check("HasNoSpace")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("LeavesItsSpace", "an observation is outside the environment's observation space"),
        ("EndsWithNumbers", "terminated is not a bool"),
        ("NeverEnds", "no episode has ended after 60 env steps, so no returns are reported"),
        ("ActsWithoutBounds", "actions are unbounded, so they are neither scaled nor clipped"),
        (
            "ShowsAMatrix",
            "observations: 20 x 20 float32 values are flattened and not scaled: set module.image_layout=channels_first "
            "or channels_last if they are images, or flat",
        ),
    ],
)
def test_warning(name: str, what: str) -> None:
    found = check(name)
    assert [warning.what for warning in found.warnings] == [what]
    assert not found.faults
    assert "env steps/s, together" in found.facts


def test_answers_that_differ_in_a_second_environment() -> None:
    (warning,) = check("DrawsFromElsewhere").warnings
    assert "runs are not reproducible" in warning.what
    assert warning.where == "step"


def test_observation_out_of_bounds_is_a_fault_where_the_block_says_so() -> None:
    assert check("LeavesItsSpace", validate_observations="error").faults
    assert not check("LeavesItsSpace", validate_observations="off").warnings


@pytest.mark.parametrize("name", ["Walk", "RewardsWithBools"])
def test_nothing_is_wrong(name: str) -> None:
    found = check(name)
    assert not found.faults + found.warnings
    assert found.facts["episodes"].startswith("6 of 10 to 10 env steps (mean 10.0), mean return 10")


# -- sub-environments that are stepped together ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ResetsInTheSameStep", "sub-environments are not reset in the step after the end of their episode"),
        ("ResetsInSecret", "the step that resets a sub-environment returns a reward"),
        ("EndsInResets", "the step that resets a sub-environment also ends its episode"),
        ("ShowsFinalObservations", "infos contain final_obs"),
        ("RewardsAsLists", "rewards are not numbers"),
        ("RewardsNaN", "a reward is not finite"),
        ("EndsAsNumbers", "terminateds are not bools"),
        ("ObservesOne", "the environment's observations do not fit its space"),
        ("ObservesMore", "the environment's observations do not fit its space"),
        ("InfosOfOne", "info place does not contain a value per sub-environment"),
        ("InfosWithoutMask", "info _place does not mark the sub-environments that have place"),
        ("RaisesTogether", "step raised ValueError: the motors are off"),
        ("FourTogether", "step does not return five values"),
    ],
)
def test_fault_together(name: str, what: str) -> None:
    assert [fault.what[: len(what)] for fault in check(name).faults] == [what]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("SpacesOfOne", "observation_space is not single_observation_space for all sub-environments"),
        ("OneSeedForAll", "all sub-environments start with the same observation although it depends on the seed"),
        ("SeededOnce", "a second reset with the same seed returns different observations"),
        ("UnseededTogether", "the same seed and actions give different observations"),
        ("NeverEndsTogether", "no episode has ended after 60 env steps"),
    ],
)
def test_warning_together(name: str, what: str) -> None:
    found = check(name)
    assert not found.faults
    assert any(warning.what.startswith(what) for warning in found.warnings)


def test_nothing_is_wrong_together() -> None:
    found = check("Walks")
    assert not found.faults + found.warnings
    assert found.facts["episodes"].startswith("4 of 10 to 10 env steps (mean 10.0), mean return 10")
    assert "8 sub-environments" in found.facts["env steps/s"]


def test_our_own_together() -> None:
    found = check_environment(EnvConfig(_target_="runner.environments.StatelessCartPole"), 200)
    assert not found.warnings


# -- several agents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what", "where"),
    [
        ("ResetsNobody", "reset does not return any observation", "reset"),
        (
            "UnknownAgent",
            "the environment's observations contain an agent that is not in its possible_agents",
            "episode 0",
        ),
        ("UnknownReward", "the environment's rewards contain an agent that is not in its possible_agents", "episode 0"),
        ("ComesBack", "agent left is observed after its episode has ended", "episode 0"),
        ("TruncatedUnseen", "agent left is truncated without a final observation", "episode 0"),
        ("OtherShape", "the environment's observations do not fit its space", "agent left"),
        ("MoreOfAgent", "the environment's observations do not fit its space", "agent left"),
        ("NaNOfAgent", "an observation of the environment is not finite", "agent left"),
        ("RewardOfText", "the environment's reward is not a number", "agent left"),
        ("InfiniteReward", "a reward is not finite", "agent left"),
        ("InfoOfText", "an info is not a dict", "agent left"),
        ("StandsStill", "no agent has acted in 100 env steps, but the episode has not ended", "step"),
        ("RaisesWithAgents", "the environment raised ValueError in step: no ball", "episode 0"),
        ("FourDicts", "the environment's step returned a tuple of dict, dict, dict, dict", "episode 0"),
    ],
)
def test_fault_of_agents(name: str, what: str, where: str) -> None:
    [fault] = check(name, 300).faults
    assert fault.what.startswith(what)
    assert where in str(fault.where)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("NeverComes", "agent guest was never observed in 60 env steps"),
        ("InfoOfNobody", "infos name an agent that is not in possible_agents"),
        ("EndsOfAgentsAsNumbers", "terminated is not a bool"),
        ("RewardsTheEnded", "an agent gets a reward after its end, which is ignored"),
        ("UnseededAgents", "the same seed and actions give different observations"),
        ("NeverEndsWithAgents", "no episode has ended after 60 env steps"),
        ("AgentsWithoutBounds", "actions are unbounded"),
        ("LeavesSpaceOfAgent", "an observation is outside the environment's observation space"),
    ],
)
def test_warning_of_agents(name: str, what: str) -> None:
    found = check(name)
    assert not found.faults
    assert [warning.what[: len(what)] for warning in found.warnings] == [what]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TwoNamesakes", "possible_agents is not a list of distinct names"),
        ("AgentWithoutSpace", "does not contain a space for"),
    ],
)
def test_agents_that_no_run_can_have(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check(name)


def test_nothing_is_wrong_with_agents() -> None:
    found = check("Passing")
    assert not found.faults + found.warnings
    assert found.facts["episodes"].startswith("6 of 10 to 10 env steps (mean 10.0), mean return 10")
    assert "agent actions" in found.facts["env steps/s"]


@pytest.mark.parametrize("name", ["mpe2.simple_speaker_listener_v4", "pettingzoo.classic.tictactoe_v3"])
def test_petting_zoo(name: str) -> None:
    pytest.importorskip("mpe2" if name.startswith("mpe2") else "pettingzoo")
    config = EnvConfig(_target_="runner.environments.PettingZooEnv", env_config={"name": name})
    assert check_environment(config, 100).facts


# -- as an error, and as a command -------------------------------------------------------------------------------------


def test_faults_are_one_error() -> None:
    with pytest.raises(BrokenContract, match=r"(?s)ReturnsNaN breaks 1 rule.*is not finite.*got +obs\[1\] = nan"):
        check_environment(faulty_environments.ReturnsNaN, 60)
    assert check_environment(faulty_environments.Walk, 60).facts
    assert check_environment(faulty_environments.Walks, 60).facts
    with pytest.raises(ConfigError, match="dict made dict, which is not an environment"):
        check_environment(dict)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["CartPole-v1"], 0, "CartPole-v1: usable"),
        (["catch"], 0, "runner.environments.Catch: usable"),
        ([f"{FAULTY}.Walk", "env.env_config.length=3"], 0, "of 3 to 3 env steps"),
        (["speaker_listener"], 0, "agent speaker_0"),
        (["runner.environments.StatelessCartPole"], 0, "with 8 sub-environments"),
        ([f"{FAULTY}.ComesBack"], 1, "1. agent left is observed after its episode has ended"),
        ([f"{FAULTY}.RewardsNaN"], 1, "1. a reward is not finite"),
        ([f"{FAULTY}.ReturnsNaN"], 1, "1. an observation of the environment is not finite"),
    ],
)
def test_command(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "ENV is missing\n   expected      an option of env (cartpole), a dotted path"),
        (["CartPole-v1", "seed=3"], "got           seed=3"),
        (["CartPol-v1"], "did you mean  CartPole-v1"),
        (["CartPole-v1", "env.env_config={rendr_mode: human}"], "did you mean  render_mode"),
        (["my_package.Nowhere"], "there is no package my_package"),
        (["CartPole-v1", "env.env_confg.x=1"], "env_config"),
    ],
)
def test_command_refuses(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_catch_shows_ball_and_paddle() -> None:
    env = Catch(rows=4, columns=3, render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    frame = env.render()
    assert (frame.shape, frame.dtype) == ((64, 48, 3), np.uint8)
    np.testing.assert_array_equal(frame[::16, ::16, :1], obs)
    assert (frame[-1, 16:32] == 255).all(), "the paddle is in the middle"
