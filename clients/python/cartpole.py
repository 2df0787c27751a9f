"""CartPole as an external simulator that trains over RLlink; needs only rllink-client.

    runner train ppo_external_cartpole env.port=5556
    python clients/python/cartpole.py --port 5556

With `--inference server` the server acts (`ppo_external_cartpole_remote`), and no onnxruntime is needed.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from rllink_client import Client, ServerGone

GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH = 9.8, 0.1, 1.1, 0.5  # m/s2, kg, kg, m
FORCE_NEWTON, TIME_STEP_S = 10.0, 0.02
MAX_POSITION, MAX_ANGLE, MAX_STEPS = 2.4, math.radians(12), 500  # m, rad


class CartPole:
    """CartPole (Barto, Sutton and Anderson, 1983) with the equations of Gymnasium's CartPole-v1.

    Attributes:
        state: position (m), velocity (m/s), angle (rad) and angular velocity (rad/s); observations are (4,) float32.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.state = [0.0] * 4
        self._num_steps = 0

    def reset(self) -> np.ndarray:
        """Begin an episode, and return its first observation."""
        self.state = self._rng.uniform(-0.05, 0.05, 4).tolist()
        self._num_steps = 0
        return np.array(self.state, np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Push to the right (1) or left (0); return observation, reward, terminated and truncated."""
        _, x_dot, theta, theta_dot = self.state
        cosine, sine = math.cos(theta), math.sin(theta)
        force = FORCE_NEWTON if action == 1 else -FORCE_NEWTON
        pull = (force + POLE_MASS * HALF_LENGTH * theta_dot**2 * sine) / TOTAL_MASS
        angle_acceleration = (GRAVITY * sine - cosine * pull) / (
            HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / TOTAL_MASS)
        )
        acceleration = pull - POLE_MASS * HALF_LENGTH * angle_acceleration * cosine / TOTAL_MASS
        rates = (x_dot, acceleration, theta_dot, angle_acceleration)
        self.state = [value + TIME_STEP_S * rate for value, rate in zip(self.state, rates, strict=True)]
        self._num_steps += 1
        terminated = abs(self.state[0]) > MAX_POSITION or abs(self.state[2]) > MAX_ANGLE
        truncated = not terminated and self._num_steps >= MAX_STEPS
        return np.array(self.state, np.float32), 1.0, terminated, truncated


def main() -> None:
    """Play until the run is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5556)
    parser.add_argument("--token", default=None, help="token, if the server requires one")
    parser.add_argument(
        "--inference", choices=("client", "server"), default="client", help="process that computes actions"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of this simulator")
    args = parser.parse_args()
    simulator = CartPole(args.seed)
    num_episodes = 0
    try:
        with Client(args.host, args.port, token=args.token) as client:
            sampler = client.sampler(args.inference, args.seed)
            print(f"connected to {args.host}:{args.port}, actions by the {args.inference}", flush=True)
            while True:
                action = sampler.begin("cartpole", simulator.reset())
                while action is not None:
                    action = sampler.step("cartpole", *simulator.step(int(action)))
                num_episodes += 1
    except ServerGone as gone:
        print(f"{gone}; {num_episodes} episodes played")


if __name__ == "__main__":
    main()
