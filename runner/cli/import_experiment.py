"""`import sb3-zoo FILE --env ENV`, `import rllib FILE --algorithm NAME`: an experiment out of another system's file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.cli.arguments import UsageError, take_options
from runner.cli.export import check_new_file
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem, UserError, nearest_match
from runner.config.validation import build_experiment_config
from runner.importing import Imported, import_rllib, import_sb3_zoo, one_line
from runner.tracking.progress_log import write_atomically

_ENV, _ALGORITHM, _OUTPUT, _FORCE = "--env", "--algorithm", "--output", "--force"
_USAGES = {
    "sb3-zoo": "python -m runner import sb3-zoo hyperparams/ppo.yml --env LunarLander-v3 [--output FILE]",
    "rllib": "python -m runner import rllib config.json --algorithm PPO [--env LunarLander-v3] [--output FILE]",
}


def main(argv: Sequence[str]) -> int:
    """Print the experiment, or write it to a file and say what has no counterpart."""
    options, words = take_options(argv, (_ENV, _ALGORITHM, _OUTPUT), (_FORCE,))
    imported = _import(words, options)
    _find_problems(imported)
    text = imported.to_yaml()
    if _OUTPUT not in options:
        print(text, end="")
        return 0
    output = Path(options[_OUTPUT])
    check_new_file(output, may_overwrite=_FORCE in options)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text.encode())
    except OSError as error:
        raise UserError(Problem(f"the file cannot be written: {error}", str(output)).render_alone()) from error
    print(f"imported {one_line(imported.source)}\n  experiment  {output}")
    for requirement in imported.requirements:
        print(f"  read it first   training {requirement}")
    for key, reason in imported.missing.items():
        print(f"  no counterpart  {one_line(key)}: {one_line(reason)}")
    for problem in imported.problems:
        print(f"  does not validate  {one_line(problem)}")
    return 0


def _find_problems(imported: Imported) -> None:
    """Validate the experiment, and note the problems that the import has not explained yet."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "experiment", "imported.yaml")
        file.parent.mkdir()
        file.write_text(imported.to_yaml())
        try:
            build_experiment_config(compose_experiment(["+experiment=imported"], Path(folder)))
        except ConfigError as error:
            env = imported.values.get("env", {}).get("env") if "env" in imported.missing else None
            imported.problems = [problem.what for problem in error.problems if env is None or problem.got != env]


def _import(words: Sequence[str], options: Mapping[str, str]) -> Imported:
    if not words or words[0] not in _USAGES:
        nearest = nearest_match(words[0], _USAGES) if words else None
        hint = f"\n   did you mean  {nearest}" if nearest else ""
        raise UsageError(
            "import takes a system and its file\n   expected      " + "\n            ".join(_USAGES.values()) + hint
        )
    system = words[0]
    usage = f"\n   expected      {_USAGES[system]}"
    if len(words) != 2:
        raise UsageError(f"import {system} takes one file{usage}")
    path = Path(words[1])
    if system == "rllib":
        return import_rllib(path, options.get(_ALGORITHM), options.get(_ENV))
    if _ENV not in options:
        raise UsageError(f"import sb3-zoo needs {_ENV}{usage}")
    if _ALGORITHM in options:
        raise UsageError(f"import sb3-zoo takes no {_ALGORITHM}: the file's name says it{usage}")
    return import_sb3_zoo(path, options[_ENV])
