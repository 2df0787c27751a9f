"""A policy's graph, traced by torch: as ONNX bytes with replaceable variables, and as a `.pt2` program."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn

from runner.config.errors import ConfigError, Problem
from runner.config.schemas import ExperimentConfig
from runner.module_building import BuiltActingModule
from runner.policy.manifest import METADATA_KEY, Json, make_manifest, updated_manifest
from runner.policy.policy_graph import PolicyGraph


class _WithVariables(nn.Module):
    """The graph with its variables as inputs, so that no exporter folds one into a constant or gives it a name."""

    def __init__(self, graph: PolicyGraph) -> None:
        super().__init__()
        self._graph = (graph,)  # a tuple, so that nn.Module does not register it

    def forward(self, variables: dict[str, Tensor], inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        (graph,) = self._graph
        outputs = graph.compute(inputs, variables)
        return tuple(outputs[port.name] for port in graph.outputs)


def trace_onnx(graph: PolicyGraph) -> onnx.ModelProto:
    """Return the ONNX model of a graph; its initializers are the variables that it uses, under their names.

    Raises:
        ConfigError: torch cannot trace or export the graph; names the connector.
    """
    variables = {name: variable.detach().clone() for name, variable in graph.variables()}
    inputs = graph.example_inputs()
    batch = torch.export.Dim("batch")
    shapes: Any = ({name: {} for name in variables}, {name: {0: batch} for name in inputs})
    with _quiet():
        try:
            program = torch.export.export(
                _WithVariables(graph), (variables, inputs), dynamic_shapes=shapes, strict=False
            )
            exported = torch.onnx.export(
                program,
                dynamo=True,
                input_names=[*variables, *inputs],
                output_names=[port.name for port in graph.outputs],
                verbose=False,
            )
        except Exception as error:
            raise graph.export_error(error) from error
    assert exported is not None
    return _with_initializers(exported.model_proto, variables, graph)


def _with_initializers(model: onnx.ModelProto, variables: dict[str, Tensor], graph: PolicyGraph) -> onnx.ModelProto:
    """Return the model with its variables as initializers, and without metadata about this machine's files."""
    names = [one.name for one in model.graph.input]
    expected = [*variables, *(port.name for port in graph.inputs)]
    outputs = [one.name for one in model.graph.output]
    if names != expected or outputs != [port.name for port in graph.outputs]:
        problem = Problem(
            "the policy cannot be exported: torch has changed inputs or outputs of the graph",
            got=", ".join([*names, *outputs]),
            expected=", ".join([*expected, *(port.name for port in graph.outputs)]),
        )
        raise ConfigError([problem])
    used = {name for node in model.graph.node for name in node.input} | set(outputs)
    for one in (*model.graph.input[len(variables) :], *model.graph.output):
        one.type.tensor_type.shape.dim[0].dim_param = "batch"
    kept = [one for one in model.graph.input if one.name not in variables]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.contiguous().numpy(), name)
        for name, value in variables.items()
        if name in used
    )
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer, model.graph):
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
    del model.metadata_props[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def save_pt2(graph: PolicyGraph, manifest: Json) -> bytes:
    """Return the graph with its variables as a torch program: `torch.export.load(...).module()({"obs": ...})`.

    Raises:
        ConfigError: torch cannot trace the graph; names the connector.
    """
    inputs = graph.example_inputs()
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        try:
            shapes = ({name: {0: batch} for name in inputs},)
            program = torch.export.export(graph, (inputs,), dynamic_shapes=shapes, strict=False)
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # paths of this machine
            file, files = io.BytesIO(), {"manifest.json": json.dumps(manifest, allow_nan=False)}
            torch.export.save(program, file, extra_files=files)
        except Exception as error:
            raise graph.export_error(error) from error
    return file.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the developer messages of exporters."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class OnnxPolicy:
    """The ONNX model of one module with the connectors around it, as a template for any parameters.

    Attributes:
        manifest: manifest of the newest parameters; also stored in the file.
        graph: the exported graph.
    """

    def __init__(self, graph: PolicyGraph, template: onnx.ModelProto, manifest: Json) -> None:
        self.graph = graph
        self.manifest = manifest
        self._template = template
        self._places = graph.places()
        self._num_parameters = max((place.stop for place in self._places.values()), default=0)
        variables = dict(graph.variables())
        self._initializers = {
            one.name: index for index, one in enumerate(template.graph.initializer) if one.name in variables
        }
        self._statistics = {
            name: value.detach().numpy().copy() for name, value in variables.items() if name not in self._places
        }

    @classmethod
    def of_module(cls, built: BuiltActingModule, config: ExperimentConfig) -> OnnxPolicy:
        """Export the module of an experiment; takes seconds.

        Raises:
            ConfigError: a connector or the module cannot be exported; names it.
        """
        graph = PolicyGraph(built)
        return cls(graph, trace_onnx(graph), make_manifest(graph, built, config))

    def to_bytes(
        self, weights: npt.NDArray[np.float32], shared_state: Mapping[str, Any], weights_seq_no: int | None = None
    ) -> bytes:
        """Return the ONNX file with these parameters; takes about a millisecond.

        Args:
            weights: parameters (P,) from `FlatParameters.to_numpy`.
            shared_state: connector name -> state, as env runners share them for this module. Connectors missing from it
                keep the statistics from the time of the export.
            weights_seq_no: number of the weights, for the manifest.

        Raises:
            ValueError: the number of parameters or a shape of statistics differs.
        """
        if weights.shape != (self._num_parameters,):
            raise ValueError(f"weights have {weights.size} values, this module has {self._num_parameters}")
        statistics = self._statistics | self.graph.statistics(shared_state)
        self.manifest = updated_manifest(self.manifest, weights_seq_no, statistics)
        model = onnx.ModelProto()
        model.CopyFrom(self._template)
        little_endian = np.ascontiguousarray(weights, "<f4")
        for name, index in self._initializers.items():
            tensor = model.graph.initializer[index]
            if name in self._places:
                tensor.raw_data = little_endian[self._places[name]].tobytes()
            else:
                tensor.raw_data = _as_stored(statistics[name], self._statistics[name], name)
        model.metadata_props.add(key=METADATA_KEY, value=json.dumps(self.manifest, allow_nan=False))
        content: bytes = model.SerializeToString()
        return content


def _as_stored(value: npt.NDArray[Any], template: npt.NDArray[Any], name: str) -> bytes:
    if value.shape != template.shape:
        raise ValueError(f"{name} has the shape {list(value.shape)}, this policy needs {list(template.shape)}")
    return value.astype(template.dtype.newbyteorder("<")).tobytes()
