"""The entry point `runner`: find the verb, run it, and print mistakes of the user as messages."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

from runner.cli.arguments import Arguments, parse_arguments, split_verb, wants_stack_trace
from runner.cli.standard_streams import is_output_lost, prepare_standard_streams
from runner.cli.verbs import CANDIDATES, DEFAULT_VERB, HELP, RUN_WORDS, VERBS, VERSION, subverbs_of
from runner.compat.libraries import LibraryChangedError
from runner.config.errors import RunnerError
from runner.config.exit_codes import ExitCode
from runner.config.paths import runner_version
from runner.interrupts import Interrupted

_LOG_FORMAT = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    texts = list(sys.argv[1:] if argv is None else argv)
    prepare_standard_streams()
    code = _run_reported(texts)
    if is_output_lost() and code == 0 and not _is_training(texts):
        return ExitCode.FAILED
    return code


def _run_reported(argv: list[str]) -> int:
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except (RunnerError, LibraryChangedError) as error:
        report_error(error, wants_stack_trace(argv))
        return error.exit_code
    except Interrupted as end:
        print(f"interrupted by {end} before the command ended; no result was written", file=sys.stderr, flush=True)
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # `runner list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE


def _is_training(argv: Sequence[str]) -> bool:
    """Return whether the command trains: its results are files, so it needs no stdout."""
    return bool(argv) and _requested_text(argv) is None and VERBS[split_verb(argv)[0]].is_training


def _run(argv: list[str]) -> int:
    text = _requested_text(argv)
    if text is not None:
        print(text, end="")
        return 0 if argv else ExitCode.MISTAKE
    arguments = parse_arguments(argv)
    with _verbosity(arguments):
        if not RUN_WORDS.isdisjoint(VERBS[arguments.verb].word_names):
            from runner.cli.named_runs import with_local_runs

            arguments = with_local_runs(arguments)
        code: int = importlib.import_module(VERBS[arguments.verb].module).main(arguments)
        return code


def _requested_text(argv: Sequence[str]) -> str | None:
    """Return the help, the version or completions; None for a command."""
    if argv[:2] == ["completion", CANDIDATES]:
        from runner.cli.completion import complete

        return "".join(f"{candidate}\n" for candidate in complete(argv[2:]))
    if any(text in VERSION.names for text in argv):
        return f"runner {runner_version() or '(not installed)'}\n"
    if argv and argv[0] != "help" and not any(text in HELP.names for text in argv):
        return None
    from runner.cli.help import general_help, verb_help

    words = [text for text in argv[argv[:1] == ["help"] :] if not text.startswith("-")]
    if not words:
        return general_help()
    return verb_help(_verb_of(words))


def _verb_of(words: Sequence[str]) -> str:
    """Return the verb that these words begin with, or the first word of several verbs; raises `UsageError`."""
    if len(words) == 1 and subverbs_of(words[0]):
        return words[0]
    verb, rest = split_verb(words)
    is_typed = words[0] == verb.partition(" ")[0]
    return verb if is_typed or rest else DEFAULT_VERB


@contextmanager
def _verbosity(arguments: Arguments) -> Iterator[None]:
    """Apply `--quiet` and `--verbose` in this context."""
    if arguments.has("--verbose"):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_LOG_FORMAT))
        handler.addFilter(lambda record: record.name != "runner")  # the lines that a run prints
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(logging.INFO)
    if not arguments.has("--quiet"):
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def report_error(error: RunnerError | LibraryChangedError, is_debugging: bool) -> None:
    """Print the message to stderr, or the stack trace with `--debug`."""
    if is_debugging:
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(error, file=sys.stderr, flush=True)
