"""Data of a run for its page: metrics, videos, configuration and environment."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.documents import read_regular
from runner.pages.page import Block, Cell, Code, Table, Text, Video
from runner.tracking.headline import resume_command
from runner.tracking.series import Column, last_values


@dataclass(frozen=True)
class RunData:
    """State of a run.

    Attributes:
        path: run dir.
        experiment: name of the experiment, or of the folder if it is unknown.
        status: running, finished, failed, interrupted, or unfinished for a killed run.
        stop_reason: reason why it ended.
        columns: metric -> one number per iteration; NaN if it is missing.
        axis: metric of the x-axis.
        environment: versions and machine.
        config: configuration as YAML, or empty if it is missing.
        overrides: overrides of the command line.
        checkpoint: newest checkpoint, or empty if there is none.
        best_checkpoint: best checkpoint by `checkpoint.metric`, or empty if there is none.
        videos: MP4 files of recorded episodes, oldest first.
    """

    path: Path
    experiment: str
    status: str
    stop_reason: str
    columns: Mapping[str, Column]
    axis: str
    environment: Mapping[str, Any]
    config: str
    overrides: list[str]
    checkpoint: str
    videos: Sequence[Path] = ()
    best_checkpoint: str = ""

    @property
    def metrics(self) -> dict[str, float]:
        """Last number of each metric."""
        return last_values(self.columns)


MOST_VIDEO_BYTES = 16_000_000


def embed_video(file: Path) -> str:
    """Return a video as a `data:` URL. Raises OSError."""
    return f"data:video/mp4;base64,{base64.b64encode(read_regular(file, MOST_VIDEO_BYTES)).decode()}"


def videos(record: RunData, url_of: Callable[[Path], str]) -> Iterator[Block]:
    """Yield the newest video, and the location of the others."""
    if not record.videos:
        return
    newest, iteration = record.videos[-1], record.videos[-1].stem.removeprefix("iteration_").lstrip("0")
    try:
        url = url_of(newest)
    except OSError as error:
        yield Text(f"{newest} cannot be shown: {error}")
        return
    others = f"; {len(record.videos) - 1} earlier ones are in {newest.parent}" if len(record.videos) > 1 else ""
    yield Video(url, f"Evaluation after iteration {iteration}{others}.")


def configuration(record: RunData) -> Iterator[Block]:
    """Yield the overrides, the resume command and the composed configuration."""
    if record.overrides:
        yield Code("\n".join(record.overrides))
    if record.checkpoint:
        yield Code(resume_command(record.path))
    if record.config:
        yield Code(record.config, "config.yaml")


def environment(record: RunData) -> Iterator[Block]:
    """Yield revision, versions and machine."""
    known = record.environment
    if not known:
        return
    git = known.get("git") or {}
    revision = git.get("revision")
    rows = {
        "git revision": f"{revision}{', with changes' if git.get('dirty') else ''}" if revision else "-",
        **{name: str(version) for name, version in (known.get("versions") or {}).items()},
        "python": str(known.get("python", "-")),
        "platform": str(known.get("platform", "-")),
        "CPUs": f"{known.get('cpus_available', '-')} of {known.get('cpu_count', '-')}",
    }
    yield Table(["", ""], [[Cell(name), Cell(text)] for name, text in rows.items()], is_sortable=False)
