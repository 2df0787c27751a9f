"""Classes, functions, base classes and arguments at dotted paths, read from source files without imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.source_modules import MissingNameError, SourceModule, UnknowableError, open_module

MAX_DEPTH = 20
_PLAIN_BASES = {"object", "Generic", "Protocol", "ABC"}
# Decorators that do not replace the class.
_KEEPING = ("dataclass", "dataclasses.dataclass", "runtime_checkable", "typing.runtime_checkable")


@dataclass(frozen=True)
class Definition:
    """A class or function and the module that defines it."""

    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    module: SourceModule

    @property
    def path(self) -> str:
        """Dotted path of the definition."""
        return f"{self.module.name}.{self.node.name}"

    @property
    def is_class(self) -> bool:
        """Whether the definition is a class."""
        return isinstance(self.node, ast.ClassDef)


def resolve(path: str, depth: int = MAX_DEPTH) -> Definition | SourceModule:
    """Find the definition at a dotted path, over at most `depth` imports.

    Raises:
        MissingNameError: the path does not exist.
        UnknowableError: the source cannot be analysed.
    """
    if depth == 0:
        raise UnknowableError
    parts = path.split(".")
    module = open_module(parts[0])
    for index, name in enumerate(parts[1:], start=1):
        if not module.defines(name) and name in module.submodules:
            module = open_module(".".join(parts[: index + 1]))
            continue
        return _resolve_in(module, parts[index:], depth)
    return module


def _resolve_in(module: SourceModule, names: list[str], depth: int) -> Definition | SourceModule:
    if depth == 0:
        raise UnknowableError
    name, rest = names[0], names[1:]
    if name in module.ambiguous:
        raise UnknowableError
    node = module.definitions.get(name)
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        if rest:
            raise UnknowableError
        return Definition(node, module)
    if name in module.imports:
        return _follow(*module.imports[name], rest, depth)
    if name in module.exports:
        return _follow(module.exports[name], name, rest, depth)
    if node is not None or not module.is_complete:
        raise UnknowableError
    submodules = [one for one in module.submodules if not one.startswith("_")] if rest else []
    raise MissingNameError(f"{module.name} does not define {name}", name, {*module.public_names(), *submodules})


def _follow(module_name: str, name: str | None, rest: list[str], depth: int) -> Definition | SourceModule:
    """Find a name in another module; an import that fails may be guarded, so nothing is known."""
    path = [*([name] if name else []), *rest]
    try:
        module = open_module(module_name)
        if not path:
            return module
        if not module.defines(path[0]) and path[0] in module.submodules:
            return resolve(".".join([module_name, *path]), depth - 1)
        return _resolve_in(module, path, depth - 1)
    except MissingNameError:
        raise UnknowableError from None


def inherits(found: Definition, bases: Sequence[str]) -> bool:
    """Return whether a class is or inherits one of the classes; raises `UnknowableError`."""
    return found.is_class and any(one.path in bases for one in _upward(found, bases))


def _upward(
    found: Definition, roots: Sequence[str] = (), is_chain: bool = False, depth: int = MAX_DEPTH
) -> Iterator[Definition]:
    """Yield a class and its bases up to the roots, depth first; raises `UnknowableError`.

    With `is_chain`, a class with several bases is unknowable: the source does not determine the order of its methods.
    """
    if depth == 0 or not isinstance(found.node, ast.ClassDef) or not is_dataclass_or_plain(found.node):
        raise UnknowableError
    bases = [] if found.path in roots else bases_of(found, depth)
    if is_chain and len(bases) > 1:
        raise UnknowableError
    yield found
    for base in bases:
        yield from _upward(base, roots, is_chain, depth - 1)


def find_ancestors(path: str) -> list[str]:
    """Return `module.Name` of the definition at a dotted path and of all its base classes, without importing them.

    The list is empty if the source cannot be analysed; unknown bases are skipped.
    """
    found = _found(path)
    return [] if found is None else list(dict.fromkeys(_lineage(found, MAX_DEPTH)))


def _lineage(found: Definition, depth: int) -> Iterator[str]:
    yield found.path
    for base in found.node.bases if isinstance(found.node, ast.ClassDef) and depth else ():
        try:
            name = dotted(base.value if isinstance(base, ast.Subscript) else base)
            resolved = _resolve_in(found.module, name.split("."), MAX_DEPTH)
        except (MissingNameError, UnknowableError):
            continue
        if not isinstance(resolved, SourceModule):
            yield from _lineage(resolved, depth - 1)


def read_class_attribute(found: Definition, name: str, root: str, record: str | None = None) -> Any:
    """Return the literal value of a class attribute, from the class or the nearest base that sets it.

    Args:
        found: the class.
        name: name of the attribute.
        root: `module.Name` of the common base, where the search ends.
        record: name of an attribute `record = Type(name=literal)` that may set it instead, or None.

    Returns:
        The value, or None if no class up to the root sets it.

    Raises:
        UnknowableError: the value is not a literal, or an instance may set it.
    """
    for definition in _upward(found, (root,), is_chain=True):
        for inner in ast.walk(definition.node):
            if _is_set_on_self(inner, name) or (record is not None and _changes_field(inner, record, name)):
                raise UnknowableError
        value = _assigned_in(definition.node, name)
        if value is None and record is not None:
            value = _keyword_of(_assigned_in(definition.node, record), name)
        if value is not None:
            return _evaluated(value, definition.module, MAX_DEPTH)
    return None


def _changes_field(node: ast.AST, record: str, name: str) -> bool:
    """Return whether a statement sets the record of an instance with another value of the field."""
    if not isinstance(node, ast.Assign) or f"self.{record}" not in map(ast.unparse, node.targets):
        return False
    is_replaced = isinstance(node.value, ast.Call) and dotted(node.value.func) in ("replace", "dataclasses.replace")
    return not is_replaced or any(keyword.arg in (None, name) for keyword in node.value.keywords)  # type: ignore[attr-defined]


def _keyword_of(call: ast.expr | None, name: str) -> ast.expr | None:
    """Return an argument of a call with keyword arguments only."""
    if call is None:
        return None
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise UnknowableError
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _evaluated(node: ast.expr, module: SourceModule, depth: int) -> Any:
    """Return the value of a literal, which may use module constants; raises `UnknowableError`."""
    if isinstance(node, ast.Tuple):
        items: list[Any] = []
        for item in node.elts:
            is_several = isinstance(item, ast.Starred)
            value = _evaluated(item.value if isinstance(item, ast.Starred) else item, module, depth)
            items += value if is_several else [value]
        return tuple(items)
    if isinstance(node, ast.Name):
        return constant_named(node.id, module, depth)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UnknowableError from None


def constant_named(name: str, module: SourceModule, depth: int = MAX_DEPTH) -> Any:
    """Return the literal value of a module constant; raises `UnknowableError`."""
    if depth == 0:
        raise UnknowableError
    found = module.definitions.get(name)
    if isinstance(found, (ast.Assign, ast.AnnAssign)) and found.value is not None:
        if name not in _targets_of(found):
            raise UnknowableError  # it is one item of the value
        return _evaluated(found.value, module, depth - 1)
    if name not in module.imports:
        raise UnknowableError
    place, original = module.imports[name]
    try:
        return constant_named(original or name, open_module(place), depth - 1)
    except MissingNameError:
        raise UnknowableError from None


def _targets_of(statement: ast.stmt) -> list[str]:
    """Return the names to which a statement assigns its value."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _unpacks(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement assigns a name together with others: `a, b = ...`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    stored = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Store) for node in stored)


