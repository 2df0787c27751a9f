"""A trained policy as one graph: observation in, action out; as ONNX and as a torch program."""

from runner.policy.manifest import Manifest
from runner.policy.onnx_policy import OnnxPolicy
from runner.policy.policy_graph import PolicyGraph

__all__ = ["Manifest", "OnnxPolicy", "PolicyGraph"]
