"""The directive `configuration`: the fields of a configuration block as a table, from its dataclass."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from runner.config.fields import Option, option_of
from runner.config.operators import OperatorConfig
from runner.importing.rllib_config import names_in_rllib

_HEAD = ("field", "default", "values", "meaning")
_HEAD_OF_NAMES = "RLlib"


class Configuration(SphinxDirective):
    """A table of a dataclass's fields: default, values that are admitted, meaning; of operators also their items.

    Where RLlib calls one of them otherwise, it has a column of RLlib's names.

    The argument is the dataclass's dotted path. `beyond` names a base whose fields are left out.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {"beyond": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        schema = class_at(self.arguments[0])
        base = class_at(self.options["beyond"]) if "beyond" in self.options else None
        parts = [inspect.cleandoc(schema.__doc__ or "")]
        if issubclass(schema, OperatorConfig):
            parts.append(_items(schema))
        parts.append(table_of(schema, base))
        parsed = self.parse_text_to_nodes("\n\n".join(parts))
        for table in parsed:
            if isinstance(table, nodes.table):
                table["classes"].append("fields")
        return parsed


def table_at(path: str, beyond: str | None = None) -> str:
    """Return the description and the table of the dataclass with a dotted path."""
    schema = class_at(path)
    table = table_of(schema, None if beyond is None else class_at(beyond))
    return f"{inspect.cleandoc(schema.__doc__ or '')}\n\n{table}"


def table_of(schema: type, beyond: type | None = None) -> str:
    """Return a Markdown table of the fields of `schema` that are not those of `beyond`; without fields nothing."""
    left_out = {} if beyond is None else options_of(beyond)
    return table_of_options(
        schema, {name: found for name, found in options_of(schema).items() if left_out.get(name) != found}
    )


def table_of_options(schema: type, shown: Mapping[str, tuple[Any, Option]]) -> str:
    """Return a Markdown table of these fields of `schema`: field -> default and description."""
    others = {name: other for name, other in names_in_rllib(schema).items() if name in shown}
    head = [*_HEAD, _HEAD_OF_NAMES] if others else [*_HEAD]
    rows = [head, ["---"] * len(head)]
    for name, (default, option) in shown.items():
        row = [f"`{name}`", f"`{_as_yaml(default)}`", _values(option), _as_text(option.meaning)]
        rows.append([*row, f"`{others[name]}`" if name in others else ""] if others else row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) if shown else ""


def class_at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def options_of(schema: type) -> dict[str, tuple[Any, Option]]:
    """Return field -> default and description; blocks within the block are left out."""
    found = {}
    for field in dataclasses.fields(schema):
        if (option := option_of(field)) is not None:
            is_made = field.default_factory is not dataclasses.MISSING
            found[field.name] = (field.default_factory() if is_made else field.default, option)
    return found


def _items(schema: type[OperatorConfig]) -> str:
    taken = " or ".join(f"`{item}`" for item in schema.takes) or "nothing"
    given = "the same items" if schema.gives is None else " or ".join(f"`{item}`" for item in schema.gives) or "nothing"
    return f"Accepts {taken}, returns {given}."


def _as_text(meaning: str) -> str:
    """Escape what Markdown would take for its own, except for code between backticks."""
    parts = re.split(r"(`[^`]+`)", meaning)
    return "".join(re.sub(r"(\|)" if part.startswith("`") else r"([_*\[\]{}|`])", r"\\\1", part) for part in parts)


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(_plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _values(option: Option) -> str:
    """Return the admitted values in words: choices, bounds, unit."""
    bounds = [
        f"{sign} {bound:,g}"
        for sign, bound in (("≥", option.minimum), (">", option.above), ("≤", option.maximum), ("<", option.below))
        if bound is not None
    ]
    parts = [", ".join(f"`{_as_yaml(choice)}`" for choice in option.choices or ()), " and ".join(bounds)]
    parts += [option.unit or "", "or a schedule" if option.is_schedule else ""]
    return "; ".join(filter(None, parts))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("configuration", Configuration)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