def lineage_to(path: str, root: str) -> list[Definition]:
    """Return the class at a dotted path and its bases up to `root`, each with a single base.

    Raises:
        UnknowableError: the source cannot be analysed, or a class has several bases.
    """
    found = _found(path)
    if found is None:
        raise UnknowableError
    return list(_upward(found, (root,), is_chain=True))


def _assigned_in(node: ast.AST, name: str) -> ast.expr | None:
    """Return the expression that a class body assigns to a name.

    Raises:
        UnknowableError: the name is a property, or one of several names that are assigned together.
    """
    assert isinstance(node, ast.ClassDef)
    for statement in reversed(node.body):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            raise UnknowableError
        if name in _targets_of(statement):
            return statement.value  # type: ignore[attr-defined, no-any-return]
        if _unpacks(statement, name):
            raise UnknowableError
    return None


def _is_set_on_self(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)


def is_dataclass_or_plain(node: ast.ClassDef) -> bool:
    """Return whether no decorator may have replaced the class."""
    called = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return all(dotted(item) in _KEEPING for item in called)


def bases_of(found: Definition, depth: int) -> list[Definition]:
    """Return the base classes of a class, without `Generic` and the like; raises `UnknowableError`."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    bases = []
    for base in node.bases:
        name = dotted(base.value if isinstance(base, ast.Subscript) else base)
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


def dotted(node: ast.expr) -> str:
    """Return a name or attribute as text; raises `UnknowableError` for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    raise UnknowableError


