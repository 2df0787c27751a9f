"""CartPole as an external simulator that trains over RLlink.

Start the server first, in another terminal:

    runner train ppo_external_cartpole env.port=5556
    python examples/external/cartpole_client.py --port 5556

You can start any number of clients, on any machine that can connect to the server. With `--inference server`, the
server computes the actions (`runner train ppo_external_cartpole_remote`).
"""

from __future__ import annotations

import argparse

import gymnasium as gym

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
    simulator = gym.make("CartPole-v1")
    simulator.reset(seed=args.seed)
    num_episodes = 0
    try:
        with Client(args.host, args.port, token=args.token) as client:
            sampler = client.sampler(args.inference, args.seed)
            print(f"connected to {args.host}:{args.port}, actions by the {args.inference}", flush=True)
            while True:
                obs, _ = simulator.reset()
                action = sampler.begin("cartpole", obs)
                while action is not None:
                    obs, reward, terminated, truncated, _ = simulator.step(int(action))
                    action = sampler.step("cartpole", obs, float(reward), terminated, truncated)
                num_episodes += 1
    except ServerGone as gone:
        print(f"{gone}; {num_episodes} episodes played")


if __name__ == "__main__":
    main()
