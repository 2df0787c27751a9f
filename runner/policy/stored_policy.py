"""The policy of a checkpoint, ready for export, and the policy as env runners run it, for comparison."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.checkpoints import load_checkpoint, naming_checkpoint
from runner.checkpoints.folder import shared_state_in
from runner.config.errors import ConfigError, Problem, RunFailure, nearest_match
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.episodes.spaces import blank_item
from runner.module_building import BuiltActingModule, build_acting_module, check_acts_alone, make_module_specs
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.flat_parameters import FlatParameters, check_same_network
from runner.modules.multi_rl_module import parameters_by_module
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTIONS, ACTIONS_FOR_ENV
from runner.pipelines.module_to_env_connectors import ModuleToAgentUnmapping
from runner.policy.manifest import Json, make_manifest, updated_manifest
from runner.policy.onnx_policy import OnnxPolicy, save_pt2
from runner.policy.policy_graph import PolicyGraph
from runner.rllink.client.local_policy import LocalPolicy
from runner.rows.lock_step_rows import LockStepRows

_HUGE = 1e6
_NUM_CHECKED_ROWS, _NUM_CHECKED_STEPS = 64, 4
_LARGEST_DIFFERENCE = 1e-4


class ReferencePolicy:
    """Acts greedily in B episodes together, with a copy of the module.

    Args:
        built: module with its pipelines.
        weights: parameters (P,).
        shared_state: connector name -> state.
        num_rows: B.
    """

    def __init__(
        self, built: BuiltActingModule, weights: npt.NDArray[np.float32], shared_state: Mapping[str, Any], num_rows: int
    ) -> None:
        built = copy.deepcopy(built)
        self._module = built.module.cpu().eval()
        self._env_to_module, self._module_to_env = built.env_to_module, built.module_to_env
        self._env_to_module.freeze()
        self._env_to_module.set_state(shared_state)
        FlatParameters(self._module).load(weights)
        lookback = max(one.requires.num_lookback for one in (self._env_to_module, self._module_to_env))
        blanks = blank_item(built.spec.observation_space), blank_item(self._module.action_space)
        self._episodes = LockStepRows(num_rows, *blanks, "reference", lookback)
        self._is_first = True
        self._outputs: dict[str, Any] = {}

    @torch.no_grad()
    def act(self, obs: Any, rewards: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Return columns after the module-to-env connectors: `action_dist_inputs`, `actions`, `actions_for_env` etc.

        Args:
            obs: current observations (B, ...).
            rewards: rewards (B,) of the previous actions; ignored in the first step.
        """
        if self._is_first:
            self._episodes.add_reset(obs, {})
        else:
            continues = np.zeros(len(rewards), np.bool_)
            self._episodes.add_step(obs, rewards, continues, continues, {}, self._outputs)
        self._is_first = False
        batch = self._env_to_module(rl_module=self._module, batch={}, episodes=self._episodes, explore=False)
        outputs = self._module.forward_inference(batch)
        acted_on = outputs[ACTION_DIST_INPUTS]
        for connector in self._module_to_env:
            if not isinstance(connector, ModuleToAgentUnmapping):
                outputs = connector(rl_module=self._module, batch=outputs, episodes=self._episodes, explore=False)
                # A connector that explores removes this column, but a file returns it.
                acted_on = outputs.get(ACTION_DIST_INPUTS, acted_on)
        self._outputs = {name: column for name, column in outputs.items() if name != ACTIONS_FOR_ENV}
        return {ACTION_DIST_INPUTS: acted_on, **outputs}


