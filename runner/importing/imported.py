"""An experiment imported from another framework's configuration, and safe parsing of Python literals."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from runner.config.required_trust import find_trust_requirements


def read_python(text: str, calls: Collection[str]) -> Any:
    """Return the value of a Python literal.

    Args:
        text: text of an expression.
        calls: names of functions whose calls, with keyword arguments only, are read as a dict of these arguments.

    Raises:
        ValueError: the text is not a literal.
    """
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body, calls)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python literal: {error}") from error


def _value_of(node: ast.expr, calls: Collection[str]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value_of(item, calls) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value_of(key, calls): _value_of(value, calls) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls:
        return {word.arg: _value_of(word.value, calls) for word in node.keywords}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value_of(node.operand, calls)
    if isinstance(node, ast.Attribute):  # for example nn.ReLU
        return node.attr
    raise ValueError(ast.dump(node))


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Strings that YAML would read as other values.
_NO_TEXT = re.compile(r"null|true|false|yes|no|on|off|y|n|[-+.]?(inf|nan)", re.IGNORECASE)
_BLOCKS = (
    *("seed", "env", "algorithm", "connectors", "module", "multi_agent", "env_runners", "learners", "offline"),
    *("evaluation", "checkpoint", "stop"),
)


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        source: short description of the source.
        options: group -> option.
        values: block -> its values; a key that is not a block -> its value.
        missing: setting without a counterpart -> reason, or what to do.
        problems: problems that `validate` finds in the experiment.
    """

    source: str
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def set(self, block: str, **values: Any) -> None:
        """Set values of a block; None keeps the default."""
        given = {name: value for name, value in values.items() if value is not None}
        self.values.setdefault(block, {}).update(given)

    @property
    def requirements(self) -> list[str]:
        """Permissions that the experiment needs, such as classes that training imports."""
        return [one_line(f"{one.verb} {one.key} {one.value}") for one in find_trust_requirements(self.values)]

    def to_yaml(self) -> str:
        """Return the text of the experiment's file."""
        lines = ["# @package _global_", f"# Imported from {one_line(self.source)}."]
        lines += [f"# Training {requirement}; review it first." for requirement in self.requirements]
        lines += [f"# No counterpart: {one_line(key)} ({one_line(reason)})." for key, reason in self.missing.items()]
        lines += [f"# Does not validate: {one_line(problem)}." for problem in self.problems]
        chosen = ", ".join(f"override /{group}: {option}" for group, option in self.options.items())
        lines.append(f"defaults: [{chosen}]")
        lines += [f"{block}: {_flow(self.values[block])}" for block in _BLOCKS if self.values.get(block)]
        return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """Return a string from an untrusted file on one line, without characters that end it or control a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and not _NO_TEXT.fullmatch(value):
        return value
    return str(yaml.safe_dump(value, default_style='"', width=math.inf)).rstrip("\n")
