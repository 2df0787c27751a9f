"""`show`: the composed configuration with the source of each value, the plan, and the resolved pipelines in order."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from runner.cli.arguments import Arguments
from runner.cli.checked_experiments import check_experiments
from runner.config.algorithms import AlgorithmConfig
from runner.config.composed import DEFAULT_SOURCE, Composed
from runner.config.errors import show_value
from runner.config.plans.drawing import draw_plan
from runner.config.plans.steps import read_plan
from runner.config.references import hiding_values, with_references
from runner.config.schemas import ExperimentConfig

_INDENT = "  "
_WIDEST_VALUE = 72
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


def main(arguments: Arguments) -> int:
    """Print every section of the first configuration of the command line."""
    composed, config = check_experiments(arguments)[0]
    plan = draw_plan(read_plan(config.algorithm.plan))
    if arguments.has("--plan"):
        print(plan)
        return 0
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"{render_config(composed, config, is_coloured)}\n\n{plan}", flush=True)
    from runner.cli.show_pipelines import render_pipelines  # imports torch: the configuration comes first

    with hiding_values(composed.values, composed.references):
        pipelines = render_pipelines(config, arguments.has("--timings"))
    print(f"\n{pipelines}")
    return 0


@dataclasses.dataclass(frozen=True)
class _Line:
    """One printed line. `source` is None for the header of a block."""

    text: str
    source: str | None = None


def render_config(composed: Composed, config: ExperimentConfig, is_coloured: bool = False) -> str:
    """The configuration as lines that look like YAML, sources at the right, defaults dimmed on a terminal."""
    lines = list(_render_fields(_fields_of(config), "", "", composed))
    widths = [len(line.text) for line in lines if line.source is not None]
    column = min(max(widths, default=0), _WIDEST_VALUE)
    return "\n".join(_align(line, column, is_coloured) for line in lines)


def _align(line: _Line, column: int, is_coloured: bool) -> str:
    if line.source is None:
        return line.text
    text = f"{line.text:<{column}}  # {line.source}"
    return f"{_DIM}{text}{_RESET}" if is_coloured and line.source == DEFAULT_SOURCE else text


def _fields_of(block: Any) -> dict[str, Any]:
    return {field.name: getattr(block, field.name) for field in dataclasses.fields(block) if field.init}


def _render_fields(values: dict[str, Any], prefix: str, indent: str, composed: Composed) -> Iterator[_Line]:
    for name, value in values.items():
        yield from _render_value(f"{indent}{name}:", value, f"{prefix}{name}", indent, composed)


def _render_value(head: str, value: Any, key: str, indent: str, composed: Composed) -> Iterator[_Line]:
    inner, value = indent + _INDENT, composed.references.get(key, value)
    if dataclasses.is_dataclass(value):
        shared = AlgorithmConfig.of_run if isinstance(value, AlgorithmConfig) and key != "algorithm" else ()
        value = {name: field for name, field in _fields_of(value).items() if name not in shared}
    if isinstance(value, dict) and value:
        yield _Line(head)
        yield from _render_fields(value, f"{key}.", inner, composed)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield _Line(head)
        for index, item in enumerate(value):
            yield from _render_item(item, f"{key}.{index}", inner, composed)
    else:
        value = with_references(value, composed.references, key)
        yield _Line(f"{head} {_inline(value)}", composed.where(key) or DEFAULT_SOURCE)


def _render_item(item: Any, key: str, indent: str, composed: Composed) -> Iterator[_Line]:
    if not (isinstance(item, dict) and item):
        item = with_references(item, composed.references, key)
        yield _Line(f"{indent}- {_inline(item)}", composed.where(key) or DEFAULT_SOURCE)
        return
    first, *others = _render_fields(item, f"{key}.", indent + _INDENT, composed)
    yield dataclasses.replace(first, text=f"{indent}- {first.text.lstrip()}")
    yield from others


def _inline(value: Any) -> str:
    """Return a value in YAML's flow style; text is quoted only if YAML needs it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, str) and value and all(letter.isalnum() or letter in "_./-" for letter in value):
        is_plain = value[0].isalpha() or value[0] == "_"
        is_word = value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "inf", "nan")
        return value if is_plain and is_word else show_value(value)
    return show_value(value)
