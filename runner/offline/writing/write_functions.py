"""Functions that `offline.output_write_method` names beside our own formats: of `ray.data.Dataset`, or of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.config.imports import import_target
from runner.config.offline import OfflineConfig
from runner.offline.files.ray_functions import RayFunction, described, find_argument_faults

METHOD, KWARGS = "offline.output_write_method", "offline.output_write_method_kwargs"
# What is ours, and works with every function: which columns are written, in this order.
COLUMNS = "columns"
# Write what they are given by themselves, so that these have no effect, or would leave more than one file.
_GIVEN = ("filesystem", "mode", "try_create_dir", "min_rows_per_file", "max_rows_per_file", "num_rows_per_file")
_NO_PLACE = "takes no place to write to, or an object in its stead"
# What cannot be called, and why.
_REFUSED = {
    "write_datasink": _NO_PLACE,
    "write_turbopuffer": _NO_PLACE,
    "write_numpy": "writes one column, and a step has several",
    "write_images": "writes one column, and a step has several",
}
_EXTENSIONS = {"write_webdataset": "tar"}


def find_write_function(method: str, ours: Mapping[str, Any]) -> RayFunction:
    """Return the function.

    Args:
        method: what `output_write_method` names, none of `ours`.
        ours: names of our own ways to write.

    Raises:
        ConfigError: there is no such function, it takes no `offline.output`, or cannot hold recorded steps.
    """
    if "." in method:
        return described(method, import_target(method, METHOD), METHOD, num_before=1)
    import ray.data

    functions = {name: getattr(ray.data.Dataset, name) for name in dir(ray.data.Dataset) if name.startswith("write_")}
    known = [*ours, *(name for name in functions if name not in ours and name not in _REFUSED)]
    if method not in functions or method in _REFUSED:
        what = f"{method} of ray.data {_REFUSED[method]}" if method in _REFUSED else "there is no such way to write"
        allowed = f"{list_names(known, method)}; or package.module.function of your own, which takes a Ray data set"
        raise ConfigError([Problem(what, METHOD, method, allowed, nearest_match(method, known))])
    is_of_files = "filename_provider" in inspect.signature(functions[method]).parameters
    return described(method, functions[method], METHOD, _GIVEN if is_of_files else (), is_of_files, num_before=1)


def check_write_function(config: OfflineConfig, found: RayFunction) -> None:
    """Refuse arguments that the function does not take; raises `ConfigError`."""
    given, known = config.output_write_method_kwargs, [COLUMNS, *found.options]
    problems = [
        Problem(f"{found.name} has no option {name}", KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in given.items()
        if name not in known and (not found.is_open or name in _GIVEN)
    ]
    if found.name == "write_webdataset" and "encoder" not in given:
        what = "write_webdataset writes files that are named by their endings, and columns of steps have none"
        allowed = "encoder: {_target_: package.module.function, _partial_: true}, which makes bytes of a row"
        problems.append(Problem(what, f"{KWARGS}.encoder", allowed=allowed))
    columns = given.get(COLUMNS, [])
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        problems.append(Problem("columns are names", f"{KWARGS}.{COLUMNS}", str(columns), "[eps_id, t, obs, ...]"))
    problems = problems or find_argument_faults(found, given, KWARGS)
    if problems:
        raise ConfigError(problems)


def extension_of(found: RayFunction) -> str:
    """Return how the names of files that a function writes end, without the dot."""
    return _EXTENSIONS.get(found.name, found.name.removeprefix("write_"))
