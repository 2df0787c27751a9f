"""Hydra's repository of configs, with a cache: each unchanged file and node is read and parsed once per process.

Hydra copies the complete ConfigStore and reads all files for each composition, which takes half of its time. A public
cache in Hydra, or a public `ConfigSource` for files that can be extended, would replace this module.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from runner.compat.libraries import Library

HYDRA = Library("hydra-core", ">=1.3.2,<=1.3.8")

with HYDRA.expected():
    from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource

HYDRA.require(ConfigRepository, "_find_object_source", "_extract_defaults_list", "_create_defaults_list")
HYDRA.require(ConfigSource, "_normalize_file_name")

_MAX_READ = 1024
# Source, its path and version -> the config that was read, and the object whose id is the version. The object is kept
# so that its id is not reused.
_READ: dict[Hashable, tuple[ConfigResult, object]] = {}


class Repository(CachingConfigRepository):
    """The repository of one composition, whose configs may be changed.

    Args:
        delegate: sources.
        file_version: file -> a value that changes when the file does.
        make_config: path of a config that no source has -> its content with `defaults`, or None.
    """

    delegate: ConfigRepository

    def __init__(
        self,
        delegate: ConfigRepository,
        file_version: Callable[[Path], Hashable],
        make_config: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self.delegate = copy.copy(delegate)  # `initialize_sources` sets different sources on the copy
        self.cache = {}
        self._file_version = file_version
        self._make_config = make_config

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return the config of this path without its defaults list, or None if there is none."""
        if config_path not in self.cache:
            self.cache[config_path] = self._read(config_path)
        return self.cache[config_path]

    def _read(self, config_path: str) -> ConfigResult | None:
        source = self.delegate._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return self._made(config_path)
        if source.scheme() == "pkg" and source.path.split(".")[0] != "hydra":  # this package may be edited
            return self.delegate.load_config(config_path)
        version, owner = self._version(source, config_path)
        key = type(source), source.provider, source.path, config_path, version
        if key not in _READ:
            if len(_READ) >= _MAX_READ:
                _READ.clear()
            read = self.delegate.load_config(config_path)
            assert read is not None
            _READ[key] = read, owner
        else:
            read = _READ[key][0]
        return dataclasses.replace(read, config=copy.deepcopy(read.config))

    def _made(self, config_path: str) -> ConfigResult | None:
        content = self._make_config(config_path)
        if content is None:
            return None
        config = OmegaConf.create(content)
        result = ConfigResult(provider="runner", path=config_path, config=config, header={"package": None})
        listed = self.delegate._extract_defaults_list(config_path, config)
        result.defaults_list = self.delegate._create_defaults_list(config_path, listed)
        return result

    def _version(self, source: ConfigSource, config_path: str) -> tuple[Hashable, object]:
        """Return a value that changes with a config of this source, and its object; Hydra's configs do not change."""
        name = source._normalize_file_name(config_path)
        if source.scheme() == "file":
            return self._file_version(Path(source.path, name)), None
        if isinstance(source, StructuredConfigSource):
            node = source.store._load(name).node
            return id(node), node
        return None, None


class _CheckedFiles(FileConfigSource):
    """A source of files that are checked before Hydra reads them."""

    def __init__(self, provider: str, path: str, check: Callable[[Path], object]) -> None:
        super().__init__(provider, path)
        self._check = check

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.exists():
            self._check(path)
        return super().load_config(config_path)


def check_files(repository: ConfigRepository, check: Callable[[Path], object]) -> None:
    """Make the repository call `check` with each file before reading it."""
    repository.sources = [
        _CheckedFiles(source.provider, f"file://{source.path}", check) if source.scheme() == "file" else source
        for source in repository.sources
    ]