class ProgramPolicy(LocalPolicy):
    """A `.pt2` file that acts like an ONNX file.

    Args:
        content: content of the file.
    """

    def __init__(self, content: bytes) -> None:
        files = {"manifest.json": ""}
        self._program = torch.export.load(io.BytesIO(content), extra_files=files).module()
        self._use(json.loads(files["manifest.json"]))

    @torch.no_grad()
    def _run(self, feeds: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        outputs = self._program({name: torch.from_numpy(value) for name, value in feeds.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def random_observations(space: gym.Space[Any], num_rows: int) -> Any:
    """Return samples (num_rows, ...) of a space with its dtypes and moderate values; seed the space before."""
    return nested.map_leaves(_moderate, nested.stack([space.sample() for _ in range(num_rows)]))


def _moderate(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the logarithms of values that are huge because of bounds such as 3e38, which mean unbounded."""
    is_huge = leaf.dtype.kind == "f" and np.abs(leaf).max(initial=0.0) > _HUGE
    return np.sign(leaf) * np.log1p(np.abs(leaf)) if is_huge else leaf


def largest_difference(
    policy: LocalPolicy,
    built: BuiltActingModule,
    weights: npt.NDArray[np.float32],
    shared_state: Mapping[str, Any],
    num_rows: int = _NUM_CHECKED_ROWS,
) -> float:
    """Return the largest difference between a file's and the policy's outputs in B episodes of random observations.

    Args:
        policy: the file with these parameters.
        built, weights, shared_state: module and state of the policy.
        num_rows: B.

    Returns:
        The largest difference of `actions`, relative for values beyond 1, and of `action_dist_inputs`, relative to the
        largest value of the row if that is above 1: rounding errors of a row have the size of its largest values,
        without the logits of masked actions. NaN if only one of both returns NaN.
    """
    reference = ReferencePolicy(built, weights, shared_state, num_rows)
    space = copy.deepcopy(built.spec.observation_space)
    space.seed(0)
    stream = np.random.default_rng(0)
    state: dict[str, Any] | None = None
    differences = [0.0]
    for _ in range(_NUM_CHECKED_STEPS):
        obs = random_observations(space, num_rows)
        rewards = stream.normal(size=num_rows).astype(np.float32)
        expected = reference.act(obs, rewards)
        actions, extra = policy.act(obs, state, explore=False, rewards=None if state is None else rewards)
        inputs = np.asarray(expected[ACTION_DIST_INPUTS], np.float64)  # (B, K)
        size = np.abs(np.where(inputs == MASKED_LOGIT, 0.0, inputs)).max(-1, keepdims=True)
        differences.append(_difference(extra[ACTION_DIST_INPUTS], inputs, size))
        pairs = zip(nested.leaves(actions), nested.leaves(expected[ACTIONS_FOR_ENV]), strict=True)
        differences += [_difference(got, expected, np.abs(expected)) for got, expected in pairs]
        state = policy.with_actions(extra["state_out"], expected[ACTIONS])
    return float(np.max(differences))  # unlike `max`, NaN if one of them is


def _difference(a: Any, b: Any, size: Any) -> float:
    """Return the largest difference relative to `size`, or NaN if only one of two numbers is NaN."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # differences of infinities
        relative = np.abs(a - b) / np.maximum(1.0, size)
    return float(np.where(is_equal, 0.0, relative).max(initial=0.0))


@dataclass(frozen=True)
class StoredPolicy:
    """A module of a checkpoint.

    Attributes:
        built: module with the checkpoint's parameters.
        weights: these parameters (P,).
        shared_state: connector name -> state.
    """

    config: ExperimentConfig
    built: BuiltActingModule
    weights: npt.NDArray[np.float32]
    shared_state: Mapping[str, Any]

    @classmethod
    def load(cls, checkpoint: Path, config: ExperimentConfig, module_id: str | None) -> StoredPolicy:
        """Read a checkpoint.

        Args:
            checkpoint: folder of the checkpoint.
            config: configuration of the run.
            module_id: id of the module, or None for the only one.

        Raises:
            ConfigError: the module does not exist, is one of several, or acts only together with others; or the
                checkpoint's parameters belong to another network.
            CheckpointError: the checkpoint is truncated or altered.
        """
        specs = make_module_specs(config)
        spec = specs[_chosen(module_id, list(specs))]
        check_acts_alone(config, "be exported")
        built = build_acting_module(config, spec)
        state, _ = load_checkpoint(checkpoint)
        with naming_checkpoint(checkpoint):
            values = parameters_by_module(state["learners"]["learners"])[spec.module_id]
            check_same_network(built.module, values)
            built.module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in values.items()})
            shared_state = shared_state_in(state).get(spec.module_id, {})
        return cls(config, built, FlatParameters(built.module).to_numpy(), shared_state)

    def to_onnx(self) -> ExportedPolicy:
        """Export as ONNX; raises the errors of `checked`, and ConfigError if the policy cannot be exported."""
        policy = OnnxPolicy.of_module(self.built, self.config)
        content = policy.to_bytes(self.weights, self.shared_state)
        return self._checked(content, policy.manifest, LocalPolicy(content))

    def to_pt2(self) -> ExportedPolicy:
        """Export as a torch program; raises the errors of `to_onnx`."""
        graph = PolicyGraph(self.built)
        graph.load(self.weights, self.shared_state)
        manifest = make_manifest(graph, self.built, self.config)
        manifest = updated_manifest(manifest, None, graph.statistics(self.shared_state))
        content = save_pt2(graph, manifest)
        return self._checked(content, manifest, ProgramPolicy(content))

    def _checked(self, content: bytes, manifest: Json, policy: LocalPolicy) -> ExportedPolicy:
        difference = largest_difference(policy, self.built, self.weights, self.shared_state)
        if not difference <= _LARGEST_DIFFERENCE:
            problem = Problem(
                "the exported policy and the module act differently: a connector's to_graph differs from the "
                "connector, or the module draws random numbers",
                got=f"a difference of {difference:g} on random observations",
                expected=f"at most {_LARGEST_DIFFERENCE:g}",
            )
            raise RunFailure(problem)
        return ExportedPolicy(content, manifest, difference, _NUM_CHECKED_ROWS * _NUM_CHECKED_STEPS)


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy file that was compared with the module.

    Attributes:
        content: content of the file.
        difference: largest difference for `num_compared` random observations, see `largest_difference`.
    """

    content: bytes
    manifest: Json
    difference: float
    num_compared: int


def _chosen(module_id: str | None, known: list[str]) -> str:
    if module_id is None and len(known) == 1:
        return known[0]
    if module_id is None:
        fix = f"choose one with --module {'|'.join(known)}"
        problem = Problem("the run has several modules", "--module", fix=fix)
        raise ConfigError([problem])
    if module_id not in known:
        what = f"the run does not have a module {module_id}"
        raise ConfigError([Problem(what, "--module", module_id, ", ".join(known), nearest_match(module_id, known))])
    return module_id
