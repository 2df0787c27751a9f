"""`inspect DATA`: the content of recorded data, as text or with `--json` as JSON."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace

from runner.cli.arguments import Arguments, UsageError
from runner.config.compose import compose_experiment
from runner.config.errors import Problem
from runner.config.path_fields import absolute_paths
from runner.config.validation import build_experiment_config

_PLAIN_WIDTH = 80
_WIDEST = 100


def main(arguments: Arguments) -> int:
    """Read the data once and print a summary."""
    composed = compose_experiment(arguments.overrides, arguments.config_dir)
    config = build_experiment_config(composed, ()).offline
    if config.input_ is not None:
        what = "inspect takes the data as an argument, not as offline.input_"
        raise UsageError(Problem(what, fix="runner inspect data/expert"))
    from runner.offline.reading.inspection import inspect_data

    named = absolute_paths({"offline": {**composed.values["offline"], "input_": arguments.words[0]}})
    inspection = inspect_data(replace(config, input_=named["offline"]["input_"]))
    if arguments.has("--json"):
        print(json.dumps(asdict(inspection), indent=2, default=str))
        return 0
    if not sys.stdout.isatty():
        from runner.offline.reading.inspection_report import plain_report

        print(plain_report(inspection, _PLAIN_WIDTH))
        return 0
    from rich.console import Console

    from runner.offline.reading.inspection_report import print_report

    print_report(inspection, Console(width=min(_WIDEST, shutil.get_terminal_size().columns), highlight=False))
    return 0
