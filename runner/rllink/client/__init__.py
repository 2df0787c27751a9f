"""RLlink for simulators: their episodes go to a training run over TCP, and its policy or its actions come back.

Needs numpy and, to choose actions itself, onnxruntime. It imports no other part of `runner`: the same files are the
distribution rllink-client (clients/python) under the name `rllink_client`. Protocol: docs/reference/rllink.md.

    with Client("127.0.0.1", 5556) as client:
        sampler = client.sampler()
        while True:
            action = sampler.begin("0", simulator.reset())
            while action is not None:
                obs, reward, terminated, truncated = simulator.step(action)
                action = sampler.step("0", obs, reward, terminated, truncated)
"""

from .answers import RLlinkError, ServerConfig, ServerGone, Task, Weights
from .client import Client
from .sampling import LocalSampler, RemoteSampler

__all__ = ["Client", "LocalSampler", "RLlinkError", "RemoteSampler", "ServerConfig", "ServerGone", "Task", "Weights"]
