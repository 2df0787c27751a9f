"""Makes the files that transfer a module's weights to clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from runner.config.errors import ConfigError
from runner.config.schemas import ExperimentConfig
from runner.module_building import ModuleSpec, build_acting_module
from runner.modules.flat_parameters import FlatParameters
from runner.policy import OnnxPolicy

_log = logging.getLogger(__name__)


class OnnxFile:
    """Makes the ONNX file of a module; `problem` is the reason why it cannot, or None.

    The graph is exported at the start, although not every client requests it. The exporter of torch changes global
    state, which would change the results of a learner in another thread.
    """

    def __init__(self, config: ExperimentConfig, spec: ModuleSpec) -> None:
        self.problem: str | None = None
        try:
            self._policy = OnnxPolicy.of_module(build_acting_module(config, spec), config)
        except ConfigError as error:
            problem = error.problems[0]
            why = problem.what if problem.got is None else f"{problem.what}: {problem.got}"
            self.problem = f"{why}; request actions, or weights as safetensors"
            _log.warning("RLlink: requests for ONNX files will be rejected: %s", why)

    def __call__(self, weights: Any, shared_state: Mapping[str, Any], weights_seq_no: int) -> bytes:
        """Return the ONNX file."""
        return self._policy.to_bytes(weights, shared_state, weights_seq_no)


class SafetensorsFile:
    """Makes the file with the parameters of a module under their names."""

    problem: str | None = None

    def __init__(self, config: ExperimentConfig, spec: ModuleSpec) -> None:
        self._module = build_acting_module(config, spec).module
        self._parameters = FlatParameters(self._module)

    def __call__(self, weights: Any, shared_state: Mapping[str, Any], weights_seq_no: int) -> bytes:
        """Return the safetensors file."""
        from safetensors.torch import save

        self._parameters.load(weights)
        return save({name: tensor.clone() for name, tensor in self._module.state_dict().items()})
