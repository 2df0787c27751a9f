"""Dotted paths (`_target_`, `loss`, ...) checked by reading source files, without importing them.

Importing torch costs over a second; parsing the one file that defines a class costs milliseconds. Where the
source cannot tell (C extensions, star imports, decorators, dynamic attributes), nothing is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from runner.config.errors import list_names, nearest_match
from runner.config.source_definitions import MAX_DEPTH, Definition, inherits, resolve
from runner.config.source_modules import MissingNameError, SourceModule, UnknowableError
from runner.config.source_signatures import signature_of


@dataclass(frozen=True)
class TargetFault:
    """A fault of a dotted path, or of the arguments given to its target.

    Attributes:
        arguments: the names of arguments that are unknown or missing; empty where the path itself is at fault.
        is_missing: the arguments are missing.
    """

    what: str
    allowed: str | None = None
    nearest: str | None = None
    arguments: tuple[str, ...] = ()
    is_missing: bool = False


@dataclass(frozen=True)
class Given:
    """Arguments that runner gives by itself: a number by position, and others by name where the target takes them."""

    num_positional: int = 0
    names: tuple[str, ...] = ()


NOTHING_GIVEN = Given()


@dataclass(frozen=True)
class Kinds:
    """The kind of class that a path may name.

    Attributes:
        bases: dotted paths of class definitions, one of which a class must inherit.
        asked: the bases in words.
        has_factories: a function that returns one will do as well.
    """

    bases: tuple[str, ...]
    asked: str
    has_factories: bool = False


def find_target_fault(
    path: str,
    arguments: Iterable[str] | None = None,
    may_be_module: bool = False,
    kinds: Kinds | None = None,
    given: Given = NOTHING_GIVEN,
    is_partial: bool = False,
) -> TargetFault | None:
    """The fault of a dotted path to a class or function.

    Args:
        path: `package.module.Name`.
        arguments: names of the keyword arguments that it will be called with; None: they are not checked.
        may_be_module: a module will do.
        kinds: allowed kinds; None: any class or function.
        given: arguments that runner itself gives.
        is_partial: others give the arguments that are missing.
    """
    if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
        return TargetFault(f"{path} is no dotted path of a class or function", "package.module.Name")
    if path.split(".")[0] in sys.stdlib_module_names:
        return TargetFault(f"{path} is part of Python itself", "a class or function of an installed package")
    try:
        found = resolve(path, MAX_DEPTH)
    except MissingNameError as missing:
        nearest = nearest_match(missing.name, missing.options)
        return TargetFault(str(missing), list_names(missing.options, missing.name) or None, nearest)
    except UnknowableError:
        return None
    if isinstance(found, SourceModule):
        return None if may_be_module else TargetFault(f"{path} is a module, not a class or function")
    fault = None if kinds is None else _find_kind_fault(path, found, kinds)
    if fault is not None or arguments is None:
        return fault
    fault = _find_argument_fault(path, found, list(arguments), given)
    return None if fault is not None and fault.is_missing and is_partial else fault


def is_subclass(path: str, base: str) -> bool:
    """Whether the source says that the class at `path` inherits `base`, the dotted path of its definition."""
    try:
        found = resolve(path, MAX_DEPTH)
        return isinstance(found, Definition) and inherits(found, (base,), MAX_DEPTH)
    except (MissingNameError, UnknowableError):
        return False


def takes_argument(path: str, name: str) -> bool:
    """Whether the source says that this argument can be given by name."""
    try:
        found = resolve(path, MAX_DEPTH)
        return isinstance(found, Definition) and name in signature_of(found).names
    except (MissingNameError, UnknowableError):
        return False


def _find_kind_fault(path: str, found: Definition, kinds: Kinds) -> TargetFault | None:
    if not found.is_class:
        return None if kinds.has_factories else TargetFault(f"{path} is a function", f"a subclass of {kinds.asked}")
    try:
        if inherits(found, kinds.bases, MAX_DEPTH):
            return None
    except UnknowableError:
        return None
    return TargetFault(f"{path} is no subclass of {kinds.asked}")


def _find_argument_fault(path: str, found: Definition, arguments: list[str], given: Given) -> TargetFault | None:
    try:
        signature = signature_of(found).without_positional(given.num_positional)
    except UnknowableError:
        return None
    name, allowed = path.rpartition(".")[2], [key for key in signature.names if key not in given.names]
    unknown = [] if signature.is_open else [key for key in arguments if key not in signature.names]
    listed = list_names(allowed, unknown[0] if unknown else "") or "no arguments"
    if unknown:
        what = f"{name} takes no argument {', '.join(unknown)}"
        return TargetFault(what, listed, nearest_match(unknown[0], allowed), tuple(unknown))
    missing = [key for key in signature.required if key not in (*arguments, *given.names)]
    if missing:
        what = f"{name} needs the argument {', '.join(missing)}"
        return TargetFault(what, listed, arguments=tuple(missing), is_missing=True)
    return None
