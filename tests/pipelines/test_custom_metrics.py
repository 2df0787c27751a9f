"""Metrics of connectors: declared, reduced, taken from pipelines."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.errors import RunFailure
from runner.config.user_code import line_of
from runner.pipelines import Connector, ConnectorPipeline, LearnerConnectorPipeline, ModuleToEnvPipeline
from runner.pipelines.custom_metrics import (
    CustomMetrics,
    ReducedValue,
    merged_metrics,
    metrics_from_state,
    metrics_to_state,
)
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.pipeline import PipelineError

SPACES = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(3)


class Counts(Connector):
    """Reports the value that the batch has, in every reduction."""

    reports = {  # noqa: RUF012
        "average": ("mean", "mean value"),
        "total": ("sum", "sum of the values"),
        "largest": ("max", "largest value"),
        "newest": ("last", "newest value"),
        "smallest": ("min", "smallest value"),
        "middle": ("median", "median of the values"),
        "tail": ("p25", "value that a quarter is below"),
    }

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        if metrics is not None:
            for name in self.reports:
                metrics.report(name, batch["value"], batch.get("weight", 1))
        return batch


class Silent(Connector):
    """Has no metric, and takes none."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        assert "metrics" not in kwargs
        return batch


def pass_values(pipeline: ConnectorPipeline, *values: float, weight: float = 1) -> None:
    for value in values:
        pipeline(batch={"value": value, "weight": weight}, episodes=[])


def results(pipeline: ConnectorPipeline, module_id: str = "default_policy") -> dict[str, float | None]:
    return {name: reduced.result for name, reduced in pipeline.take_metrics(module_id).items()}


def test_values_are_reduced_over_calls_and_taken_once() -> None:
    pipeline = ConnectorPipeline([Silent(), Counts()], *SPACES)
    pass_values(pipeline, -2.0, -5.0, -4.0)
    names = [f"connectors/pipeline/{name}" for name in Counts.reports]
    assert results(pipeline) == dict(zip(names, [-11 / 3, -11.0, -2.0, -4.0, -5.0, -4.0, -4.5], strict=True))
    assert results(pipeline) == dict.fromkeys(names), "an iteration without a value has the name and no number"
    pass_values(pipeline, 3.0)
    assert set(results(pipeline).values()) == {3.0}


def test_a_mean_counts_weights_and_nothing_of_weight_0() -> None:
    pipeline = ConnectorPipeline([Counts()], *SPACES)
    pass_values(pipeline, 1.0, weight=3)
    pass_values(pipeline, 5.0, weight=1)
    pass_values(pipeline, float("nan"), weight=0)
    assert list(results(pipeline).values()) == [2.0, 6.0, 5.0, 5.0, 1.0, 3.0, 2.0]


def test_reports_of_runners_merge_as_if_one_had_made_them_all() -> None:
    one = ConnectorPipeline([Counts()], *SPACES)
    several = [ConnectorPipeline([Counts()], *SPACES) for _ in range(3)]
    for value, pipeline in zip([4.0, -1.0, 2.5], several, strict=True):
        pass_values(one, value)
        pass_values(pipeline, value)
    sent = [pickle.loads(pickle.dumps(pipeline.take_metrics("p"))) for pipeline in several]
    assert merged_metrics(sent) == one.take_metrics("p")
    silent, loud = ReducedValue("last"), ReducedValue("last", 2.0, 1.0)
    assert merged_metrics([{"x": silent}, {"x": loud}, {"x": silent}])["x"].result == 2.0


@pytest.mark.parametrize(("reduction", "rank"), [("median", 50), ("p1", 1), ("p99", 99)])
def test_percentiles_are_exact_however_values_are_shared_out(reduction: str, rank: int) -> None:
    values = np.random.default_rng(0).normal(size=101)
    parts = [ReducedValue(reduction) for _ in range(7)]
    for number, value in enumerate(values):
        parts[number % 7].add(value, 1.0)
    merged = merged_metrics({"x": part} for part in parts)["x"]
    assert merged.result == np.percentile(values, rank)
    restored = metrics_from_state(metrics_to_state({"x": merged}))["x"]
    restored.add(1e6, 1.0)
    assert restored.result == np.percentile([*values, 1e6], rank)
    assert merged.result == np.percentile(values, rank), "a state has values of its own"


def test_names_have_the_module_unless_it_is_the_default_one() -> None:
    pipeline = LearnerConnectorPipeline([Counts()], *SPACES)
    assert next(iter(results(pipeline))) == "connectors/learner/average"
    assert next(iter(results(pipeline, "p1"))) == "connectors/p1/learner/average"
    meanings = pipeline.reported_metrics("p1")
    assert meanings["connectors/p1/learner/total"] == "sum of the values (sum over the iteration)"


