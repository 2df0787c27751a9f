"""Trust in the configuration of a checkpoint: without it commands do nothing beyond computing.

`docs/explanation/trust.md` has the rule. A configuration is trusted if this installation has signed it, or if a person
passes `--trust` after reading its demands.
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
# Starts of the dotted keys that a kind of command does not use.
TRAINING: tuple[str, ...] = ()
ACTING = (*_OF_LEARNING, "experiment_name", "offline.input_", "offline.output")
RECORDING = (*_OF_LEARNING, "experiment_name", "offline.input_")
EXPORTING = (*_OF_LEARNING, "experiment_name", "offline", "evaluation", "ray", *FEATURE_BLOCKS)


class UntrustedError(UserError):
    """A configuration of another origin demands what only a trusted one gets."""

    def __init__(self, what: str, where: object, reason: str, requirements: Sequence[TrustRequirement]) -> None:
        self.requirements = tuple(requirements)
        head = [f"{what} comes from elsewhere and asks for what only a trusted one gets"]
        head += [f"   where         {where}", f"   origin        {reason}"]
        width = max((len(requirement.key) for requirement in requirements), default=0)
        listed = [
            f"   {requirement.verb:<13} {requirement.key:<{width}}  {requirement.value}" for requirement in requirements
        ]
        fix = f"   fix           override these keys, or trust the checkpoint: {TRUST} (see docs/explanation/trust.md)"
        super().__init__("\n".join([*head, *listed, fix]))


def find_links(folder: Path) -> list[TrustRequirement]:
    """The symbolic links in a folder and the folders in it: whoever writes there would write where they lead."""
    paths = [
        Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)
    ]  # walks through no link
    return [
        TrustRequirement("follows", str(path.relative_to(folder)), str(path.readlink()))
        for path in (folder, *paths)
        if path.is_symlink()
    ]


def check_links(run_dir: Path, checkpoint: Path) -> None:
    """Refuse a run of another origin with symbolic links among its files.

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
        values: unresolved; without resolvers if of another origin.
        reason: why it counts as somebody else's; None if it is trusted.
    """

    checkpoint: Path
    manifest: Mapping[str, Any]
    values: Mapping[str, Any]
    reason: str | None
    resolvers: tuple[TrustRequirement, ...] = ()

    @classmethod
    def of(cls, checkpoint: Path, manifest: Mapping[str, Any], is_trusted: bool) -> StoredValues:
        """Take the configuration of a manifest.

        Args:
            checkpoint: its folder.
            manifest: of the checkpoint.
            is_trusted: a person trusts it, whatever its origin.
        """
        reason = None if is_trusted else origin_of(manifest)
        config = config_of(manifest)
        values, resolvers = (config, []) if reason is None else mask_resolvers(config)
        return cls(checkpoint, manifest, values, reason, tuple(resolvers))

    def compose(self, overrides: Sequence[str], unused: Collection[str] = TRAINING) -> Composed:
        """Compose the configuration with overrides of single keys; their problems are collected, not raised.

        Args:
            overrides: of the person at the command line, trusted.
            unused: starts of the dotted keys that the command does not use.

        Raises:
            UntrustedError: the configuration is of another origin and asks for more than computing.
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
        """Check the demands of a configuration composed of these values; raises `UntrustedError`.

        Args:
            composed: configuration of which nothing has been imported.
            overrides: of the composition.
            unused: starts of the dotted keys that the command does not use.
            trusted_blocks: blocks that the person at the command line chose.
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
