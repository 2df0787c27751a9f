"""`evaluate RUN_DIR`: whole episodes with the policy of the newest checkpoint, filters included."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.cli.stored_run import StoredRun, check_writable, open_run, policy_of

if TYPE_CHECKING:
    from runner.dataflow.run_metrics import Result  # imports torch

_FIXED = {"module.": "the checkpoint holds the parameters of this network"}
_PREFIX = "evaluation/env_runners/"


def main(argv: Sequence[str]) -> int:
    """Evaluate, print the metrics and append them to `evaluations.jsonl` in the run dir."""
    stored = open_run(argv, _FIXED)
    path = stored.run_dir / "evaluations.jsonl"
    check_writable(stored.run_dir, path.name)
    result = _evaluate(stored)
    record = {"checkpoint": str(stored.checkpoint), "overrides": list(stored.composed.overrides), **result}
    stored.run_dir.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(f"evaluated {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    width = max(len(name) for name in result)
    for name, value in result.items():
        print(f"  {name:<{width}}  {value:g}")
    print(f"  recorded in {path}")
    return 0


def _evaluate(stored: StoredRun) -> Result:
    started = time.perf_counter()
    with policy_of(stored) as trainer:
        result = trainer.evaluate()
    metrics = {name.removeprefix(_PREFIX): value for name, value in result.items() if name.startswith(_PREFIX)}
    return metrics | {"seconds": round(time.perf_counter() - started, 3)}
