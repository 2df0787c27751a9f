"""Parts of a run's page that are no metrics: its videos, its configuration, its environment."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.config.documents import read_regular
from runner.pages.page import Block, Cell, Code, Table, Text, Video
from runner.pages.run_data import RunData
from runner.tracking.summary import resume_command

MOST_VIDEO_BYTES = 16_000_000


def embed_video(file: Path) -> str:
    """Return a video as an address that has all of it; raises OSError."""
    return f"data:video/mp4;base64,{base64.b64encode(read_regular(file, MOST_VIDEO_BYTES)).decode()}"


def videos(record: RunData, url_of: Callable[[Path], str]) -> Iterator[Block]:
    """Yield the newest video, and where the others are."""
    if not record.videos:
        return
    newest, iteration = record.videos[-1], record.videos[-1].stem.removeprefix("iteration_").lstrip("0")
    try:
        url = url_of(newest)
    except OSError as error:
        yield Text(f"{newest} is not shown: {error}")
        return
    others = f"; {len(record.videos) - 1} earlier ones are in {newest.parent}" if len(record.videos) > 1 else ""
    yield Video(url, f"Evaluation after iteration {iteration}{others}.")


def configuration(record: RunData) -> Iterator[Block]:
    """Yield the overrides, the command that goes on, the composed configuration."""
    if record.overrides:
        yield Code("\n".join(record.overrides))
    if record.checkpoint:
        yield Code(resume_command(record.path))
    if record.config:
        yield Code(record.config, "config.yaml")


def environment(record: RunData) -> Iterator[Block]:
    """Yield the revision, versions and the machine."""
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
