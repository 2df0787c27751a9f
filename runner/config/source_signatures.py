"""Arguments of a class or function, read from its source file."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from runner.config.source_definitions import MAX_DEPTH, Definition, bases_of, dotted, is_dataclass_or_plain
from runner.config.source_modules import UnknowableError


@dataclass(frozen=True)
class Signature:
    """The arguments that can be given by name.

    Attributes:
        names: all arguments, positional ones first.
        required: arguments without a default.
        num_positional: number of `names` that can be given by position.
        is_open: further arguments are taken, too (`**kwargs`).
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    num_positional: int
    is_open: bool = False

    def without_positional(self, count: int) -> Signature:
        """Return the signature that remains when the first `count` arguments are given by position."""
        given = self.names[: min(count, self.num_positional)]
        required = tuple(name for name in self.required if name not in given)
        return Signature(self.names[len(given) :], required, self.num_positional - len(given), self.is_open)

    def without(self, names: Iterable[str]) -> Signature:
        """Return the signature that remains when these arguments are given by name."""
        left, given = [name for name in self.names if name not in names], set(names)
        required = tuple(name for name in self.required if name not in given)
        return Signature(tuple(left), required, 0, self.is_open)


def signature_of(found: Definition) -> Signature:
    """The arguments of a class's constructor or of a function; raises `UnknowableError`."""
    if isinstance(found.node, ast.ClassDef):
        return _constructor_signature(found, MAX_DEPTH) or Signature((), (), 0)
    if found.node.decorator_list:
        raise UnknowableError
    return _parameters(found.node, skip=0)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int) -> Signature:
    arguments = node.args
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    first = max(skip, len(arguments.posonlyargs))
    if len(arguments.posonlyargs) > skip:
        raise UnknowableError  # they cannot be given by name
    num_required = len(positional) - len(arguments.defaults)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required = [*positional[first:num_required], *(item.arg for item, default in by_name if default is None)]
    names = [*positional[first:], *(argument.arg for argument in arguments.kwonlyargs)]
    return Signature(tuple(names), tuple(required), len(positional) - first, arguments.kwarg is not None)


def _constructor_signature(found: Definition, depth: int) -> Signature | None:
    """The arguments of a class's constructor; None when neither it nor its bases have one."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    metaclasses = [dotted(keyword.value) for keyword in node.keywords if keyword.arg == "metaclass"]
    is_plain = all(name in ("ABCMeta", "abc.ABCMeta") for name in metaclasses)
    if depth == 0 or not is_plain or "__new__" in methods:
        raise UnknowableError
    if node.decorator_list:
        return _dataclass_signature(found, depth)
    if "__init__" in methods:
        if methods["__init__"].decorator_list:
            raise UnknowableError
        return _init_signature(found, methods["__init__"], depth)
    return _inherited_signature(found, depth)


def _inherited_signature(found: Definition, depth: int) -> Signature | None:
    for base in bases_of(found, depth):
        signature = _constructor_signature(base, depth - 1)
        if signature is not None:
            return signature
    return None


def _init_signature(found: Definition, init: ast.FunctionDef, depth: int) -> Signature:
    """The arguments of `__init__`; with the base class's where `**kwargs` go there and nowhere else."""
    signature = _parameters(init, skip=1)
    call = _super_call(init)
    if not signature.is_open or call is None:
        return signature
    try:
        inherited = _inherited_signature(found, depth) or Signature((), (), 0)
    except UnknowableError:
        return signature
    by_name = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    rest = inherited.without_positional(len(call.args)).without([*by_name, *signature.names])
    return Signature(
        (*signature.names, *rest.names),
        (*signature.required, *rest.required),
        signature.num_positional,
        rest.is_open,
    )


def _super_call(init: ast.FunctionDef) -> ast.Call | None:
    """Return the call `super().__init__(..., **kwargs)`, if the keyword arguments have no other use."""
    name = init.args.kwarg.arg if init.args.kwarg is not None else None
    uses = [node for node in ast.walk(init) if isinstance(node, ast.Name) and node.id == name]
    for node in ast.walk(init):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
            passed = [keyword.value for keyword in node.keywords if keyword.arg is None]
            has_stars = any(isinstance(argument, ast.Starred) for argument in node.args)
            return node if passed == uses and len(uses) == 1 and not has_stars else None
    return None


def _dataclass_signature(found: Definition, depth: int) -> Signature:
    node = found.node
    assert isinstance(node, ast.ClassDef)
    has_init = any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body)
    if has_init or not is_dataclass_or_plain(node):
        raise UnknowableError
    of_bases = [_dataclass_signature(base, depth - 1) for base in bases_of(found, depth) if _is_dataclass(base)]
    fields = {
        item.target.id: item
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and _is_init_field(item)
    }
    required = [name for name, item in fields.items() if not _has_default(item)]
    inherited = [name for base in reversed(of_bases) for name in base.required if name not in fields]
    names = tuple(dict.fromkeys([name for base in reversed(of_bases) for name in base.names] + list(fields)))
    return Signature(names, (*inherited, *required), len(names))


def _is_dataclass(found: Definition) -> bool:
    return isinstance(found.node, ast.ClassDef) and bool(found.node.decorator_list)


def _is_init_field(item: ast.AnnAssign) -> bool:
    if "ClassVar" in ast.unparse(item.annotation):
        return False
    keywords = item.value.keywords if isinstance(item.value, ast.Call) else []
    return not any(keyword.arg == "init" and ast.unparse(keyword.value) == "False" for keyword in keywords)


def _has_default(item: ast.AnnAssign) -> bool:
    """Return whether a field of a dataclass has a default, also one given in `field(...)`."""
    if isinstance(item.value, ast.Call) and dotted(item.value.func).rpartition(".")[2] == "field":
        return any(keyword.arg in ("default", "default_factory") for keyword in item.value.keywords)
    return item.value is not None
