"""`register RUN_DIR --name NAME`: the policy of the newest checkpoint as a version of a model in MLflow's registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.checkpoints.trust import EXPORTING, TRUST
from runner.cli.arguments import UsageError, take_options
from runner.cli.conditions import Condition
from runner.cli.export import FIXED
from runner.cli.stored_run import StoredRun, naming_changes, open_run
from runner.config.documents import parse_json
from runner.config.errors import Problem, RunFailure, UserError, list_names, nearest_match
from runner.tracking.known_run import RUN_FILE, read_known_run


def main(argv: Sequence[str]) -> int:
    """Register the policy, or say why it is not registered."""
    options, rest = take_options(argv, ("--name", "--module", "--if"), (TRUST,))
    if not options.get("--name"):
        raise UsageError("--name is missing\n   expected      --name NAME, the name of a model in MLflow's registry")
    condition = Condition.parse(options["--if"], "--if") if "--if" in options else None
    if condition is not None:
        condition.check_single_run("--if")
    trust = [TRUST] if TRUST in options else []
    stored = open_run([*rest, *trust], FIXED, EXPORTING)
    if condition is not None:
        _check(condition, _result_of(stored))
    known_run = _mlflow_run(stored)
    from runner.policy.stored_policy import StoredPolicy

    with naming_changes(stored):
        exported = StoredPolicy.load(stored.checkpoint, stored.config, options.get("--module")).to_onnx()
    from runner.tracking.known_run import register_model

    version = register_model(
        exported.content, exported.manifest.content, options["--name"], known_run, str(stored.checkpoint)
    )
    print(f"registered {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    print(f"  model    {options['--name']}, version {version}")
    print(f"  load it  mlflow.onnx.load_model('models:/{options['--name']}/{version}')")
    print(f"  store    {known_run['tracking_uri']}")
    print(
        f"  checked  onnxruntime differs from the module by at most {exported.difference:.1e} on "
        f"{exported.num_compared} random observations"
    )
    return 0


def _check(condition: Condition, result: Mapping[str, Any]) -> None:
    """Check a run's last result.

    Raises:
        UserError: the result has no such metric.
        RunFailure: the condition is not met.
    """
    numbers = {name: value for name, value in result.items() if _is_number(value) or value is None}
    if condition.metric not in numbers:
        problem = Problem(
            f"the run has no metric {condition.metric}",
            "--if",
            expected=list_names(numbers, near=condition.metric),
            nearest=nearest_match(condition.metric, numbers),
        )
        raise UserError(problem.render_alone())
    value = numbers[condition.metric]
    if not condition.holds(value):
        got = "no value" if value is None else f"{value:g}"
        raise RunFailure(Problem("not registered: the run is not good enough", "--if", got, str(condition)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _result_of(stored: StoredRun) -> dict[str, Any]:
    """Return the run's last result; the checkpoint's where the run has not ended."""
    path = stored.checkpoint.parent.parent / "result.json"
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    except FileNotFoundError:
        content = stored.manifest["result"]
    except (OSError, ValueError) as error:
        raise UserError(Problem(f"the result cannot be read: {error}", str(path)).render_alone()) from error
    return dict(content)


def _mlflow_run(stored: StoredRun) -> dict[str, str]:
    """Return `run_id` and `tracking_uri` of the run in MLflow."""
    run_dir = stored.checkpoint.parent.parent
    known = read_known_run(run_dir, stored.is_trusted)
    if not known:
        expected = "a run with tracking=mlflow; `export` writes a file without MLflow"
        what = "the run is not in MLflow, so it has no model registry"
        raise UserError(Problem(what, str(run_dir / RUN_FILE), "no such file", expected).render_alone())
    return known
