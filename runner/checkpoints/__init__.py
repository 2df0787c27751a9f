"""Checkpoints: folders of safetensors and JSON with a digest per file; no pickle."""

from runner.checkpoints.checkpoint import load_checkpoint, read_manifest, save_checkpoint
from runner.checkpoints.files import CheckpointError, naming_checkpoint
from runner.checkpoints.folder import CheckpointFolder

__all__ = [
    "CheckpointError",
    "CheckpointFolder",
    "load_checkpoint",
    "naming_checkpoint",
    "read_manifest",
    "save_checkpoint",
]
