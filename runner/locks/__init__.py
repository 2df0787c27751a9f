"""A folder belongs to one process at a time, on one machine or on several that share a file system."""

from runner.locks.claim import STALE_AFTER_S, Claim
from runner.locks.folder_lock import BEAT_S, FolderHeld, FolderLock, FolderLost, held, owner_of

__all__ = ["BEAT_S", "STALE_AFTER_S", "Claim", "FolderHeld", "FolderLock", "FolderLost", "held", "owner_of"]
