"""Options of the group `env` that no file defines: any Gymnasium id, as in `env=Acrobot-v1`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.config.paths import conf_dir
from runner.config.yaml_files import file_version, read_yaml

GROUP = "env"
_FILE = "env_ids.yaml"
# An optional module that registers the id, an optional namespace, and a name.
_ID = re.compile(r"(?:(?P<module>[A-Za-z_][\w.]*):)?(?P<id>(?:[\w-]+/)?[\w.-]+)", re.ASCII)

# Ids that editors accept in `override /env: ID`.
USUAL_ID = r"-v[0-9]+$|:"


def env_option(name: str) -> dict[str, Any] | None:
    """Return the content of the option `env=ID`; None for names that are not ids.

    The id may be registered, of a known family, or of a module (`module:ID`), which is not imported here.
    """
    found = _ID.fullmatch(name)
    if found is None:
        return None
    content = _of_family(found["id"])
    if found["module"] is not None:
        return {**content, "env": name} if "_target_" not in content else content
    return content or ({"env": name} if name in registered_ids() else None)


def _of_family(env_id: str) -> dict[str, Any]:
    for pattern, content in id_table()["families"].items():
        if fnmatchcase(env_id, pattern):
            return {key: value.format(id=env_id) if key == "env" else value for key, value in content.items()}
    return {}


def id_table() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of `conf/env_ids.yaml`."""
    path = conf_dir() / _FILE
    return _read(path, file_version(path))


@lru_cache(maxsize=1)
def _read(path: Path, _version: tuple[int, ...]) -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = read_yaml(path)
    return table


def registered_ids() -> Sequence[str]:
    """Return the ids that Gymnasium and its installed plugins register, the newest version of each first."""
    import gymnasium  # 0.2 s

    return list(gymnasium.registry)[::-1]


def option_at(config_path: str) -> dict[str, Any] | None:
    """Return the content of the config `env/ID` of Hydra, or None if it is not an environment."""
    group, _, name = config_path.partition("/")
    return env_option(name) if group == GROUP else None
