"""PPO on CartPole for several agents: ours and RLlib, 8 sub-environments in one process.

Two agents use a module each; with `--num-agents 16` all agents share one.
"""

from __future__ import annotations

import bench_common as bc
import side_by_side

PEERS = (
    bc.Peer("ours", "ours.py", ("--experiment", "ppo_multi_agent_cartpole")),
    bc.Peer("rllib", "rllib_multi_agent.py"),
)

if __name__ == "__main__":
    side_by_side.run(__doc__, "multi_agent", PEERS, num_envs=8)
