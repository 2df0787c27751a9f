"""`import sb3-zoo FILE --env ENV`, `import rllib FILE --algorithm NAME`: an experiment from another system's file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from runner.cli.arguments import Arguments, UsageError
from runner.cli.experiment_files import write_experiment
from runner.cli.output_files import check_new_file
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.validation import build_experiment_config
from runner.importing import Imported, import_rllib, import_sb3_zoo, one_line


def main(arguments: Arguments) -> int:
    """Print the experiment, or write it to a file and list the keys without a counterpart."""
    imported = _import(arguments)
    _find_problems(imported)
    text, output = imported.to_yaml(), arguments.path("--output")
    if output is None:
        print(text, end="")
        return 0
    check_new_file(output, arguments.has("--force"))
    write_experiment(output, text)
    print(f"imported {one_line(imported.source)}\n  experiment  {output}")
    for requirement in imported.requirements:
        print(f"  review first    training {requirement}")
    for key, reason in imported.missing.items():
        print(f"  no counterpart  {one_line(key)}: {one_line(reason)}")
    for problem in imported.problems:
        print(f"  does not validate  {one_line(problem)}")
    return 0


def _find_problems(imported: Imported) -> None:
    """Validate the experiment, and note the problems that the import does not explain."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "experiment", "imported.yaml")
        file.parent.mkdir()
        file.write_text(imported.to_yaml())
        try:
            build_experiment_config(compose_experiment(["experiment=imported"], Path(folder)))
        except ConfigError as error:
            env = imported.values.get("env", {}).get("env") if "env" in imported.missing else None
            imported.problems = [problem.what for problem in error.problems if env is None or problem.got != env]


def _import(arguments: Arguments) -> Imported:
    path, env = Path(arguments.words[0]), arguments.value("--env")
    if arguments.verb == "import rllib":
        return import_rllib(path, arguments.value("--algorithm"), env)
    if env is None:
        fix = "--env ENV, such as --env LunarLander-v3"
        raise UsageError(Problem("--env is missing", expected="a key of the file", fix=fix))
    return import_sb3_zoo(path, env)
