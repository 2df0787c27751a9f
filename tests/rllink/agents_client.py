"""A simulator whose agents come and go, three env episodes at once; it writes down what it has played.

python tests/rllink/agents_client.py --port PORT --log FILE [--inference client|server]

It imports the distribution of clients/python, and nothing of runner.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "python"))

from rllink_client import Client, ServerGone

AGENTS = ("agent_0", "agent_1")


class Visits:
    """An env episode: each agent, if it comes at all, is there from one env step to another."""

    def __init__(self, slot: int, number: int, rng: np.random.Generator) -> None:
        self.slot, self.number, self.rng = slot, number, rng
        self.name = f"slot {slot}" if slot else f"env {number}"  # used again, and used once
        coming = [agent for agent in AGENTS if rng.random() < 0.7] or [str(rng.choice(AGENTS))]
        self.stays = {agent: sorted(rng.choice(12, 2, replace=False).tolist()) for agent in coming}
        self.played: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, int] = {}

    @property
    def is_over(self) -> bool:
        return all("is_terminated" in self.played.get(agent, {}) for agent in self.stays)

    def step(self, sampler: Any, t: int) -> None:
        """Take the env step to time `t`: agents come, act and go."""
        for agent, (first, _) in self.stays.items():
            if first == t:
                obs = self._obs(t)
                self.played[agent] = {"obs": [obs.tolist()], "actions": [], "rewards": []}
                self.actions[agent] = int(sampler.begin(self.name, obs, agent))
        for agent, (first, last) in self.stays.items():
            if first < t <= last:
                self._act(sampler, agent, t, t == last)

    def _act(self, sampler: Any, agent: str, t: int, is_last: bool) -> None:
        obs, reward, is_terminated = self._obs(t), float(self.rng.integers(-3, 4)), is_last and bool(self.number % 2)
        of_agent = self.played[agent]
        of_agent["obs"].append(obs.tolist())
        of_agent["actions"].append(self.actions[agent])
        of_agent["rewards"].append(reward)
        others_come = any(first > t for first, _ in self.stays.values())
        ends = is_terminated, is_last and not is_terminated
        if is_last:
            of_agent["is_terminated"] = is_terminated
        if self.is_over:  # before the message that may end the run
            self.log()
        action = sampler.step(self.name, obs, reward, *ends, agent, env_continues=others_come)
        if action is not None:
            self.actions[agent] = int(action)

    def log(self) -> None:
        raise NotImplementedError

    def _obs(self, t: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return an observation of CartPole's space that says where it is from."""
        return np.array([0.0, self.number, 0.0, t], np.float32)


def main() -> None:
    """Play until the server says that the run is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--inference", choices=("client", "server"), default="client")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    begun = 0
    with args.log.open("w") as log:

        class Logged(Visits):
            def log(self) -> None:
                print(json.dumps({"number": self.number, "agents": self.played}), file=log, flush=True)

        def begin(slot: int) -> Visits:
            nonlocal begun
            begun += 1
            return Logged(slot, args.seed * 100_000 + begun, rng)

        try:
            with Client("127.0.0.1", args.port) as client:
                sampler = client.sampler(args.inference, args.seed)
                playing = [(begin(slot), 0) for slot in range(3)]
                while True:
                    for slot, (visits, t) in enumerate(playing):
                        visits.step(sampler, t)
                        playing[slot] = (begin(slot), 0) if visits.is_over else (visits, t + 1)
        except ServerGone:
            pass


if __name__ == "__main__":
    main()
