"""The policy that a checkpoint holds, ready to be exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.checkpoints import load_checkpoint, naming_checkpoint
from runner.checkpoints.policy_state import shared_state_in
from runner.config.errors import ConfigError, Problem, RunFailure, nearest_match
from runner.config.schemas import ExperimentConfig
from runner.module_parts import ActingParts, build_acting_parts, check_acts_alone, make_module_specs
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import parameters_by_module
from runner.modules.stored_parameters import check_same_network
from runner.policy.manifest import Manifest
from runner.policy.onnx_policy import OnnxPolicy
from runner.policy.policy_graph import PolicyGraph
from runner.policy.reference import ProgramPolicy, largest_difference
from runner.policy.tracing import save_pt2
from runner.rllink.client.local_policy import LocalPolicy

_NUM_CHECKED_ROWS, _NUM_CHECKED_STEPS = 64, 4
_LARGEST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class StoredPolicy:
    """A module of a checkpoint.

    Attributes:
        parts: with the checkpoint's parameters.
        weights: (P,) these parameters.
        shared_state: connector name -> state.
    """

    config: ExperimentConfig
    parts: ActingParts
    weights: npt.NDArray[np.float32]
    shared_state: Mapping[str, Any]

    @classmethod
    def load(cls, checkpoint: Path, config: ExperimentConfig, module_id: str | None) -> StoredPolicy:
        """Read a checkpoint.

        Args:
            checkpoint: its folder.
            config: of the run.
            module_id: which module; None: the only one.

        Raises:
            ConfigError: there is no such module, or there are several, or it acts only together with others; or the
                checkpoint's parameters belong to another network.
            CheckpointError: the checkpoint is truncated or altered.
        """
        plans = make_module_specs(config)
        plan = plans[_chosen(module_id, list(plans))]
        check_acts_alone(config, "be exported")
        parts = build_acting_parts(config, plan)
        state, _ = load_checkpoint(checkpoint)
        with naming_checkpoint(checkpoint):
            values = parameters_by_module(state["learners"]["learners"])[plan.module_id]
            check_same_network(parts.module, values)
            parts.module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in values.items()})
            shared_state = shared_state_in(state).get(plan.module_id, {})
        return cls(config, parts, FlatParameters(parts.module).to_numpy(), shared_state)

    def to_onnx(self) -> ExportedPolicy:
        """Export as ONNX; raises as `checked` does, and ConfigError for what cannot be exported."""
        policy = OnnxPolicy.of_parts(self.parts, self.config)
        content = policy.to_bytes(self.weights, self.shared_state)
        return self._checked(content, policy.manifest, LocalPolicy(content))

    def to_pt2(self) -> ExportedPolicy:
        """Export as a torch program; raises as `to_onnx` does."""
        graph = PolicyGraph(self.parts)
        graph.load(self.weights, self.shared_state)
        manifest = Manifest.of(graph, self.parts, self.config).updated(None, graph.statistics(self.shared_state))
        content = save_pt2(graph, manifest.to_json())
        return self._checked(content, manifest, ProgramPolicy(content))

    def _checked(self, content: bytes, manifest: Manifest, policy: LocalPolicy) -> ExportedPolicy:
        difference = largest_difference(
            policy, self.parts, self.weights, self.shared_state, _NUM_CHECKED_ROWS, _NUM_CHECKED_STEPS
        )
        if not difference <= _LARGEST_DIFFERENCE:
            problem = Problem(
                "the exported policy does not do what the module does: a connector's to_graph differs from the "
                "connector, or the module draws random numbers",
                got=f"a difference of {difference:g} on random observations",
                allowed=f"at most {_LARGEST_DIFFERENCE:g}",
            )
            raise RunFailure(problem)
        return ExportedPolicy(content, manifest, difference, _NUM_CHECKED_ROWS * _NUM_CHECKED_STEPS)


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy file that was compared with the module.

    Attributes:
        content: of the file.
        difference: the largest one on `num_compared` random observations, see `largest_difference`.
    """

    content: bytes
    manifest: Manifest
    difference: float
    num_compared: int


def _chosen(module_id: str | None, known: list[str]) -> str:
    if module_id is None and len(known) == 1:
        return known[0]
    if module_id is None:
        problem = Problem("the run has several modules", "--module", None, f"--module {'|'.join(known)}")
        raise ConfigError([problem])
    if module_id not in known:
        what = f"the run has no module {module_id}"
        raise ConfigError([Problem(what, "--module", module_id, ", ".join(known), nearest_match(module_id, known))])
    return module_id
