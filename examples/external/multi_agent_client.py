"""An external simulator with several agents that trains over RLlink; start the server first, in another terminal:

runner train ppo_external_multi_agent_cartpole env.port=5556
python examples/external/multi_agent_client.py --port 5556
"""

from __future__ import annotations

import argparse
from typing import Any

from runner.environments import MultiAgentCartPole
from runner.rllink import Client
from runner.rllink.client import ServerGone


def main() -> None:
    """Play until the server reports that the run has ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5556)
    parser.add_argument("--token", default=None, help="token, if the server requires one")
    parser.add_argument("--inference", choices=("client", "server"), default="client", help="who computes actions")
    parser.add_argument("--seed", type=int, default=0, help="seed of this simulator")
    args = parser.parse_args()
    simulator = MultiAgentCartPole(num_agents=2)
    seed: int | None = args.seed
    num_episodes = 0
    try:
        with Client(args.host, args.port, token=args.token) as client:
            sampler = client.sampler(args.inference, args.seed)
            print(f"connected to {args.host}:{args.port}, actions by the {args.inference}", flush=True)
            while True:
                observations, _ = simulator.reset(seed=seed)
                seed = None
                name = f"env-{num_episodes}"
                actions: dict[str, Any] = {id_: sampler.begin(name, obs, id_) for id_, obs in observations.items()}
                while actions:
                    observations, rewards, terminateds, truncateds, _ = simulator.step(
                        {id_: int(action) for id_, action in actions.items()}
                    )
                    taken = {
                        id_: sampler.step(
                            name, observations[id_], rewards[id_], terminateds[id_], truncateds[id_], agent_id=id_
                        )
                        for id_ in actions
                    }
                    actions = {id_: action for id_, action in taken.items() if action is not None}
                num_episodes += 1
    except ServerGone as gone:
        print(f"{gone}; {num_episodes} episodes played")


if __name__ == "__main__":
    main()
