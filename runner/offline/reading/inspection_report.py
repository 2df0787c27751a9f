"""Print the result of `inspect`: tables and a histogram on a terminal, plain text elsewhere."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from runner.offline.reading.inspection import AgentsInspection, ColumnSummary, Distribution, Inspection
from runner.offline.reading.recorded_source import Description
from runner.tracking.headline import bytes_text

if TYPE_CHECKING:
    from rich.console import Console

_BAR_WIDTH = 34
_MAX_FILES = 3

Section = tuple[str, list[tuple[str, str]]]


def plain_report(inspection: Inspection | AgentsInspection, width: int) -> str:
    """Return the report as text without escape sequences or trailing blanks."""
    import io

    from rich.console import Console

    file = io.StringIO()
    print_report(inspection, Console(file=file, width=width, no_color=True, force_terminal=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def print_report(inspection: Inspection | AgentsInspection, console: Console) -> None:
    """Print the report. Tables only have lines and colours on a terminal."""
    if isinstance(inspection, Inspection):
        _print_sections(_sections(inspection), console)
        _print_columns(inspection, console)
        return
    _print_sections(_sections_of_agents(inspection), console)
    for agent, of_agent in inspection.agents.items():
        title = f"{agent}, module {', '.join(inspection.modules[agent])}"
        _print_sections([(title, _what_is_recorded(of_agent)), *_episode_sections(of_agent)], console)
        _print_columns(of_agent, console)
        console.print()


def _print_sections(sections: Iterable[Section], console: Console) -> None:
    from rich.text import Text

    for title, rows in sections:
        console.print(Text(title, style="bold"))
        console.print(_grid(rows))
        console.print()


def _print_columns(inspection: Inspection, console: Console) -> None:
    from rich.text import Text

    console.print(Text("Columns", style="bold"))
    console.print(_columns_table(inspection.columns, console.is_terminal))
    for name, reason in inspection.counts.columns_left_out.items():
        line = f"{name} is left out: {reason}"
        for part in textwrap.wrap(line, console.width, initial_indent="  ", subsequent_indent="      "):
            console.print(Text(part))
    console.print()
    console.print(Text("First rows", style="bold"))
    for row in inspection.first_rows:
        text = ", ".join(f"{name} {_value(value)}" for name, value in row.items())
        for line in textwrap.wrap(text, console.width, initial_indent="  ", subsequent_indent="      "):
            console.print(Text(line))


def _sections(inspection: Inspection) -> Iterator[Section]:
    data = inspection.description
    rows = [*_files(data, inspection.env_name), *_what_is_recorded(inspection), ("digest", data.digest)]
    yield data.name, rows
    yield from _episode_sections(inspection)


def _files(data: Description, env_name: str | None) -> list[tuple[str, str]]:
    files = ", ".join(path.rpartition("/")[2] or path for path in data.files[:_MAX_FILES])
    files += f", ... ({len(data.files)} files)" if len(data.files) > _MAX_FILES else ""
    return [
        ("format", data.format),
        ("files", f"{files}, {bytes_text(data.num_bytes)}"),
        ("environment", env_name or "not recorded"),
    ]


def _what_is_recorded(inspection: Inspection) -> list[tuple[str, str]]:
    return [
        ("observations", inspection.observation_space),
        ("actions", inspection.action_space),
        ("action_logp", "recorded" if inspection.has_action_logp else "not recorded (needed for off-policy estimates)"),
        ("infos", "recorded" if inspection.has_infos else "none"),
    ]


def _sections_of_agents(inspection: AgentsInspection) -> Iterator[Section]:
    data = inspection.description
    agents = ", ".join(inspection.agents)
    yield data.name, [*_files(data, inspection.env_name), ("agents", agents), ("digest", data.digest)]
    ended = f"{inspection.terminated:,} terminated, {inspection.truncated:,} truncated"
    rows = [("episodes", f"{inspection.episodes:,} ({ended})"), ("env steps", f"{inspection.steps:,}")]
    rows += [("return", _describe(inspection.returns)), ("length", _describe(inspection.lengths))]
    rows += _tasks(inspection.tasks)
    yield "Env episodes, returns summed over all agents", rows
    yield "Returns", list(_histogram(inspection.returns))


def _episode_sections(inspection: Inspection) -> Iterator[Section]:
    ended = f"{inspection.terminated:,} terminated, {inspection.truncated:,} truncated"
    open_ = inspection.episodes - inspection.terminated - inspection.truncated
    counts = inspection.counts
    rows = [("episodes", f"{inspection.episodes:,} ({ended}{f', {open_:,} without an end' if open_ > 0 else ''})")]
    rows += [("steps", f"{inspection.steps:,}")]
    rows += [("", inspection.trajectories)] if inspection.trajectories else []
    rows += [
        ("", f"{count:,} {text}")
        for count, text in (
            (counts.final_obs_repeated, "terminated without a final observation: the previous one is repeated"),
            (counts.final_steps_dropped, "ended without a final observation: truncated one step earlier"),
            (counts.trajectories_dropped, "left out: they do not contain a complete step"),
            (counts.breaks, "cut because the next row does not match the next observation"),
            (counts.gaps, "cut because a time step is missing"),
        )
        if count
    ]
    for name, values in (("return", inspection.returns), ("length", inspection.lengths)):
        rows.append((name, _describe(values)))
    rows += _tasks(inspection.tasks)
    yield "Episodes", rows
    yield "Returns", list(_histogram(inspection.returns))
    counted = [column for column in inspection.columns if column.name.partition("/")[0] == "actions" and column.counts]
    for column in counted:
        yield f"{column.name.capitalize()}", list(_bars(column.counts or {}))


def _tasks(tasks: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return a row with the number of episodes per task, or no row if tasks are not recorded."""
    return [("tasks", ", ".join(f"{task} {count:,}" for task, count in tasks.items()))] if tasks else []


