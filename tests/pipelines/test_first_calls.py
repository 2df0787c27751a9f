"""A connector of the user's that does not do what it declares is told in its first call, with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError
from runner.config.validation import build_experiment_config
from runner.experiment.rehearsal import rehearse
from runner.pipelines import (
    Connector,
    EnvToModuleConnector,
    EnvToModulePipeline,
    LearnerConnector,
    ObservationConnector,
    Requirements,
)
from tests.pipelines.fixed_episodes import FixedEpisodes

HERE = "tests.pipelines.test_first_calls"


class Passing(Connector):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class MisspeltReads(Passing):
    requires = Requirements(reads=("obss",))


class TextReads(Passing):
    requires = Requirements(
        reads="obs",  # type: ignore[assignment]
    )


class NotWritten(Passing):
    requires = Requirements(writes=("speed",))


class Misspelt(Connector):
    requires = Requirements(writes=("speed",))

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {**batch, "speeds": batch["obs"][:, 1]}


class Undeclared(Connector):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {**batch, "speed": batch["obs"][:, 1]}


class TakesOut(Connector):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {}


class ReturnsNothing(Connector):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        batch["obs"] = 2 * batch["obs"]


class ReadsUndeclared(Connector):
    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return {**batch, "obs": batch["obss"]}


class FewKeywords(Connector):
    def __call__(self, *, batch: Any, episodes: Any) -> Any:  # type: ignore[override]
        return batch


class NoCall(Connector):
    pass


class NoTransform(ObservationConnector):
    pass


class TooFewRows(ObservationConnector):
    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        return obs[:-1]


class Doubles(ObservationConnector):
    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        return obs.astype(np.float64)


class Wider(ObservationConnector):
    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        return np.concatenate([obs, obs], -1)


class InPlace(ObservationConnector):
    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        episodes.current_obs[:] *= 2
        return obs


class NoSpace(ObservationConnector):
    def recompute_output_observation_space(self, *_: Any) -> Any:
        return None


class RaisesForSpaces(ObservationConnector):
    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        return input_observation_space.lov


class Acting(EnvToModuleConnector):
    pass


class ShortRewards(LearnerConnector):
    requires = Requirements(reads=("rewards",), writes=("rewards",))

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        of_module = batch.get(episodes.module_id, batch)
        of_module["rewards"] = of_module["rewards"][:-2]
        return batch


def report_of(*edits: str) -> str:
    config = compose_experiment(["+experiment=ppo_cartpole", *edits])
    with pytest.raises(ConfigError) as caught:
        rehearse(build_experiment_config(config))
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("NotWritten", ["does not write column 'speed', which its `writes` declares", "columns after it: obs"]),
        ("Misspelt", ["does not write column 'speed'", "columns after it: obs, speeds", "did you mean speeds"]),
        (
            "Undeclared",
            [
                "writes column 'speed', which its `writes` does not declare",
                "fix requires = Requirements(writes=('speed',))",
            ],
        ),
        ("TakesOut", ["removes column 'obs', which its `drops` does not declare"]),
        ("ReturnsNothing", ["ReturnsNothing.__call__ does not return a batch", "got None", "return batch"]),
        ("ReadsUndeclared", ["KeyError: 'obss'", "got batch: obs (2, 4) float32", "did you mean obs"]),
        ("FewKeywords", ["unexpected keyword argument 'rl_module'", "__call__(self, *, batch, episodes, **kwargs)"]),
        ("NoCall", ["NoCall does not implement __call__"]),
        ("NoTransform", ["NoTransform does not implement transform"]),
        ("TooFewRows", ["a wrong number of rows", "got an array of shape (1, 4)", "TooFewRows.transform"]),
        ("Doubles", ["not in its output space", "got obs (2, 4) float64", "float32)", "Doubles.transform"]),
        ("Wider", ["not in its output space", "got obs (2, 8) float32", "recompute_output_observation_space"]),
        (
            "InPlace",
            ["InPlace changes the observations of the episodes in place", "change the batch", "InPlace.transform"],
        ),
        ("NoSpace", ["recompute_output_observation_space does not return a space", "got None", "a gymnasium.Space"]),
        ("RaisesForSpaces", ["no attribute 'lov'", "RaisesForSpaces.recompute_output", "did you mean low"]),
        ("TextReads", ["TextReads.reads is not a tuple of column names", "got 'obs'", "expected ('obs',)"]),
    ],
)
def test_a_mistake_in_env_to_module(name: str, messages: list[str]) -> None:
    edit = f"{{insert_after: AddObservationsFromEpisodesToBatch, connector: {{_target_: {HERE}.{name}}}}}"
    write = f"{{insert_after: {name}, connector: {{_target_: runner.pipelines.WriteObservationsToEpisodes}}}}"
    report = report_of(f"connectors.env_to_module=[{edit},{write}]")
    assert report.startswith("1 problem")
    for message in (*messages, "connectors.env_to_module", f"{Path(__file__)}:"):
        assert message in report or (message == "connectors.env_to_module" and "KeyError" in report)


@pytest.mark.parametrize(
    ("pipeline", "name", "messages"),
    [
        (
            "env_to_module",
            "MisspeltReads",
            ["reads the column 'obss', which no earlier connector", "did you mean obs"],
        ),
        ("learner", "Acting", ["Acting does not belong in the learner pipeline", "connectors.env_to_module"]),
        ("module_to_env", "Wider", ["Wider does not belong in the module_to_env pipeline", "connectors.learner"]),
        ("learner", "ShortRewards", ["returns column 'rewards' with a wrong number of rows", "ShortRewards.__call__"]),
        ("learner", "NotWritten", ["does not write column 'speed'", "connectors.learner", "advantages"]),
        ("module_to_env", "NotWritten", ["does not write column 'speed'", "connectors.module_to_env"]),
    ],
)
def test_a_mistake_elsewhere(pipeline: str, name: str, messages: list[str]) -> None:
    report = report_of(f"connectors.{pipeline}=[{{append: {{_target_: {HERE}.{name}}}}}]")
    assert report.startswith("1 problem")
    for message in messages:
        assert message in report


def test_later_calls_go_to_the_connector_itself() -> None:
    connector = Passing()
    pipeline = EnvToModulePipeline([connector], gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    assert pipeline._calls[0] is not connector
    pipeline(batch={}, episodes=FixedEpisodes())
    assert pipeline._calls[0] is connector
