"""RLlink for simulators: sends episodes to a training run over TCP, and receives its policy or its actions.

Needs numpy and, to choose actions in the client, onnxruntime. It does not import any other part of `runner`: the same
files form the distribution rllink-client (clients/python) with the name `rllink_client`. Protocol:
docs/reference/rllink.md.

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
