"""Dotted paths (`_target_`, `loss`, ...) checked by reading source files, without importing them.

Importing torch costs over a second; parsing the one file that defines a class costs milliseconds. Where the
source cannot tell (C extensions, star imports, decorators, dynamic attributes), nothing is reported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.config.errors import list_names, nearest_match
from runner.config.source_modules import MissingNameError, SourceModule, UnknowableError, open_module

_MAX_DEPTH = 20
_PLAIN_BASES = {"object", "Generic", "Protocol", "ABC"}


@dataclass(frozen=True)
class TargetFault:
    """What is wrong with a dotted path or with the arguments given to what it names."""

    what: str
    allowed: str | None = None
    nearest: str | None = None


@dataclass(frozen=True)
class _Definition:
    """A class or function and the module that defines it."""

    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    module: SourceModule


def find_target_fault(path: str, arguments: Iterable[str] = (), may_be_module: bool = False) -> TargetFault | None:
    """The fault of a dotted path to a class or function that will be called with these keyword arguments."""
    if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
        return TargetFault(f"{path} is no dotted path of a class or function", "package.module.Name")
    if path.split(".")[0] in sys.stdlib_module_names:
        return TargetFault(f"{path} is part of Python itself", "a class or function of an installed package")
    try:
        found = _resolve(path, _MAX_DEPTH)
        if isinstance(found, SourceModule):
            return None if may_be_module else TargetFault(f"{path} is a module, not a class or function")
        allowed = _keywords_of(found, _MAX_DEPTH)
    except MissingNameError as missing:
        nearest = nearest_match(missing.name, missing.options)
        return TargetFault(str(missing), list_names(missing.options, missing.name) or None, nearest)
    except UnknowableError:
        return None
    unknown = [name for name in arguments if name not in allowed]
    if not unknown:
        return None
    what = f"{path.rpartition('.')[2]} takes no argument {', '.join(unknown)}"
    return TargetFault(what, list_names(allowed, unknown[0]) or "no arguments", nearest_match(unknown[0], allowed))


def _resolve(path: str, depth: int) -> _Definition | SourceModule:
    if depth == 0:
        raise UnknowableError
    parts = path.split(".")
    module = open_module(parts[0])
    for index, name in enumerate(parts[1:], start=1):
        if not module.defines(name) and module.has_submodule(name):
            module = open_module(".".join(parts[: index + 1]))
            continue
        return _resolve_in(module, parts[index:], depth)
    return module


def _resolve_in(module: SourceModule, names: list[str], depth: int) -> _Definition | SourceModule:
    if depth == 0:
        raise UnknowableError
    name, rest = names[0], names[1:]
    node = module.definitions.get(name)
    if isinstance(node, ast.ClassDef):
        return _resolve_member(_Definition(node, module), rest)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not rest:
        return _Definition(node, module)
    if name in module.imports:
        return _follow(*module.imports[name], rest, depth)
    if name in module.exports:
        return _follow(module.exports[name], name, rest, depth)
    if node is not None or not module.is_complete:
        raise UnknowableError
    raise MissingNameError(f"{module.name} has no {name}", name, module.public_names())


def _follow(module_name: str, name: str | None, rest: list[str], depth: int) -> _Definition | SourceModule:
    """What another module has under `name`; an import that leads nowhere may be guarded: nothing is known."""
    path = [*([name] if name else []), *rest]
    try:
        module = open_module(module_name)
        if not path:
            return module
        if not module.defines(path[0]) and module.has_submodule(path[0]):
            return _resolve(".".join([module_name, *path]), depth - 1)
        return _resolve_in(module, path, depth - 1)
    except MissingNameError:
        raise UnknowableError from None


def _resolve_member(owner: _Definition, names: list[str]) -> _Definition:
    if not names:
        return owner
    raise UnknowableError


def _keywords_of(found: _Definition, depth: int) -> list[str]:
    if isinstance(found.node, ast.ClassDef):
        return _constructor_keywords(found, depth) or []
    if found.node.decorator_list:
        raise UnknowableError
    return _parameters(found.node, skip=0)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int) -> list[str]:
    if node.args.kwarg is not None:
        raise UnknowableError
    positional = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
    names = positional[max(skip, len(node.args.posonlyargs)) :]
    return names + [argument.arg for argument in node.args.kwonlyargs]


def _constructor_keywords(found: _Definition, depth: int) -> list[str] | None:
    """Keyword arguments of a class's constructor; None when neither it nor its bases have one."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    metaclasses = [_dotted(keyword.value) for keyword in node.keywords if keyword.arg == "metaclass"]
    is_plain = all(name in ("ABCMeta", "abc.ABCMeta") for name in metaclasses)
    if depth == 0 or not is_plain or "__new__" in methods:
        raise UnknowableError
    if node.decorator_list:
        return _dataclass_keywords(found, depth)
    if "__init__" in methods:
        if methods["__init__"].decorator_list:
            raise UnknowableError
        return _parameters(methods["__init__"], skip=1)
    for base in _bases(found, depth):
        keywords = _constructor_keywords(base, depth - 1)
        if keywords is not None:
            return keywords
    return None


def _dataclass_keywords(found: _Definition, depth: int) -> list[str]:
    node = found.node
    assert isinstance(node, ast.ClassDef)
    decorators = [_dotted(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]
    has_init = any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body)
    if has_init or any(name not in ("dataclass", "dataclasses.dataclass") for name in decorators):
        raise UnknowableError
    names: list[str] = []
    for base in reversed(_bases(found, depth)):
        names += _constructor_keywords(base, depth - 1) or []
    return names + [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_init_field(item)
    ]


def _is_init_field(item: ast.AnnAssign) -> bool:
    if "ClassVar" in ast.unparse(item.annotation):
        return False
    keywords = item.value.keywords if isinstance(item.value, ast.Call) else []
    return not any(keyword.arg == "init" and ast.unparse(keyword.value) == "False" for keyword in keywords)


def _bases(found: _Definition, depth: int) -> list[_Definition]:
    node = found.node
    assert isinstance(node, ast.ClassDef)
    bases = []
    for base in node.bases:
        name = _dotted(base.value if isinstance(base, ast.Subscript) else base)
        if name.rpartition(".")[2] in _PLAIN_BASES:
            continue
        try:
            resolved = _resolve_in(found.module, name.split("."), depth - 1)
        except MissingNameError:
            raise UnknowableError from None
        if isinstance(resolved, SourceModule) or not isinstance(resolved.node, ast.ClassDef):
            raise UnknowableError
        bases.append(resolved)
    return bases


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise UnknowableError


def find_ancestors(path: str) -> list[str]:
    """Where the thing at a dotted path and all its base classes are defined, as `module.Name`, without importing them.

    Empty where the source does not tell; bases that it does not tell are left out.
    """
    try:
        found = _resolve(path, _MAX_DEPTH)
    except (MissingNameError, UnknowableError):
        return []
    return [] if isinstance(found, SourceModule) else list(dict.fromkeys(_lineage(found, _MAX_DEPTH)))


def _lineage(found: _Definition, depth: int) -> Iterator[str]:
    yield f"{found.module.name}.{found.node.name}"
    for base in found.node.bases if isinstance(found.node, ast.ClassDef) and depth else ():
        try:
            name = _dotted(base.value if isinstance(base, ast.Subscript) else base)
            resolved = _resolve_in(found.module, name.split("."), _MAX_DEPTH)
        except (MissingNameError, UnknowableError):
            continue
        if not isinstance(resolved, SourceModule):
            yield from _lineage(resolved, depth - 1)
