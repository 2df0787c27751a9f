"""Connectors that report metrics, as users may write them."""

from __future__ import annotations

from typing import Any

from runner.pipelines import CustomMetrics, EnvToModuleConnector, LearnerConnector, ModuleToEnvConnector, Requirements

FRACTION = "left_fraction"


class CartPositions(EnvToModuleConnector):
    """Reports where the carts of CartPole are."""

    requires = Requirements(reads=("obs",))
    reports = {  # noqa: RUF012
        "left_fraction": ("mean", "share of the carts that are left of the centre"),
        "num_observed": ("sum", "observations that passed"),
        "rightmost": ("max", "largest position of a cart"),
        "newest_position": ("last", "position of the first cart"),
        "middle_position": ("median", "median of the first cart's positions"),
        "far_position": ("p95", "95th percentile of the first cart's positions"),
    }

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        if metrics is not None:
            positions = batch["obs"][:, 0]
            metrics.report("left_fraction", (positions < 0).mean(), len(positions))
            metrics.report("num_observed", len(positions))
            metrics.report("rightmost", positions.max())
            for name in ("newest_position", "middle_position", "far_position"):
                metrics.report(name, positions[0])
        return batch


class ActionCount(ModuleToEnvConnector):
    """Reports how many actions are chosen."""

    requires = Requirements(reads=("actions",))
    reports = {"num_actions": ("sum", "actions that were chosen")}  # noqa: RUF012

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        if metrics is not None:
            metrics.report("num_actions", len(batch["actions"]))
        return batch


class RewardSum(LearnerConnector):
    """Reports the rewards that are learned from."""

    requires = Requirements(reads=("rewards",))
    reports = {  # noqa: RUF012
        "reward_sum": ("sum", "rewards that are learned from"),
        "rows_p90": ("p90", "90th percentile of the rows of a call"),
    }

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        if metrics is not None:
            metrics.report("reward_sum", batch["rewards"].sum())
            metrics.report("rows_p90", len(batch["rewards"]))
        return batch


class SubclassedSum(RewardSum):
    """Declares what its base declares."""


class ComputedNames(RewardSum):
    """Declares a metric whose name only Python knows."""

    reports = {FRACTION: ("mean", "nothing")}  # noqa: RUF012


class SetByInstance(LearnerConnector):
    """Declares a metric when it is made."""

    def __init__(self) -> None:
        self.reports = {"of_instance": ("sum", "nothing")}

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return batch


class Misspelt(RewardSum):
    """Reports what it does not declare."""

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        if metrics is not None:
            metrics.report("rewards_sum", 0.0)
        return batch
