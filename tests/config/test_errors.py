"""Rendered problems, lists of names and nearest matches."""

from __future__ import annotations

import pytest

from runner.config.blocks import EnvRunnersConfig
from runner.config.errors import ConfigError, Problem, RunFailure, list_names, nearest_key, nearest_match
from runner.config.fields import names_of
from runner.config.metrics import producible_metrics
from runner.config.schemas import ExperimentConfig

METRICS = tuple(producible_metrics(ExperimentConfig()))


@pytest.mark.parametrize(
    ("name", "options", "nearest"),
    [
        ("num_envs", names_of(EnvRunnersConfig), "num_envs_per_env_runner"),
        ("num_env_runner", names_of(EnvRunnersConfig), "num_env_runners"),
        ("episode_return", METRICS, "env_runners/episode_return_mean"),
        ("env_runners/episode_return", METRICS, "env_runners/episode_return_mean"),
        ("env_runners/episode_retrn_mean", METRICS, "env_runners/episode_return_mean"),
        ("Gama", ("gamma", "grad_clip"), "gamma"),
        ("lr", ("clip_param", "gamma"), None),
        ("nothing_alike", ("gamma", "lambda_"), None),
        ("gamma", (), None),
    ],
)
def test_nearest_match(name: str, options: tuple[str, ...], nearest: str | None) -> None:
    assert nearest_match(name, options) == nearest


LONG = Problem(
    "a text that is longer than a line continues below its first word, and so do the following lines of it, " * 2
    + "while a word-that-is-long is not broken",
    where="conf/experiment/mine.yaml:3",
    got="a text\nof two lines",
    expected=", ".join(f"option_{k}" for k in range(16)),
    nearest="option_1",
)
SHORT = Problem("only this is known", nearest="something", fix="set it")
RENDERED = """\
2 problems in the configuration

1. a text that is longer than a line continues below its first word, and so do the following lines of it, a
   text that is longer than a line continues below its first word, and so do the following lines of it, while
   a word-that-is-long is not broken
   where         conf/experiment/mine.yaml:3
   got           a text
                 of two lines
   expected      option_0, option_1, option_2, option_3, option_4, option_5, option_6, option_7, option_8,
                 option_9, option_10, option_11, option_12, option_13, option_14, option_15
   did you mean  option_1

2. only this is known
   did you mean  something
   fix           set it"""
ALONE = """\
a text that is longer than a line continues below its first word, and so do the following lines of it, a text
that is longer than a line continues below its first word, and so do the following lines of it, while a
word-that-is-long is not broken
   where         conf/experiment/mine.yaml:3
   got           a text
                 of two lines
   expected      option_0, option_1, option_2, option_3, option_4, option_5, option_6, option_7, option_8,
                 option_9, option_10, option_11, option_12, option_13, option_14, option_15
   did you mean  option_1"""


def test_all_problems_are_one_numbered_report() -> None:
    assert str(ConfigError([LONG, SHORT])) == RENDERED
    assert str(ConfigError([SHORT])) == (
        "1 problem in the configuration\n\n1. only this is known\n   did you mean  something\n   fix           set it"
    )


def test_a_problem_of_a_run_has_no_number() -> None:
    assert str(RunFailure(LONG)) == ALONE


@pytest.mark.parametrize(
    ("name", "names", "prefix", "nearest"),
    [
        ("learning_rate", ("gamma", "lr"), "algorithm.", "lr"),
        ("learning_rate", ("actor_lr", "gamma"), "algorithm.", "actor_lr"),
        ("learning_rate", ("env", "stop"), "", "algorithm.lr"),
        ("clip_range", ("gamma", "tau"), "algorithm.", None),
        ("n_envs", ("env", "wrappers"), "env.", "env_runners.num_envs_per_env_runner"),
        ("n_envs", ("num_env_runners", "num_envs_per_env_runner"), "env_runners.", "num_envs_per_env_runner"),
        ("total_timesteps", ("env", "stop"), "", "stop.num_env_steps_sampled_lifetime"),
        ("gama", ("gamma", "lr"), "algorithm.", "gamma"),
    ],
)
def test_names_of_other_frameworks_are_suggested(
    name: str, names: tuple[str, ...], prefix: str, nearest: str | None
) -> None:
    assert nearest_key(name, names, prefix) == nearest


def test_names_can_be_listed_before_the_others() -> None:
    assert list_names("dcba", first=("c", "x", "b")) == "c, b, a, d"
    assert list_names("edcba", "d", limit=3, first=("e", "c")) == "e, c, d, ... (2 more)"


def test_of_many_names_the_similar_ones_are_listed() -> None:
    assert list_names(["b", "c", "a"]) == "a, b, c"
    names = [f"{name}_{k}" for k in range(20) for name in ("alpha", "beta")]
    listed = list_names(names, "beta_7", limit=3)
    assert listed == "beta_0, beta_17, beta_7, ... (37 more)"
    assert len(list_names(names, "alpha").split(", ")) == 25
