"""Names of metrics, params and tags that a tracker accepts: two names never become one.

A name that the tracker accepts stays as it is. In any other name each character that it does not accept is written as
its hexadecimal code point between two marks: `agents//robot_1` is `agents/:2f:robot_1` in MLflow. A name that is too
long ends with a digest of it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass

_DIGEST_CHARS = 16
# Where a path would have an empty component, or one that means a folder: the character to be escaped.
_ODD_IN_PATHS = r"^/|(?<=/)/|/$|^\.(?=\.)|(?:(?<=^)|(?<=/))\.(?=$|/|\.(?:$|/))"


@dataclass(frozen=True)
class NameRules:
    """What names a tracker accepts.

    Attributes:
        refused: pattern of one character that it does not accept.
        mark: accepted character around the code point of an escaped one.
        max_chars: length of the longest name; None: no limit.
    """

    refused: str
    mark: str
    max_chars: int | None = None


MLFLOW_NAMES = NameRules(r"[^/\w.\- :]", ":", 250)
TENSORBOARD_NAMES = NameRules(r"[^-/\w.]", "-")


@functools.lru_cache(maxsize=16_384)
def escaped_name(name: str, rules: NameRules) -> str:
    """Return the name as the tracker gets it."""
    mark = re.escape(rules.mark)
    odd = re.compile(f"{rules.refused}|{_ODD_IN_PATHS}")
    looks_escaped = re.search(f"{mark}[0-9a-f]*{mark}", name)
    if not name:
        return rules.mark * 2
    if odd.search(name) or looks_escaped:
        both = re.compile(f"{odd.pattern}|{mark}")
        key = both.sub(lambda match: f"{rules.mark}{ord(match[0]):x}{rules.mark}", name)
    else:
        key = name
    if rules.max_chars is None or len(key) <= rules.max_chars:
        return key
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{key[: rules.max_chars - _DIGEST_CHARS - 2]}{rules.mark}{digest}{rules.mark}"
