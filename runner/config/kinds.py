"""The classes that dotted paths of a configuration may name, by where they are defined."""

from __future__ import annotations

from runner.config.targets import Kinds

VECTOR_ENV = "gymnasium.vector.vector_env.VectorEnv"
PIPELINE = "runner.pipelines.pipeline.ConnectorPipeline"

ENVIRONMENTS = Kinds(
    ("gymnasium.core.Env", VECTOR_ENV, "runner.env_runners.multi_agent_env.MultiAgentEnv"),
    "gymnasium.Env, gymnasium.vector.VectorEnv or MultiAgentEnv",
    has_factories=True,
)
PIECES = Kinds(("runner.pipelines.piece.ConnectorPiece",), "runner.pipelines.ConnectorPiece")
MODULES = Kinds(("runner.modules.rl_module.RLModule",), "runner.modules.RLModule")
LOSSES = Kinds(("runner.learners.loss.Loss",), "runner.learners.loss.Loss")
AGENT_MAPPINGS = Kinds(("runner.env_runners.multi_agent_env.AgentMapping",), "AgentMapping")
