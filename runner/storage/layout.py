"""Where the parts of a run lie in a store.

```
checkpoints/iteration_000010/manifest.json    names the files of the checkpoint, with a digest each
checkpoints/files/<digest>                    a file of one or several checkpoints
progress.jsonl, .hydra/config.yaml, ...       as in the run dir
```
A checkpoint is there once its manifest is. Files that several checkpoints share, as the segments of replay buffers, are
there once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from runner.checkpoints.checkpoint import MANIFEST
from runner.config.stores import local_copy_of

CHECKPOINTS = "checkpoints/"
FILES = f"{CHECKPOINTS}files/"
_MANIFEST = re.compile(rf"{CHECKPOINTS}(iteration_\d+)/{MANIFEST}")
_OUTPUTS = "outputs"


def manifest_path(name: str) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{CHECKPOINTS}{name}/{MANIFEST}"


def checkpoint_names(paths: Iterable[str]) -> list[str]:
    """Return the names of the checkpoints that have a manifest, oldest first."""
    names = [match[1] for path in paths if (match := _MANIFEST.fullmatch(path))]
    return sorted(names, key=iteration_of)


def iteration_of(name: str) -> int:
    """Return the iteration of a checkpoint's name."""
    return int(name.removeprefix("iteration_"))


def url_of_run(store: str, run_dir: Path) -> str:
    """Return the URL of a run in a store: below it as the run dir is below `outputs`; elsewhere by its last name.

    A run dir that is the local copy of a URL in the store has this URL.
    """
    parts, by_name = run_dir.parts, f"{store.rstrip('/')}/{run_dir.name}"
    copy = local_copy_of(by_name).parts
    if _OUTPUTS not in parts or parts[-len(copy) :] == copy:
        return by_name
    after = len(parts) - parts[::-1].index(_OUTPUTS)
    return "/".join([store.rstrip("/"), *parts[after:]])


def run_dir_of(url: str, store: str | None) -> Path:
    """Return the run dir that `url_of_run` gives this URL, in `outputs` of the working folder.

    For a URL right below the store it is the local copy, whichever other folder of this name there may be.

    Args:
        url: of the run.
        store: that the run was uploaded to; None: not known.
    """
    base = f"{store.rstrip('/')}/" if store else ""
    is_below = bool(base) and url.startswith(base)
    below = url.removeprefix(base) if is_below else url.rpartition("/")[2]
    if is_below and "/" not in below:
        return Path.cwd() / local_copy_of(url)
    parts = [part for part in below.split("/") if part not in ("", ".", "..")]
    return Path.cwd().joinpath(_OUTPUTS, *parts)
