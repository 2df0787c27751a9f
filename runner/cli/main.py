"""`python -m runner`: finds the verb and runs it; mistakes of the user end here, as messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from runner.cli.arguments import check_options, split_verb, wants_stack_trace
from runner.cli.standard_streams import is_output_lost, prepare_standard_streams
from runner.cli.verbs import VERBS, describe_verbs
from runner.compat.libraries import LibraryChangedError
from runner.config.errors import Problem, RunnerError, UserError
from runner.config.paths import is_url
from runner.interrupts import Interrupted

_TARGET = "hydra.run.dir="


def with_local_runs(verb: str | None, argv: Sequence[str]) -> list[str]:
    """Return the arguments with a local path instead of each URL of a run.

    Raises:
        UserError: the store has no such run, or `hydra.run.dir` is a URL.
    """
    if VERBS[verb].arguments.split(" ")[0] not in ("RUN_DIR", "DIR"):
        return list(argv)
    from runner.config.overrides import override_value  # imports Hydra

    named = [override_value(text) for text in argv if text.startswith(_TARGET)]
    if named and is_url(named[-1]):
        what, store = "the run dir of a stored run is a local folder", named[-1].rstrip("/").rpartition("/")[0]
        expected = f"hydra.run.dir=FOLDER; with checkpoint.upload_to={store} `resume` uploads it"
        raise UserError(Problem(what, "override hydra.run.dir", named[-1], expected).render_alone())
    target = Path(named[-1]).absolute() if named else None
    return [_local(text, target, verb == "resume") if _is_url(text) else text for text in argv]


def _is_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.replace("+", "").isalnum()


def _local(url: str, target: Path | None, is_whole: bool) -> str:
    from runner.storage.fetched_run import fetch_run  # imports fsspec

    return str(fetch_run(url, target, is_whole, lambda line: print(line, file=sys.stderr, flush=True)))


EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

HELP = f"""\
usage: python -m runner [VERB] [OPTIONS] [OVERRIDES]

Train a reinforcement-learning experiment that a YAML file declares.

verbs
{describe_verbs()}

options
  --config-dir DIR   a folder with your own experiments and group options
  -m, --multirun     a sweep: one run for each combination of values, as in -m seed=1,2,3
                     sweep=random, asha, pbt, pb2 or tpe chooses among them; the same command again continues the sweep
  debug=true         show stack traces with error messages
  --assert 'METRIC >= 450'
                     judge the last value of a metric, in a sweep the value of its best trial; iqm(METRIC) is the
                     inter-quartile mean over the seeds of the best combination; can be given several times
  --budget 1h30m     end after this time, with a checkpoint; a number without a unit means seconds
  --junit FILE       write a JUnit report
  --format github    validate: problems as annotations of GitHub Actions
  --trust            resume, evaluate, ...: trust files from another source; see docs/explanation/trust.md
  --version, --help

overrides
  experiment=NAME    an experiment file; env=NAME, algorithm=NAME, ... an option of a group
  algorithm.lr=1e-3  any key that `show` prints
  stop.env_runners.episode_return_mean=450
                     a metric, with dots where progress.jsonl has slashes
  hydra.run.dir=DIR  where the run writes its files; outputs/EXPERIMENT/DATE/TIME by default; a URL: uploaded to there

exit codes
  0 finished   1 failed   2 a mistake of yours, nothing was run   130 interrupted, after a checkpoint
  3 finished, but an --assert does not hold   4 the --budget was used up before the end
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_standard_streams()
    code = _run_reported(arguments)
    if is_output_lost() and code == 0 and not _is_training(arguments):
        return EXIT_FAILED
    return code


def _run_reported(arguments: list[str]) -> int:
    code = 0
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except (RunnerError, LibraryChangedError) as error:
        report_error(error, arguments)
        return error.exit_code
    except Interrupted as end:
        print(f"interrupted by {end}, before the end; no result was written", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `python -m runner list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code


def _is_training(argv: Sequence[str]) -> bool:
    """Return whether the command trains: its results are files, so it needs no stdout."""
    return not _asks_for_text(argv) and VERBS[split_verb(argv)[0]].is_training


def _asks_for_text(argv: Sequence[str]) -> bool:
    return any(text in ("-h", "--help", "--version") for text in argv)


def _run(argv: list[str]) -> int:
    if not argv:
        print(HELP, end="")
        return 2
    if _asks_for_text(argv):
        print(HELP if "-h" in argv or "--help" in argv else f"runner {_version()}\n", end="")
        return 0
    verb, rest = split_verb(argv)
    check_options(verb, rest)
    code: int = importlib.import_module(VERBS[verb].module).main(with_local_runs(verb, rest))
    return code


def report_error(error: RunnerError | LibraryChangedError, argv: Sequence[str]) -> None:
    """Print the message to stderr, with the stack trace where `debug=true` is asked for."""
    if wants_stack_trace(argv):
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(error, file=sys.stderr, flush=True)


def _version() -> str:
    try:
        return importlib.metadata.version("runner")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
