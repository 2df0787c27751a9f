"""`evaluate RUN_DIR`: the newest policy in its environment, against other policies, and on held-out data."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from runner.checkpoints.trust import ACTING, EXPORTING
from runner.cli.arguments import Arguments
from runner.cli.stored_run import (
    StoredRun,
    check_writable,
    evaluation_of,
    explaining_problems,
    open_run,
    split_run_dir,
    with_episodes,
)
from runner.config.blocks import DEFAULT_MODULE_ID
from runner.config.errors import Problem, UserError, relocating
from runner.config.offline_evaluation import EVAL_LOSS, OFF_POLICY_METHODS, PREFIX, off_policy_methods
from runner.config.schemas import ExperimentConfig

if TYPE_CHECKING:
    from runner.plans import Result  # imports torch

OPTION = "--against"
_MODULE = "--module"  # of exports
_POLICY, _PLAYER = ".onnx", "other"
_IN_ENVIRONMENT = "evaluation/env_runners/"
_OF_LEAGUE = "evaluation/league/"
_OFFLINE = "offline/"


def main(arguments: Arguments) -> int:
    """Evaluate, print the metrics and append them to `evaluations.jsonl` in the run dir, if it can be written."""
    stored = open_run(with_episodes(arguments), ACTING)
    path = stored.run_dir / "evaluations.jsonl"
    if split_run_dir(arguments)[0] is not None:
        check_writable(stored.run_dir, path.name)
    with ExitStack() as stack:
        opponent = arguments.value(OPTION)
        if opponent is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            stack.enter_context(naming_opponent(opponent))
            stored = with_opponent(stored, opponent, folder, arguments.is_trusting)
        result = _evaluate(stored)
    record = {"checkpoint": str(stored.checkpoint), "overrides": list(stored.composed.overrides), **result}
    record |= {} if opponent is None else {"against": opponent}
    reason = _store(record, path)
    if arguments.has("--json"):
        print(json.dumps(record, indent=2))
    else:
        _print_result(stored, result, path if reason is None else None)
    if reason is not None:
        print(f"the result was not stored in {path}: {reason}", file=sys.stderr, flush=True)
    return 0


def _store(record: Mapping[str, object], path: Path) -> str | None:
    """Append a result to the evaluations of a run; return the reason if the file cannot be written, else None."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:  # the run dir of another user, for example
        return error.strerror or str(error)
    return None


def _print_result(stored: StoredRun, result: Result, path: Path | None) -> None:
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
    if path is not None:
        print(f"  recorded in {path}")


def _evaluate(stored: StoredRun) -> Result:
    started = time.perf_counter()
    with evaluation_of(stored, reads_held_out=True) as evaluation:
        evaluated = evaluation.evaluate()
        result = _without(_IN_ENVIRONMENT, evaluated) | _without(_OF_LEAGUE, evaluated)
        if stored.config.evaluation.offline_evaluation_input_ is not None:
            result |= _without(PREFIX.removesuffix(_OFFLINE), evaluation.evaluate_offline())
    return result | {"seconds": round(time.perf_counter() - started, 3)}


