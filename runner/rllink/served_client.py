"""What the server knows of one client."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.rllink.inference import ServedEpisode
from runner.rllink.messages import AgentKey
from runner.rllink.receiving import OpenEpisodes


@dataclass(eq=False)
class Client:
    """One client: a connection, or a session that outlives its connections.

    Attributes:
        name: begins the ids of its episodes.
        open: its episodes that go on; `served_episodes`: those in which the server chooses the actions.
        seq_no: of the weights that it was sent last.
        samples: whether it waits for weights after its episodes, so that others may have to wait for it.
        weights_format: `onnx` or `safetensors`.
        has_agents: whether it knows of several agents.
        session_id: of its session, if it has one.
    """

    name: str
    open: OpenEpisodes
    served_episodes: dict[AgentKey, ServedEpisode] = field(default_factory=dict)
    seq_no: int | None = None
    samples: bool = False
    weights_format: str = "onnx"
    has_agents: bool = False
    session_id: str | None = None
