"""`mlflow_run.json`: which run of MLflow a run or a sweep is, and where; followed if this installation wrote it."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config.documents import parse_json
from runner.config.errors import Problem, UserError
from runner.config.signatures import foreign_reason, signed
from runner.tracking.result_file import write_result

RUN_FILE = "mlflow_run.json"
_KIND = "mlflow run"


class UnknownRunError(UserError):
    """The file cannot be read, or comes from elsewhere: its address is not contacted."""


def write_known_run(path: str | os.PathLike[str], run_id: str, tracking_uri: str) -> None:
    """Write the file; raises OSError."""
    write_result(path, signed({"run_id": run_id, "tracking_uri": tracking_uri}, _KIND))


def read_known_run(folder: Path, is_trusted: bool = False) -> dict[str, str]:
    """Return `run_id` and `tracking_uri`; empty where nothing is in MLflow.

    Args:
        folder: of a run or a sweep.
        is_trusted: whoever wrote the file.

    Raises:
        UnknownRunError: it cannot be read, or somebody else wrote it.
    """
    path = folder / RUN_FILE
    try:
        content = parse_json(path.read_bytes())
        known = {name: content[name] for name in ("run_id", "tracking_uri")}
        if not all(isinstance(value, str) for value in known.values()):
            raise ValueError("run_id and tracking_uri are texts")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = Problem(f"the run's MLflow id cannot be read: {error!s:.200}", str(path))
        raise UnknownRunError(problem.render_alone()) from error
    reason = None if is_trusted else foreign_reason(content, _KIND)
    if reason is not None:
        what = "the run's MLflow id comes from elsewhere, its address is not contacted"
        raise UnknownRunError(Problem(what, str(path), f"{known['tracking_uri']}, {reason}", "--trust").render_alone())
    return known
