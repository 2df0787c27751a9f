"""A policy as ONNX bytes: exported once, then given new parameters and statistics as often as they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from runner.config.schemas import ExperimentConfig
from runner.module_parts import ActingParts
from runner.policy.manifest import METADATA_KEY, Manifest
from runner.policy.policy_graph import PolicyGraph
from runner.policy.tracing import trace_onnx


class OnnxPolicy:
    """The ONNX model of one module with the connectors around it, as a template for any parameters.

    Attributes:
        manifest: of the parameters that were put in last; in the file, too.
        graph: what was exported.
    """

    def __init__(self, graph: PolicyGraph, template: onnx.ModelProto, manifest: Manifest) -> None:
        self.graph = graph
        self.manifest = manifest
        self._template = template
        self._places = graph.places()
        self._num_parameters = max((place.stop for place in self._places.values()), default=0)
        self._initializers = {
            one.name: index
            for index, one in enumerate(template.graph.initializer)
            if one.name in {name for name, _ in graph.variables()}
        }
        self._statistics = {
            name: np.asarray(value.detach().numpy().copy())
            for name, value in graph.variables()
            if name not in self._places
        }

    @classmethod
    def of_parts(cls, parts: ActingParts, config: ExperimentConfig) -> OnnxPolicy:
        """Export the module of an experiment; takes seconds.

        Raises:
            ConfigError: a connector or the module cannot be exported; names it.
        """
        graph = PolicyGraph(parts)
        return cls(graph, trace_onnx(graph), Manifest.of(graph, parts, config))

    def to_bytes(
        self, weights: npt.NDArray[np.float32], shared_state: Mapping[str, Any], weights_seq_no: int | None = None
    ) -> bytes:
        """Return the ONNX file with these parameters; takes about a millisecond.

        Args:
            weights: (P,) as `FlatParameters.to_numpy` gives them.
            shared_state: connector name -> state, as env runners share them for this module; connectors that have none
                here keep the statistics that they had when the policy was exported.
            weights_seq_no: for the manifest.

        Raises:
            ValueError: another number of parameters, or statistics of another shape.
        """
        if weights.shape != (self._num_parameters,):
            raise ValueError(f"weights have {weights.size} values, this module has {self._num_parameters}")
        statistics = self._statistics | self.graph.statistics(shared_state)
        self.manifest = self.manifest.updated(weights_seq_no, statistics)
        model = onnx.ModelProto()
        model.CopyFrom(self._template)
        little_endian = np.ascontiguousarray(weights, "<f4")
        for name, index in self._initializers.items():
            tensor = model.graph.initializer[index]
            if name in self._places:
                tensor.raw_data = little_endian[self._places[name]].tobytes()
            else:
                tensor.raw_data = _as_stored(statistics[name], self._statistics[name], name)
        model.metadata_props.add(key=METADATA_KEY, value=self.manifest.to_json())
        content: bytes = model.SerializeToString()
        return content


def _as_stored(value: npt.NDArray[Any], template: npt.NDArray[Any], name: str) -> bytes:
    if value.shape != template.shape:
        raise ValueError(f"{name} has the shape {list(value.shape)}, this policy needs {list(template.shape)}")
    return value.astype(template.dtype.newbyteorder("<")).tobytes()
