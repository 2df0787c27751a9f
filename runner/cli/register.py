"""`register RUN --name NAME`: the policy of the newest checkpoint as a version of a model in MLflow's registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.checkpoints.trust import EXPORTING
from runner.cli.arguments import Arguments, UsageError
from runner.cli.conditions import AssertionNotMet, Condition, parse_assertions
from runner.cli.stored_run import StoredRun, explaining_problems, open_run
from runner.config.documents import parse_json
from runner.config.errors import Problem, UserError, list_names, nearest_match
from runner.tracking.known_run import RUN_FILE, read_known_run


def main(arguments: Arguments) -> int:
    """Register the policy; raise an error if an assertion does not hold."""
    name = arguments.value("--name")
    if not name:
        raise UsageError(Problem("--name is missing", expected="name of a model in MLflow's registry"))
    conditions = parse_assertions(arguments.assertions, is_single_run=True)
    stored = open_run(arguments, EXPORTING)
    for condition in conditions:
        _check(condition, _result_of(stored))
    known_run = _mlflow_run(stored)
    from runner.policy.stored_policy import StoredPolicy

    with explaining_problems(stored):
        exported = StoredPolicy.load(stored.checkpoint, stored.config, arguments.value("--module")).to_onnx()
    from runner.tracking.known_run import register_model

    version = register_model(exported.content, exported.manifest, name, known_run, str(stored.checkpoint))
    print(f"registered {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    print(f"  model    {name}, version {version}")
    print(f"  load it  mlflow.onnx.load_model('models:/{name}/{version}')")
    print(f"  store    {known_run['tracking_uri']}")
    print(
        f"  checked  onnxruntime differs from the module by at most {exported.difference:.1e} on "
        f"{exported.num_compared} random observations"
    )
    return 0


def _check(condition: Condition, result: Mapping[str, Any]) -> None:
    """Check a run's last result.

    Raises:
        UserError: the result does not contain the metric.
        AssertionNotMet: the condition does not hold.
    """
    numbers = {name: value for name, value in result.items() if _is_number(value) or value is None}
    if condition.metric not in numbers:
        what, expected = f"the run did not report {condition.metric}", list_names(numbers, near=condition.metric)
        nearest = nearest_match(condition.metric, numbers)
        raise UserError(Problem(what, "--assert", expected=expected, nearest=nearest))
    value = numbers[condition.metric]
    if not condition.holds(value):
        got = "no value" if value is None else f"{value:g}"
        raise AssertionNotMet(Problem("not registered: an assertion does not hold", "--assert", got, str(condition)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _result_of(stored: StoredRun) -> dict[str, Any]:
    """Return the run's last result, or the checkpoint's if the run has not ended."""
    path = stored.checkpoint.parent.parent / "result.json"
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        content = stored.manifest["result"]
    except (OSError, ValueError) as error:
        raise UserError(Problem(f"the result cannot be read: {error}", str(path))) from error
    return dict(content)


def _mlflow_run(stored: StoredRun) -> dict[str, str]:
    """Return `run_id` and `tracking_uri` of the run in MLflow."""
    run_dir = stored.checkpoint.parent.parent
    known = read_known_run(run_dir, stored.is_trusted)
    if not known:
        what = "the run was not tracked by MLflow, so its policy cannot be registered there"
        fix = "train with tracking=mlflow, or write a file with `runner export`"
        raise UserError(Problem(what, str(run_dir / RUN_FILE), "no such file", fix=fix))
    return known