def _without(prefix: str, result: Result) -> Result:
    """Return the metrics whose names begin with the prefix, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in result.items() if name.startswith(prefix)}


# -- opponents ---------------------------------------------------------------------------------------------------------


def with_opponent(stored: StoredRun, other: str, folder: Path, is_trusting: bool) -> StoredRun:
    """Return the run with a league in which its modules meet one opponent.

    Args:
        stored: the run that is evaluated.
        other: a policy file, a run dir, or one of its checkpoints.
        folder: folder to which the policies of another run are exported.
        is_trusting: follow the other run's files, whoever wrote them.

    Raises:
        UserError: the run or the file does not exist, or a run does not contain a module of the same name.
        ConfigError: modules of a run do not act alone.
    """
    from runner.module_building import check_acts_alone  # imports torch

    config = stored.config
    check_acts_alone(config, "meet an opponent")
    modules = config.league.modules or list(config.multi_agent.declared_module_ids) or [DEFAULT_MODULE_ID]
    path, of_modules = Path(other), ", ".join(modules)
    if path.suffix != _POLICY:
        policies = _exported(path, modules, folder, is_trusting)
    elif len(modules) > 1:
        what = "a policy file replaces one module, and this run has several modules"
        fix = "a RUN, which has a policy for each module, or league.fixed with one policy file per module"
        raise UserError(Problem(what, OPTION, f"{other} for {of_modules}", fix=fix))
    elif not os.path.isfile(path):
        raise UserError(Problem("the policy file does not exist", OPTION, other, "POLICY.onnx or RUN"))
    else:
        policies = {modules[0]: str(path.absolute())}
    league = replace(config.league, modules=modules, fixed={_PLAYER: policies})
    league = replace(league, train_against=[], evaluate_against=[_PLAYER])
    return replace(stored, config=replace(config, league=league))


def naming_opponent(other: str) -> AbstractContextManager[None]:
    """Name the option `--against` in problems of this block, instead of the key in the league."""
    places = re.compile(rf"league\.fixed\.{_PLAYER}|{_MODULE}")
    return relocating(lambda where: where and places.sub(lambda _: f"{OPTION} {other}", where))


def naming_run(run_dir: Path) -> AbstractContextManager[None]:
    """Name the other run in problems of this block."""
    return relocating(lambda where: where if where == _MODULE else f"{OPTION} {run_dir}{f': {where}' if where else ''}")


def _exported(run_dir: Path, modules: Sequence[str], folder: Path, is_trusting: bool) -> dict[str, str]:
    """Export policies of a run's newest checkpoint: the modules with these ids, or the only module of the run under all
    of these ids."""
    from runner.policy.stored_policy import StoredPolicy  # imports torch

    options = {"--trust": ("",)} if is_trusting else {}
    stored = open_run(Arguments("export", (str(run_dir),), options=options), EXPORTING)
    known, policies = stored.config.multi_agent.declared_module_ids, {}
    for module_id in modules:
        chosen = module_id if module_id in known or len(known) > 1 else None
        path = folder / f"{module_id}{_POLICY}"
        with naming_run(run_dir), explaining_problems(stored):
            path.write_bytes(StoredPolicy.load(stored.checkpoint, stored.config, chosen).to_onnx().content)
        policies[module_id] = str(path)
    return policies


# -- held-out data -----------------------------------------------------------------------------------------------------


def held_out_lines(config: ExperimentConfig, metrics: Mapping[str, float | int | None]) -> Iterator[str]:
    """Yield the lines about an evaluation on held-out data.

    Args:
        config: the experiment.
        metrics: metrics of the evaluation, by names without `evaluation/offline/`.
    """
    data = config.evaluation.offline_evaluation_input_
    names = ", ".join(data) if isinstance(data, list) else data
    yield f"held-out data {names}: {metrics['num_episodes']:,} episodes, {metrics['num_env_steps']:,} steps"
    agents = dict.fromkeys(name.partition("/")[0] for name in metrics if "/" in name)
    for agent in agents:
        prefix = f"{agent}/"
        of_agent = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        yield f"  {agent}: {of_agent['num_episodes']:,} episodes, {of_agent['num_env_steps']:,} steps"
        yield from _lines_of_one(config, of_agent)
    if not agents:
        yield from _lines_of_one(config, metrics)


def _lines_of_one(config: ExperimentConfig, metrics: Mapping[str, float | int | None]) -> Iterator[str]:
    evaluation, gamma = config.evaluation, config.algorithm.gamma
    if EVAL_LOSS in metrics:
        yield f"  loss             {_text(metrics[EVAL_LOSS])}"
    methods = off_policy_methods(evaluation)
    if methods:
        yield f"  recorded return  {_text(metrics['discounted_return_mean'])}, discounted by {gamma:g}"
        yield "  return of the policy that explores"
        yield from _estimate_lines(methods, evaluation.offline_evaluation_level, metrics)


def _estimate_lines(methods: list[str], level: float, metrics: Mapping[str, float | int | None]) -> Iterator[str]:
    """Yield the table of estimates with aligned columns."""
    rows = [("", "estimate", f"{100 * level:g}% interval", "effective episodes", "")]
    for name in methods:
        interval = f"{_text(metrics[f'{name}_low'])} to {_text(metrics[f'{name}_high'])}"
        size = _text(metrics[f"{name}_effective_sample_size"], ".1f")
        rows.append((name, _text(metrics[name]), interval, size, OFF_POLICY_METHODS[name]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers, meaning in rows:
        cells = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:-1], strict=True)]
        yield f"    {name:<{widths[0]}}  {'  '.join(cells)}  {meaning}".rstrip()


def _text(number: float | int | None, form: str = ".5g") -> str:
    return "-" if number is None else format(number, form)
