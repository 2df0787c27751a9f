"""The pipelines of an experiment as text: each piece in its place, what it reads, what it writes."""

from __future__ import annotations

from collections.abc import Iterator

from runner.builder import build_parts
from runner.config.schemas import ExperimentConfig
from runner.pipelines.piece import ConnectorPiece
from runner.pipelines.pipeline import ConnectorPipeline

_TITLES = {
    "env_to_module": "env_to_module   running episodes -> batch of the next forward pass",
    "module_to_env": "module_to_env   module outputs -> actions of the next step",
    "learner": "learner         episode chunks -> train batch",
}


def render_pipelines(config: ExperimentConfig) -> str:
    """The three pipelines, built as a run would build them."""
    sections = []
    for module_id, parts in build_parts(config).items():
        agents = parts.plan.agents
        sections.append("pipelines" if agents is None else f"pipelines of {module_id}, for {', '.join(agents)}")
        sections += ["\n".join(_render(own)) for own in (parts.env_to_module, parts.module_to_env, parts.learner)]
    return "\n\n".join(sections)


def _render(pipeline: ConnectorPipeline) -> Iterator[str]:
    yield _TITLES[pipeline.name]
    names = [type(piece).__name__ for piece in pipeline]
    width = max(map(len, names), default=0)
    space = pipeline.input_spaces[0]
    for number, (piece, name) in enumerate(zip(pipeline, names, strict=True), start=1):
        yield f"  {number}  {name:<{width}}  {_columns(piece)}".rstrip()
        space_after = pipeline.spaces_after[number - 1][0]
        if space_after != space:
            yield f"     {'':<{width}}  observations are {space_after} from here on"
        space = space_after


def _columns(piece: ConnectorPiece) -> str:
    parts = {"reads": piece.reads, "writes": piece.writes, "per fragment": piece.writes_per_fragment}
    return "   ".join(f"{label} {', '.join(columns)}" for label, columns in parts.items() if columns)
