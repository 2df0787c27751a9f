"""Checkpoints as somebody else could write them: whole, with right digests, and with whatever content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.checkpoints import checkpoint
from runner.config.signatures import SIGNATURE, signed


def rewrite_manifest(folder: Path, content: Mapping[str, Any], is_signed: bool = True) -> None:
    """Write a manifest with its right digest, signed as this installation does or not at all."""
    others = {name: value for name, value in content.items() if name not in ("digest", SIGNATURE)}
    whole = signed(others, checkpoint.KIND) if is_signed else others
    whole["digest"] = checkpoint._manifest_digest(whole)
    (folder / checkpoint.MANIFEST).write_text(json.dumps(whole))


def forge(run_dir: Path, config: Mapping[str, Any] | None = None, **others: Any) -> None:
    """Change the checkpoints of a run as a stranger could.

    Args:
        run_dir: of the run.
        config: dotted key -> value in the stored configuration.
        others: further keys of the manifest.
    """
    for path in run_dir.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text()) | others
        for key, value in (config or {}).items():
            *blocks, name = key.split(".")
            block = content["config"]
            for one in blocks:
                block = block.setdefault(one, {})
            block[name] = value
        rewrite_manifest(path.parent, content, is_signed=False)
