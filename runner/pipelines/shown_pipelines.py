"""Display of the pipelines of a module, next to each other in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline, ModuleToEnvPipeline


@dataclass(frozen=True)
class ShownPipelines:
    """The pipelines around a module.

    Attributes:
        env_to_module: from running episodes to the batch of the next forward pass.
        module_to_env: from module outputs to actions.
        learner: from episode chunks to the train batch.
    """

    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline
    learner: LearnerConnectorPipeline

    def _repr_html_(self) -> str:
        drawings = (one._repr_svg_() for one in (self.env_to_module, self.module_to_env, self.learner))
        return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:12px">{"".join(drawings)}</div>'
