"""`import sb3-zoo FILE --env ENV`: an experiment out of the configuration of another system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.arguments import UsageError, take_options
from runner.cli.export import check_new_file
from runner.config.errors import Problem, UserError
from runner.importing import import_sb3_zoo, one_line
from runner.tracking.result_file import write_atomically

_ENV, _OUTPUT, _FORCE = "--env", "--output", "--force"
_USAGE = "python -m runner import sb3-zoo hyperparams/ppo.yml --env LunarLander-v3 [--output FILE]"


def main(argv: Sequence[str]) -> int:
    """Print the experiment, or write it to a file and say what has no counterpart."""
    options, words = take_options(argv, (_ENV, _OUTPUT), (_FORCE,))
    if len(words) != 2 or words[0] != "sb3-zoo" or _ENV not in options:
        raise UsageError(f"import takes a system, a file and an environment\n   allowed  {_USAGE}")
    imported = import_sb3_zoo(Path(words[1]), options[_ENV])
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
    for key, reason in imported.missing.items():
        print(f"  no counterpart  {one_line(key)}: {one_line(reason)}")
    return 0
