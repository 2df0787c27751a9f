"""RLlink: training with external simulators. The client does not need any other part of this package."""

from runner.rllink.client import Client

__all__ = ["Client"]
