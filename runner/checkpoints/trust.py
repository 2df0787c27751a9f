"""Trust in the configuration of a checkpoint: commands use an untrusted configuration for computation only.

See `docs/explanation/trust.md` for the rule. A configuration is trusted if this installation has signed it, or if the
user passes `--trust` after reading its requirements.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoints.checkpoint import config_of, origin_of
from runner.checkpoints.files import naming_checkpoint
from runner.config.composed import Composed
from runner.config.errors import UserError
from runner.config.features import FEATURE_BLOCKS
from runner.config.overrides import parse_overrides
from runner.config.paths import search_dirs
from runner.config.required_trust import TrustRequirement, find_trust_requirements, mask_resolvers
from runner.config.stored import compose_stored

TRUST = "--trust"
_OF_DATA = ("offline.offline_data_class", "offline.map_batches_kwargs", "offline.iter_batches_kwargs")
_OF_LEARNING = (
    *("tracking", "checkpoint", "rllink", "env.port", "env.host", "offline.prelearner_class"),
    *_OF_DATA,
    "experiment",
)
# Prefixes of the dotted keys that a kind of command does not use.
TRAINING: tuple[str, ...] = ()
ACTING = (*_OF_LEARNING, "experiment_name", "offline.input_", "offline.output")
RECORDING = (*_OF_LEARNING, "experiment_name", "offline.input_")
EXPORTING = (*_OF_LEARNING, "experiment_name", "offline", "evaluation", "ray", *FEATURE_BLOCKS)


class UntrustedError(UserError):
    """An untrusted configuration needs permissions that only trusted configurations get."""

    def __init__(self, what: str, where: object, reason: str, requirements: Sequence[TrustRequirement]) -> None:
        self.requirements = tuple(requirements)
        head = [f"{what} is not signed with your key and needs permissions that only trusted files get"]
        head += [f"   where         {where}", f"   origin        {reason}"]
        width = max((len(requirement.key) for requirement in requirements), default=0)
        listed = [
            f"   {requirement.verb:<13} {requirement.key:<{width}}  {requirement.value}" for requirement in requirements
        ]
        fix = f"   fix           override these keys, or trust the checkpoint: {TRUST} (see docs/explanation/trust.md)"
        super().__init__("\n".join([*head, *listed, fix]))


def find_links(folder: Path) -> list[TrustRequirement]:
    """Return the symbolic links in a folder and its subfolders; writing through them would change other files."""
    paths = [
        Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)
    ]  # does not follow links
    return [
        TrustRequirement("follows", str(path.relative_to(folder)), str(path.readlink()))
        for path in (folder, *paths)
        if path.is_symlink()
    ]


def check_links(run_dir: Path, checkpoint: Path) -> None:
    """Reject an untrusted run with symbolic links among its files.

    Raises:
        UntrustedError: there are links; all of them are listed.
    """
    links = [link for folder in dict.fromkeys((run_dir, checkpoint.parent.parent)) for link in find_links(folder)]
    if links:
        raise UntrustedError("this run", run_dir, "symbolic links lead out of its folder", links)


@dataclass(frozen=True)
class StoredValues:
    """The configuration of a checkpoint, safe to resolve.

    Attributes:
        values: unresolved values; without resolvers if untrusted.
        reason: reason why the checkpoint is not trusted, or None if it is.
    """

    checkpoint: Path
    manifest: Mapping[str, Any]
    values: Mapping[str, Any]
    reason: str | None
    resolvers: tuple[TrustRequirement, ...] = ()

    @classmethod
    def of(cls, checkpoint: Path, manifest: Mapping[str, Any], is_trusted: bool) -> StoredValues:
        """Create the configuration from the manifest of a checkpoint.

        Args:
            checkpoint: folder of the checkpoint.
            manifest: its manifest.
            is_trusted: whether the user trusts it, regardless of its origin.
        """
        reason = None if is_trusted else origin_of(manifest)
        config = config_of(manifest)
        values, resolvers = (config, []) if reason is None else mask_resolvers(config)
        return cls(checkpoint, manifest, values, reason, tuple(resolvers))

    def compose(self, overrides: Sequence[str], unused: Collection[str] = TRAINING) -> Composed:
        """Compose the configuration with overrides of single keys; their problems are collected, not raised.

        Args:
            overrides: trusted overrides from the command line.
            unused: prefixes of the dotted keys that the command does not use.

        Raises:
            UntrustedError: the configuration is not trusted and needs to do more than compute.
            CheckpointError: the configuration does not fit this version of runner.
        """
        with naming_checkpoint(self.checkpoint):
            stored = self.manifest
            composed = compose_stored(self.values, overrides, stored["overrides"], stored["experiment"])
        self.check(composed, overrides, unused)
        return composed

    def check(
        self,
        composed: Composed,
        overrides: Sequence[str],
        unused: Collection[str] = TRAINING,
        trusted_blocks: Collection[str] = (),
    ) -> None:
        """Check the permissions that a composed configuration needs; raises `UntrustedError`.

        Args:
            composed: configuration from which nothing has been imported.
            overrides: overrides of the composition.
            unused: prefixes of the dotted keys that the command does not use.
            trusted_blocks: blocks that the user chose on the command line.
        """
        if self.reason is None:
            return
        lines, _ = parse_overrides(overrides, search_dirs(None))
        harmless = {*unused, *trusted_blocks, *(line.key for line in lines)}

        def is_used(key: str) -> bool:
            return not any(key == start or key.startswith(f"{start}.") for start in harmless)

        resolvers = [requirement for requirement in self.resolvers if is_used(requirement.key)]
        requirements = [
            *resolvers,
            *find_trust_requirements({**composed.values, "experiment": composed.experiment}, is_used),
        ]
        if requirements:
            raise UntrustedError("this checkpoint", self.checkpoint, self.reason, requirements)
