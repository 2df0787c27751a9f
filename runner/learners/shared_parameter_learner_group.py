"""The learners of this process where modules share parameters: one learner of all modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from runner.learners.collective import Collective
from runner.learners.gradients import ModuleGradient
from runner.learners.learner_group import LearnerGroup
from runner.learners.minibatch_loop import LearnerUpdate
from runner.learners.on_policy_check import OnPolicyConsistencyCheck
from runner.learners.shared_parameter_learner import SharedParameterLearner
from runner.modules.multi_rl_module import ALL_MODULES, member_of
from runner.pipelines.pipeline import LearnerConnectorPipeline


class SharedParameterLearnerGroup(LearnerGroup):
    """A `LearnerGroup` that updates the modules of a `MultiRLModule` together.

    Weights and the learner's state are of all modules, under the key `ALL_MODULES`; metrics and rows are by module.

    Args:
        learner: of the modules.
        pipelines, modules_to_train, collective, consistency_check: see `LearnerGroup`.
    """

    def __init__(
        self,
        learner: SharedParameterLearner,
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
        collective: Collective | None = None,
        consistency_check: OnPolicyConsistencyCheck | None = None,
    ) -> None:
        super().__init__({ALL_MODULES: cast(Any, learner)}, pipelines, modules_to_train, collective, consistency_check)
        self._learner = learner
        self._modules = {module_id: member_of(learner.module, module_id) for module_id in learner.module}
        self._modules_to_train = [module_id for module_id in learner.module if module_id in modules_to_train]

    def _update_each(self, batches: Mapping[str, Mapping[str, Any]], num_env_steps: int) -> dict[str, LearnerUpdate]:
        return self._learner.update(batches, num_env_steps)

    def _gradients_of_each(
        self, batches: Mapping[str, Mapping[str, Any]], num_env_steps: int
    ) -> Mapping[str, ModuleGradient]:
        return self._learner.gradients(batches, num_env_steps)

    def _apply_to_each(
        self, gradients: Mapping[str, ModuleGradient], num_env_steps: int
    ) -> dict[str, dict[str, float]]:
        return self._learner.apply(gradients, num_env_steps)

    def update_targets(self, tau: float) -> None:
        """Let the targets of each module that is trained follow: target <- target + tau (network - target)."""
        self._learner.update_targets(tau)