def test_connectors_of_nested_pipelines_report_to_the_pipeline_around_them() -> None:
    inner = ConnectorPipeline([Counts()], *SPACES)
    pipeline = ModuleToEnvPipeline([ConnectorPipeline([Silent(), inner], *SPACES), Counts()], *SPACES)
    pass_values(pipeline, 1.0, 2.0)
    assert results(pipeline)["connectors/module_to_env/total"] == 6.0
    assert set(pipeline.reports) == set(Counts.reports)


def test_frozen_pipelines_report_nothing() -> None:
    pipeline = ConnectorPipeline([Counts(), ConnectorPipeline([Counts()], *SPACES)], *SPACES)
    pipeline.freeze()
    pass_values(pipeline, 1.0)
    assert set(results(pipeline).values()) == {None}


def test_the_default_connectors_report_nothing_and_are_called_as_they_are() -> None:
    """`producible_metrics` reads the connectors of edits only; and a step must not pay for metrics that nobody
    declares.
    """
    cpu = torch.device("cpu")
    for pipeline in (
        env_to_module_pipeline(*SPACES, cpu, [], lambda _: Silent(), 20),
        module_to_env_pipeline(*SPACES, True, False, [], lambda _: Silent(), True, True),
        learner_pipeline(*SPACES, cpu, [], lambda _: Silent(), (), 20),
    ):
        assert not pipeline.reports
        assert pipeline._calls == list(pipeline)


# -- mistakes ----------------------------------------------------------------------------------------------------------


class Undeclared(Connector):
    reports: Mapping[str, tuple[str, str]] = {"clipped": ("mean", "share of clipped values")}

    def __call__(self, *, batch: dict[str, Any], metrics: CustomMetrics | None = None, **_: Any) -> dict[str, Any]:
        assert metrics is not None
        metrics.report("cliped", 1.0)
        return batch


class UndeclaredAtAll(Undeclared):
    reports = {}  # noqa: RUF012


def test_an_undeclared_name_is_an_error_with_connector_and_names() -> None:
    with pytest.raises(RunFailure) as caught:
        LearnerConnectorPipeline([Undeclared()], *SPACES)._calls[0](batch={})
    problem = caught.value.problem
    assert problem.what == "Undeclared reports cliped, which its `reports` does not declare"
    assert (problem.where, problem.got, problem.nearest) == ("connectors.learner", "cliped", "clipped")
    assert problem.expected == "clipped"
    with pytest.raises(RunFailure, match=r"UndeclaredAtAll\.reports, which is empty"):
        pass_values(ConnectorPipeline([UndeclaredAtAll()], *SPACES), 1.0)


def test_a_value_is_one_number() -> None:
    pipeline = ConnectorPipeline([Counts()], *SPACES)
    pass_values(pipeline, torch.tensor(2.0), np.float32(4), True)  # type: ignore[arg-type]
    assert results(pipeline)["connectors/pipeline/total"] == 7.0
    with pytest.raises(RunFailure, match="Counts reports average with a value that is not a number"):
        pass_values(pipeline, "much")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        (["x"], r"reports is not a dict of name(.*\n)+.*got +\['x'\]"),
        ({"x": "mean"}, r"reports\['x'\] is not a pair of reduction and meaning(.*\n)+.*got +'mean'"),
        ({"x": ("p100", "largest")}, r"reports\['x'\] has an unknown reduction(.*\n)+.*got +p100\n.*, last, p1 to p99"),
        ({"x": ("medain", "middle")}, r"reports\['x'\] has an unknown reduction(.*\n)+.*did you mean +median"),
        ({"x/y": ("mean", "ratio")}, r"a name in reports is not an identifier(.*\n)+.*got +'x/y'"),
    ],
)
def test_a_malformed_declaration_is_refused(reports: Any, message: str) -> None:
    connector = Silent()
    connector.reports = reports
    with pytest.raises(PipelineError, match=message) as caught:
        ConnectorPipeline([connector], *SPACES)
    assert f"connectors.pipeline, {line_of(Silent)}, Silent" == caught.value.problems[0].where


def test_two_connectors_may_share_a_metric_but_not_declare_it_differently() -> None:
    other = Silent()
    other.reports = {"total": ("max", "sum of the values")}
    ConnectorPipeline([Counts(), Counts()], *SPACES)
    with pytest.raises(PipelineError, match=r"Silent.reports\['total'\] is .*, but an earlier declaration is"):
        ConnectorPipeline([Counts(), ConnectorPipeline([other])], *SPACES)
