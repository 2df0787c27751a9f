"""A trained policy as one graph: observation in, action out; as ONNX and as a torch program."""

from runner.policy.onnx_policy import OnnxPolicy

__all__ = ["OnnxPolicy"]
