"""The server's knowledge of one client."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.rllink.inference import ServedEpisode
from runner.rllink.messages import AgentKey
from runner.rllink.receiving import OpenEpisodes


@dataclass(eq=False)
class ServedClient:
    """One client: a connection, or a session that outlives its connections.

    Attributes:
        name: begins the ids of its episodes.
        open: its open episodes that it samples itself.
        served_episodes: its open episodes in which the server chooses the actions.
        seq_no: number of the weights that it was sent last; None before the first.
        samples: whether it waited for new weights after its last episodes, so that others have to wait for it.
        weights_format: `onnx` or `safetensors`.
        has_agents, has_tasks: whether the extensions `agents` and `tasks` are granted.
        session_id: id of its session; None without one.
        is_quarantined: whether its steps are left out of samples.
    """

    name: str
    open: OpenEpisodes
    served_episodes: dict[AgentKey, ServedEpisode] = field(default_factory=dict)
    seq_no: int | None = None
    samples: bool = False
    weights_format: str = "onnx"
    has_agents: bool = False
    has_tasks: bool = False
    session_id: str | None = None
    is_quarantined: bool = False
