"""RUN_DIR as the URL of a run in a store: it is fetched, and the command goes on with the local run dir."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from runner.cli.verbs import VERBS
from runner.config.errors import Problem, UserError
from runner.config.stores import is_url

_TARGET = "hydra.run.dir="


def with_local_runs(verb: str | None, argv: Sequence[str]) -> list[str]:
    """Return the arguments with a local path in the place of each URL of a run.

    Raises:
        UserError: the store has no such run, or `hydra.run.dir` is a URL.
    """
    if VERBS[verb].arguments.split(" ")[0] not in ("RUN_DIR", "DIR"):
        return list(argv)
    from runner.config.overrides import override_value  # imports Hydra

    named = [override_value(text) for text in argv if text.startswith(_TARGET)]
    if named and is_url(named[-1]):
        what, store = "the run dir of a stored run is a local folder", named[-1].rstrip("/").rpartition("/")[0]
        allowed = f"hydra.run.dir=FOLDER; with checkpoint.upload_to={store} `resume` uploads it"
        raise UserError(Problem(what, "override hydra.run.dir", named[-1], allowed).render_alone())
    target = Path(named[-1]).absolute() if named else None
    return [_local(text, target, verb == "resume") if _is_url(text) else text for text in argv]


def _is_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def _local(url: str, target: Path | None, is_whole: bool) -> str:
    from runner.storage.fetched_run import fetch_run  # imports fsspec

    return str(fetch_run(url, target, is_whole, lambda line: print(line, file=sys.stderr, flush=True)))
