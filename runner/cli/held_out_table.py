"""The lines of `evaluate` about held-out data: the loss, and a table of off-policy estimates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.config.offline_evaluation import EVAL_LOSS, OFF_POLICY_METHODS, off_policy_methods
from runner.config.schemas import ExperimentConfig


def held_out_lines(config: ExperimentConfig, metrics: Mapping[str, float | int | None]) -> Iterator[str]:
    """Yield the lines.

    Args:
        config: the experiment.
        metrics: of the evaluation, under names without `evaluation/offline/`.
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
