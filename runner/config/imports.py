"""Import of classes and functions that a configuration names by dotted path."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from runner.config.errors import ConfigError, Problem, nearest_match


def import_target(
    path: str,
    where: str,
    *bases: type,
    or_function: bool = False,
    later_bases: Callable[[], tuple[type, ...]] = tuple,
) -> Any:
    """Import the class or function at a dotted path.

    Args:
        path: `package.module.Name`.
        where: configuration key for the message.
        bases: base classes, one of which the target must inherit; empty: a function is also valid.
        or_function: whether a function that returns such an object is also valid.
        later_bases: function that returns further base classes, of packages that only the target's module may import.

    Raises:
        ConfigError: the path does not exist, or is an object of another kind. The configuration of a checkpoint may be
            untrusted: only classes of the expected kind are called with its arguments, never a function such as
            `subprocess.call`.
    """
    module_path, _, name = path.rpartition(".")
    if not module_path or module_path.split(".")[0] in sys.stdlib_module_names:
        raise _error(f"{path!r} is not a class or function of an installed package", where, path)
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise _error(f"{module_path} cannot be imported: {error}", where, path) from error
    except SystemExit as error:
        raise _error(f"{module_path} cannot be imported: {describe_exit(error)}", where, path) from error
    target = getattr(module, name, None)
    if target is None:
        public = [option for option in dir(module) if not option.startswith("_")]
        raise _error(f"{module_path} does not define {name}", where, path, nearest_match(name, public))
    bases = (*bases, *later_bases())
    is_factory = or_function and inspect.isfunction(target)
    if bases and not is_factory and not (inspect.isclass(target) and issubclass(target, bases)):
        names = " or ".join(f"{base.__module__}.{base.__qualname__}" for base in bases)
        raise _error(f"{path} is not a subclass of {names}", where, path)
    if not callable(target):
        raise _error(f"{path} is neither a class nor a function", where, path)
    return target


def describe_exit(error: SystemExit) -> str:
    """Describe the exit of a script that reads its arguments although it is only imported."""
    return f"it ends the process (exit code {error.code}), which only a script may do: if __name__ == '__main__'"


def _error(what: str, where: str, got: str, nearest: str | None = None) -> ConfigError:
    return ConfigError([Problem(what, where=where, got=got, nearest=nearest)])