def is_function(path: str) -> bool | None:
    """Return whether a dotted path is a function instead of a class; None if unknown."""
    found = _found(path)
    return None if found is None else not found.is_class


def declared_attribute(path: str, name: str, root: str) -> Any:
    """Return the literal value of an attribute of the class at a dotted path; None if unknown.

    See `read_class_attribute`.
    """
    found = _found(path)
    try:
        return None if found is None else read_class_attribute(found, name, root)
    except UnknowableError:
        return None


def attributes_of(path: str) -> tuple[str, ...] | None:
    """Return the names of methods and attributes of the class at a dotted path and its bases.

    Empty for a function. None if the source cannot be analysed.
    """
    found = _found(path)
    try:
        return None if found is None else tuple(dict.fromkeys(_attributes(found)))
    except UnknowableError:
        return None


def uses_self_attribute(path: str, name: str) -> bool:
    """Return whether the class at a dotted path, without its bases, uses an attribute of `self`."""
    found = _found(path)
    return found is not None and any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in ast.walk(found.node)
    )


def _attributes(found: Definition) -> Iterator[str]:
    for owner in _upward(found) if found.is_class else ():
        for statement in owner.node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if statement.name == "__getattr__":
                    raise UnknowableError
                yield statement.name
            yield from _targets_of(statement)
        for node in ast.walk(owner.node):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr  # of an instance


def _found(path: str) -> Definition | None:
    try:
        found = resolve(path)
    except (MissingNameError, UnknowableError):
        return None
    return found if isinstance(found, Definition) else None


@dataclass(frozen=True)
class Signature:
    """Arguments that can be given by name.

    Attributes:
        names: all arguments, positional ones first.
        required: arguments without a default.
        num_positional: number of `names` that can be given by position.
        is_open: whether further arguments are accepted (`**kwargs`).
        passes_on: whether `**kwargs` are passed to the constructor of the next class.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    num_positional: int
    is_open: bool = False
    passes_on: bool = False

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
    """Return the arguments of a class's constructor or of a function; raises `UnknowableError`."""
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
    """Return the arguments of a class's constructor; None if neither it nor its bases have one."""
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
    bases = bases_of(found, depth)
    for base in bases:
        signature = _constructor_signature(base, depth - 1)
        if signature is not None and signature.passes_on and len(bases) > 1:
            raise UnknowableError  # to another base
        if signature is not None:
            return signature
    return None


def _init_signature(found: Definition, init: ast.FunctionDef, depth: int) -> Signature:
    """Return the arguments of `__init__`, including the base class's if `**kwargs` are only passed there."""
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
        passes_on=True,
    )


def _super_call(init: ast.FunctionDef) -> ast.Call | None:
    """Return the call `super().__init__(..., **kwargs)` if `kwargs` is not used elsewhere."""
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
    annotation = ast.unparse(item.annotation)
    if "ClassVar" in annotation or annotation.rpartition(".")[2] == "KW_ONLY":
        return False
    keywords = item.value.keywords if isinstance(item.value, ast.Call) else []
    return not any(keyword.arg == "init" and ast.unparse(keyword.value) == "False" for keyword in keywords)


def _has_default(item: ast.AnnAssign) -> bool:
    """Return whether a field of a dataclass has a default, also in `field(...)`."""
    if isinstance(item.value, ast.Call) and dotted(item.value.func).rpartition(".")[2] == "field":
        return any(keyword.arg in ("default", "default_factory") for keyword in item.value.keywords)
    return item.value is not None
