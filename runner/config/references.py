"""Values of resolvers such as `${oc.env:PASSWORD}`: the reference is stored and printed instead of the value.

A checkpoint contains a salted digest of each value, so that a resumed run can report changed values.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.required_trust import leaves_of

_FEWEST_LETTERS = 4  # of a text that messages hide
_ROUNDS = 50_000  # of the digest: about 20 ms, also per guess


def with_references(values: Any, references: Mapping[str, str], key: str = "") -> Any:
    """Return nested values with references instead of resolved values."""
    if key in references:
        return references[key]
    if isinstance(values, Mapping):
        return {
            name: with_references(item, references, f"{key}.{name}" if key else str(name))
            for name, item in values.items()
        }
    if isinstance(values, (list, tuple)):
        return [with_references(item, references, f"{key}.{index}") for index, item in enumerate(values)]
    return values


def without_values(problems: Iterable[Problem], values: Any, references: Mapping[str, str]) -> list[Problem]:
    """Return problems with references instead of resolved values in their texts."""
    found = {str(value): references[key] for key, value in leaves_of(values, "") if key in references}
    hidden = {value: found[value] for value in sorted(found, key=len, reverse=True) if len(value) >= _FEWEST_LETTERS}

    def hide(text: str | None) -> str | None:
        for value, reference in hidden.items() if text is not None else ():
            text = text and text.replace(value, reference)
        return text

    return [replace(one, what=hide(one.what) or "", got=hide(one.got), expected=hide(one.expected)) for one in problems]


@contextmanager
def hiding_values(values: Any, references: Mapping[str, str]) -> Iterator[None]:
    """Context in which a `ConfigError` shows references instead of resolved values."""
    try:
        yield
    except ConfigError as error:
        if not references:
            raise
        raise ConfigError(without_values(error.problems, values, references)) from None


class Digests:
    """Digests of the values of references.

    Args:
        references: dotted key -> reference.
        values: resolved configuration.
        salt: salt of the digests; None: a new one.
    """

    def __init__(self, references: Mapping[str, str], values: Mapping[str, Any], salt: str | None = None) -> None:
        self.salt = secrets.token_hex(8) if salt is None else salt
        self.references = dict(references)
        self._values = {key: value for key, value in leaves_of(values, "") if key in references}

    def with_salt(self, salt: str) -> Digests:
        """Return the digests of the same values with another salt."""
        return Digests(self.references, dict(self._values), salt)

    def get_state(self) -> dict[str, Any]:
        """Return salt and digests; empty without references."""
        return {"salt": self.salt, "references": self.of_each()} if self.references else {}

    def of_each(self) -> dict[str, str]:
        """Return dotted key -> reference and digest of its value."""
        return {
            key: f"{text} {_digest(json.dumps(self._values.get(key), default=str), self.salt)}"
            for key, text in self.references.items()
        }

    def changed(self, before: Mapping[str, str]) -> Iterator[str]:
        """Yield `key (reference)` for each value that differs from the earlier value of the same reference."""
        for key, now in self.of_each().items():
            if key in before and before[key] != now and before[key].rpartition(" ")[0] == self.references[key]:
                yield f"{key} ({self.references[key]})"


@lru_cache(maxsize=1024)
def _digest(text: str, salt: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), salt.encode(), _ROUNDS).hex()[:16]