def _describe(values: Distribution) -> str:
    shown = [f"mean {_number(values.mean)}", f"std {_number(values.std)}"]
    shown += [f"min {_number(values.minimum)}"]
    shown += [f"{percent}% {_number(value)}" for percent, value in values.percentiles.items()]
    return ", ".join([*shown, f"max {_number(values.maximum)}"])


def _histogram(values: Distribution) -> Iterator[tuple[str, str]]:
    edges = [_number(edge) for edge in values.bin_edges]
    width = max(len(edge) for edge in edges)
    labels = [f"{low:>{width}} to {high:>{width}}" for low, high in pairwise(edges)]
    yield from _bar_rows(labels, values.bin_counts)


def _bars(counts: dict[int, int]) -> Iterator[tuple[str, str]]:
    shown = dict(sorted(counts.items(), key=lambda pair: -pair[1])[:12]) if len(counts) > 12 else counts
    total = sum(counts.values())
    yield from _bar_rows([str(value) for value in shown], list(shown.values()), total)
    if len(shown) < len(counts):
        yield "", f"... {len(counts) - len(shown)} more values"


def _bar_rows(labels: Sequence[str], counts: Sequence[int], total: int | None = None) -> Iterator[tuple[str, str]]:
    most = max(counts)
    total = total or sum(counts)
    for label, count in zip(labels, counts, strict=True):
        yield label, f"{_bar(count / most):<{_BAR_WIDTH}} {count:>9,} {100 * count / total:5.1f}%"


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, part = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")


def _grid(rows: Sequence[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(f"  {label}"), Text(text))
    return table


def _columns_table(columns: Sequence[ColumnSummary], is_terminal: bool) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, padding=(0, 1), pad_edge=True, header_style="dim")
    for name, justify in (("name", "left"), ("type", "left"), ("min", "right"), ("mean", "right"), ("max", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for column in columns:
        type_ = column.dtype + (f" {column.shape}" if column.shape else "")
        numbers = [_number(value) for value in (column.minimum, column.mean, column.maximum)]
        note = f" ({column.num_not_finite:,} not finite)" if column.num_not_finite else ""
        table.add_row(Text(column.name), Text(type_ + note), *numbers)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3e}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value, default=str) if isinstance(value, (bool, int)) else str(value)
