"""`evaluate RUN_DIR`: the newest checkpoint's policy, filters included, in its environment and on held-out data."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from runner.checkpoints.trust import ACTING, TRUST
from runner.cli.against import OPTION, naming_opponent, with_opponent
from runner.cli.arguments import take_options
from runner.cli.held_out_table import held_out_lines
from runner.cli.stored_run import StoredRun, check_writable, open_run, policy_of
from runner.config.offline_evaluation import PREFIX

if TYPE_CHECKING:
    from runner.plans import Result  # imports torch

_FIXED = {"module.": "the checkpoint holds the parameters of this network"}
_IN_ENVIRONMENT = "evaluation/env_runners/"
_OF_LEAGUE = "evaluation/league/"
_OFFLINE = "offline/"


def main(argv: Sequence[str]) -> int:
    """Evaluate, print the metrics and append them to `evaluations.jsonl` in the run dir."""
    options, rest = take_options(argv, (OPTION,), (TRUST,))
    trust = [TRUST] if TRUST in options else []
    stored = open_run([*rest, *trust], _FIXED, ACTING)
    path = stored.run_dir / "evaluations.jsonl"
    check_writable(stored.run_dir, path.name)
    with ExitStack() as stack:
        opponent = options.get(OPTION)
        if opponent is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            stack.enter_context(naming_opponent(opponent))
            stored = with_opponent(stored, opponent, folder, bool(trust))
        result = _evaluate(stored)
    record = {"checkpoint": str(stored.checkpoint), "overrides": list(stored.composed.overrides), **result}
    record |= {} if opponent is None else {"against": opponent}
    stored.run_dir.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(f"evaluated {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    in_environment = {name: value for name, value in result.items() if not name.startswith(_OFFLINE)}
    width = max(len(name) for name in in_environment)
    for name, value in in_environment.items():
        print(f"  {name:<{width}}  {'-' if value is None else f'{value:g}'}")
    if not result["num_episodes"]:
        print(f"  {stored.config.evaluation.no_end_text}")
    held_out = {name.removeprefix(_OFFLINE): value for name, value in result.items() if name.startswith(_OFFLINE)}
    if held_out:
        print("\n".join(held_out_lines(stored.config, held_out)))
    print(f"  recorded in {path}")
    return 0


def _evaluate(stored: StoredRun) -> Result:
    started = time.perf_counter()
    with policy_of(stored) as trainer:
        evaluated = trainer.evaluate()
        result = _without(_IN_ENVIRONMENT, evaluated) | _without(_OF_LEAGUE, evaluated)
        if trainer.has_held_out_data:
            num_env_steps = int(stored.manifest["result"]["num_env_steps_sampled_lifetime"])
            result |= _without(PREFIX.removesuffix(_OFFLINE), trainer.evaluate_offline(num_env_steps))
    return result | {"seconds": round(time.perf_counter() - started, 3)}


def _without(prefix: str, result: Result) -> Result:
    """Return the metrics whose names begin with the prefix, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in result.items() if name.startswith(prefix)}
