"""`python -m runner`: finds the verb and runs it; a person's mistakes end here, as messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence

from runner.cli.arguments import check_options, split_verb, wants_stack_trace
from runner.config.errors import RunnerError

EXIT_INTERRUPTED = 130

HELP = """\
usage: python -m runner [VERB] [OPTIONS] [OVERRIDES]

Train a reinforcement-learning experiment that a YAML file declares.

verbs
  (none)             train       python -m runner +experiment=ppo_cartpole algorithm.lr=1e-3 seed=7
  validate           check the configuration, all mistakes at once
                                 python -m runner validate +experiment=ppo_cartpole
  show               print the composed configuration with the source of each value
                                 python -m runner show +experiment=ppo_cartpole
  list               print the experiments and the options of each group
                                 python -m runner list
  resume RUN_DIR     go on from the last checkpoint; overrides stay in force for later resumes
                                 python -m runner resume RUN_DIR stop.training_iteration=50
                     --module-only: a new run with the module of the checkpoint
                                 python -m runner resume RUN_DIR --module-only experiment=ppo_cartpole
  evaluate RUN_DIR   evaluate the last checkpoint
                                 python -m runner evaluate RUN_DIR evaluation.evaluation_duration=50
  record RUN_DIR     record whole episodes of the last checkpoint's policy
                                 python -m runner record RUN_DIR offline.output=data/expert
  export RUN_DIR FILE
                     the last checkpoint's policy as one file, --format onnx or pt2
                                 python -m runner export RUN_DIR --format onnx policy.onnx
  register RUN_DIR   put that policy into MLflow's model registry, if it is good enough
                                 python -m runner register RUN_DIR --name NAME --if 'METRIC >= 450'
  inspect DATA       describe recorded data: schema, episodes, returns, actions
                                 python -m runner inspect data/expert
  convert            rewrite recorded data: tables or other formats to episodes, or back
                                 python -m runner convert offline.input_=table offline.output=episodes
  rllink check HOST:PORT
                     put an RLlink server through each rule of its specification
                                 python -m runner rllink check 127.0.0.1:5556 --read-only
  sweep best SWEEP_DIR
                     the best trial of a sweep; --emit FILE writes an experiment with its values
                                 python -m runner sweep best SWEEP_DIR --emit conf/experiment/NAME.yaml
  report DIR         one HTML page of a sweep or of a run, --output FILE
                                 python -m runner report outputs/ppo_cartpole/sweeps/NAME

options
  --config-dir DIR   a folder with your own experiments and group options
  -m, --multirun     a sweep, one run for each combination of values: -m seed=1,2,3
                     sweep=random, asha, pbt, pb2 or tpe draw from them; the same command again goes on
  debug=true         show stack traces with error messages
  --assert 'METRIC >= 450'
                     judge the last value of a metric; of a sweep that of its best trial; several times
  --budget 1h30m     end after so long, with checkpoints; 90 are seconds
  --junit FILE       write a JUnit report
  --format github    validate: problems as annotations of GitHub Actions
  --trust            resume, evaluate, ...: follow files that somebody else wrote; docs/trust.md says what they may do
  --version, --help

overrides
  experiment=NAME    an experiment file; env=NAME, algorithm=NAME, ... an option of a group
  algorithm.lr=1e-3  any key that `show` prints
  stop.env_runners.episode_return_mean=450
                     a metric, with dots where progress.jsonl has slashes
  hydra.run.dir=DIR  where the run writes its files; outputs/EXPERIMENT/DATE/TIME by default

exit codes
  0 finished   1 failed   2 your mistake, nothing was run   130 interrupted, after a checkpoint
  3 finished, but an --assert does not hold   4 the --budget was used up before the end
"""

_MODULES = {
    None: "runner.cli.train",
    "validate": "runner.cli.validate",
    "show": "runner.cli.show",
    "list": "runner.cli.list_options",
    "resume": "runner.cli.resume",
    "evaluate": "runner.cli.evaluate",
    "record": "runner.cli.record",
    "export": "runner.cli.export",
    "register": "runner.cli.register",
    "inspect": "runner.cli.inspect",
    "convert": "runner.cli.convert",
    "rllink": "runner.cli.rllink",
    "sweep": "runner.cli.sweep_best",
    "report": "runner.cli.report",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except RunnerError as error:
        report_error(error, arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `python -m runner list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code


def _run(argv: list[str]) -> int:
    if not argv:
        print(HELP, end="")
        return 2
    if any(text in ("-h", "--help") for text in argv):
        print(HELP, end="")
        return 0
    if "--version" in argv:
        print(f"runner {_version()}")
        return 0
    verb, rest = split_verb(argv)
    check_options(verb, rest)
    code: int = importlib.import_module(_MODULES[verb]).main(rest)
    return code


def report_error(error: RunnerError, argv: Sequence[str]) -> None:
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
