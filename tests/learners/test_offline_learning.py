"""What each offline algorithm makes of data that a bad policy recorded."""

from __future__ import annotations

from functools import cache

import pytest

from runner.episodes.columns import ColumnBlock
from tests.learners.toy_mdps import (
    Corridor,
    Line,
    make_learner,
    mean_return,
    mostly_away,
    mostly_left,
    record,
    train,
    train_batch,
)

SMALL = ("module.fcnet_hiddens=[32,32]", "algorithm.gamma=0.9")
IQL = ("algorithm=iql", "module=iql", "algorithm.tau=0.05", "algorithm.expectile=0.8")
IQL_FAST = tuple(f"algorithm.{name}_lr=3e-3" for name in ("actor", "critic", "value"))
MARWIL = ("algorithm=marwil", "algorithm.lr=3e-3", "algorithm.moving_average_sqd_adv_norm_update_rate=0.1")


@cache
def corridor_data() -> ColumnBlock:
    return record(Corridor(), mostly_left, 150)


@cache
def line_data() -> ColumnBlock:
    return record(Line(), mostly_away, 250)


def corridor_return(*overrides: str, num_updates: int) -> float:
    learner, pipeline = make_learner(*SMALL, *overrides, env=Corridor)
    train(learner, train_batch(learner, pipeline, corridor_data()), num_updates)
    return mean_return(Corridor(), learner.module, num_episodes=1)


def line_return(*overrides: str, num_updates: int) -> float:
    learner, pipeline = make_learner(*SMALL, *overrides, env=Line)
    train(learner, train_batch(learner, pipeline, line_data()), num_updates)
    return mean_return(Line(), learner.module)


def test_cloning_a_bad_policy_is_bad() -> None:
    assert corridor_return("algorithm=bc", "algorithm.lr=3e-3", num_updates=200) == 0.0
    assert line_return("algorithm=bc", "algorithm.lr=3e-3", num_updates=300) < -5.0


@pytest.mark.parametrize(
    ("overrides", "num_updates"),
    [
        ((*MARWIL, "algorithm.beta=4"), 600),
        ((*IQL, *IQL_FAST, "algorithm.beta=20"), 400),
        (("algorithm=cql_discrete", "module=double_q", "algorithm.min_q_weight=0.1", "algorithm.tau=0.05"), 600),
    ],
    ids=["marwil", "iql", "cql_discrete"],
)
def test_discrete_actions(overrides: tuple[str, ...], num_updates: int) -> None:
    assert corridor_return(*overrides, num_updates=num_updates) == 1.0


@pytest.mark.parametrize(
    ("overrides", "num_updates", "least"),
    [
        ((*MARWIL, "algorithm.beta=4"), 600, -4.0),
        ((*IQL, *IQL_FAST, "algorithm.beta=10"), 400, -2.0),
        (
            (
                *("algorithm=cql", "module=sac", "algorithm.bc_iters=30", "algorithm.min_q_weight=0.5"),
                *("algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3", "algorithm.num_actions=4"),
                *("algorithm.tau=0.05", "algorithm.initial_alpha=0.1"),
            ),
            250,
            -2.0,
        ),
    ],
    ids=["marwil", "iql", "cql"],
)
def test_real_valued_actions(overrides: tuple[str, ...], num_updates: int, least: float) -> None:
    assert line_return(*overrides, num_updates=num_updates) > least
