"""Checkpoints that `load_state_path` names, which the modules of a new run begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoints.checkpoint import read_manifest
from runner.checkpoints.folder import newest_checkpoint
from runner.config.errors import ConfigError, Problem, UserError
from runner.config.schemas import ExperimentConfig

_FIELD = "load_state_path"


@dataclass(frozen=True)
class ModuleSource:
    """A checkpoint, and the digest of its manifest (64 hexadecimal digits), which has the digests of its files."""

    checkpoint: Path
    digest: str


def module_sources(
    config: ExperimentConfig, where: Callable[[str], str | None] = lambda key: key
) -> dict[str, ModuleSource]:
    """Find the checkpoint of each `load_state_path` of the module blocks, by its path in the configuration.

    Args:
        config: of a new run; a resumed run has its parameters already.
        where: dotted key -> the place of its value, for messages.

    Raises:
        ConfigError: folders have no checkpoint; all of them.
        CheckpointError: a manifest is cut off or altered.
    """
    sources: dict[str, ModuleSource] = {}
    problems: list[Problem] = []
    for key, path in _paths(config):
        try:
            sources[path] = _open_source(path)
        except UserError as error:
            what = str(error).removeprefix(str(_absolute(path))).lstrip(": ")
            problems.append(Problem(f"{key}: {what}", where(key) or key, path))
    if problems:
        raise ConfigError(problems)
    return sources


def _paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    if config.module.load_state_path is not None:
        yield f"module.{_FIELD}", config.module.load_state_path
    for module_id, fields in config.multi_agent.modules.items():
        if fields.get(_FIELD) is not None:
            yield f"multi_agent.modules.{module_id}.{_FIELD}", str(fields[_FIELD])


def _open_source(path: str) -> ModuleSource:
    checkpoint = newest_checkpoint(_absolute(path))
    return ModuleSource(checkpoint, read_manifest(checkpoint)["digest"])


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()
