"""Experiment files that a command writes, with the JSON schema for editors in the folder of the configuration."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.cli.output_files import check_new_file, write_file
from runner.config.errors import Problem, UserError
from runner.config.json_schema import FILE_NAME, experiment_schema
from runner.config.paths import conf_dir, search_dirs

MODELINE = "# yaml-language-server: $schema="
_GROUP = "experiment"


def write_experiment(file: Path, text: str) -> Path:
    """Write an experiment file with a line that names the schema, and the current schema.

    Returns:
        The file of the schema: in the folder of the configuration, which contains the folder `experiment`, or next to
        a file that is elsewhere.

    Raises:
        UserError: a file cannot be written.
    """
    folder = config_dir_of(file)
    schema = (file.parent if folder is None else folder) / FILE_NAME
    place = Path(os.path.relpath(schema, file.parent)).as_posix()
    header, _, body = text.partition("\n")  # Hydra's header is the first line
    content = f"{header}\n{MODELINE}{place if place.startswith('.') else f'./{place}'}\n{body}"
    write_file(file, content.encode(), fix=None)
    write_file(schema, schema_text(search_dirs(folder)).encode(), fix=None)
    return schema


def check_experiment_file(file: Path, may_overwrite: bool) -> None:
    """Raise `UserError` if no experiment can be written to this path."""
    if file.suffix != ".yaml" or file.parent.name != _GROUP:
        what = "an experiment must be a YAML file in a folder named experiment"
        raise UserError(Problem(what, "--output", str(file), "conf/experiment/NAME.yaml, DIR/experiment/NAME.yaml"))
    check_new_file(file, may_overwrite)
    folder = next(folder for folder in file.absolute().parents if os.path.exists(folder))
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        what = f"the file cannot be written: {folder} is not a folder, or may not be written"
        raise UserError(Problem(what, str(file), fix="choose another folder"))


def config_dir_of(file: Path) -> Path | None:
    """Return the folder that contains the folder `experiment` of a file, or None for a file that is elsewhere."""
    return next((folder.parent for folder in file.parents if folder.name == _GROUP), None)


def command_for(verb: str, file: Path) -> str:
    """Return the command that applies a verb to an experiment file."""
    folder = config_dir_of(file)
    if folder is None:
        return f"runner {verb} {shlex.quote(file.stem)}"
    name = shlex.quote(file.relative_to(folder / _GROUP).with_suffix("").as_posix())
    is_built_in = folder.resolve() == conf_dir().resolve()
    return f"runner {verb} {name}" + ("" if is_built_in else f" --config-dir {shlex.quote(str(folder))}")


def schema_text(dirs: Sequence[Path]) -> str:
    """Return the JSON schema of the experiments of a search path."""
    return json.dumps(experiment_schema(dirs), indent=1) + "\n"
