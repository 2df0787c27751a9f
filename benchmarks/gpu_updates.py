"""Gradient steps/s and microseconds per action on a GPU, compared with the CPU and with a bare torch loop on the GPU.

Learners: PPO's update of one train batch by the trainer's learner, with rows that start on the CPU, and by a bare loop
with the same network and loss, with rows on the GPU. Acting: one forward pass of a vector step, including the copies to
the GPU and back. The CPU uses torch's default number of threads. Systems are interleaved in one process.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bench_common as bc
import torch
from scale_costs import IMAGES, OVERRIDES
from torch import nn
from torch.nn import functional

from runner import Trainer
from runner.env_runners.acting_pass import ActingPass
from runner.experiment.env_runner_builder import make_env_runner

CPU, GPU, COMPILED, BARE = "CPU", "GPU", "GPU, compiled", "bare loop on the GPU"
ACTING_ROWS = (8, 64, 256)
NUM_ACTIONS = 6  # of ImageEnv


@dataclass(frozen=True)
class Case:
    """A network and the rows of its updates.

    Attributes:
        hiddens: widths of the hidden layers, after the convolutions if observations are images.
        batch, minibatch: number of rows.
    """

    name: str
    hiddens: tuple[int, ...]
    batch: int
    minibatch: int
    obs_shape: tuple[int, ...] = (4,)
    num_actions: int = 2

    @property
    def is_image(self) -> bool:
        """Whether convolutions come first."""
        return len(self.obs_shape) == 3

    @property
    def network(self) -> list[str]:
        """Overrides of the environment and the module."""
        return [*(OVERRIDES[IMAGES] if self.is_image else ()), f"module.fcnet_hiddens={list(self.hiddens)}"]

    def observations(self, num_rows: int) -> torch.Tensor:
        """Return observations (num_rows, *obs_shape) on the CPU."""
        shape = (num_rows, *self.obs_shape)
        return torch.randint(0, 256, shape, dtype=torch.uint8) if self.is_image else torch.randn(shape)


NUM_EPOCHS, CLIP = 2, 0.2
CASES = (
    Case("CartPole, MLP 256 256, minibatches of 128", (256, 256), 4096, 128),
    Case("CartPole, MLP 1024 1024, minibatches of 4,096", (1024, 1024), 32768, 4096),
    Case("84x84x4 images, CNN of Atari, minibatches of 256", (512,), 1024, 256, (84, 84, 4), NUM_ACTIONS),
)


def settings_of(case: Case) -> list[str]:
    return [
        f"algorithm.train_batch_size_per_learner={case.batch}",
        f"algorithm.minibatch_size={case.minibatch}",
        f"algorithm.num_epochs={NUM_EPOCHS}",
        f"algorithm.clip_param={CLIP}",
        "algorithm.use_kl_loss=false",
        "algorithm.vf_clip_param=null",
        "algorithm.grad_clip=0.5",
        "module.vf_share_layers=true",
        "env_runners.num_envs_per_env_runner=32",
        "evaluation.evaluation_interval=null",
        "tracking=none",
        *case.network,
    ]


class OurUpdate:
    """Repeats the update of one rollout."""

    def __init__(self, case: Case, device: str, compiled: bool) -> None:
        device_keys = [f"learners.device={device}", f"learners.compile={str(compiled).lower()}"]
        self._trainer = Trainer.from_experiment("ppo_cartpole", [*settings_of(case), *device_keys])
        self._rollouts: list[Any] = []
        update = self._trainer.learners.update
        self._trainer.learners.update = lambda rollout, *rest: self._rollouts.append(rollout) or update(rollout, *rest)
        self._trainer.train()
        self._update = update

    def __call__(self) -> int:
        result = self._update(self._rollouts[0], 0)
        [metrics] = result.metrics.values()
        return int(metrics["num_minibatch_updates"])

    def close(self) -> None:
        self._trainer.close()


class BareNetwork(nn.Module):
    """The network of the module, with policy and value on shared layers."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = math.prod(case.obs_shape)
        if case.is_image:
            for channels, filters, size, stride in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
                layers += [nn.Conv2d(channels, filters, size, stride), nn.ReLU()]
            layers.append(nn.Flatten())
            width = 64 * 7 * 7
        for hidden in case.hiddens:
            layers += [nn.Linear(width, hidden), nn.Tanh()]
            width = hidden
        self.body, self.policy, self.value = (
            nn.Sequential(*layers),
            nn.Linear(width, case.num_actions),
            nn.Linear(width, 1),
        )

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if obs.dim() == 4:
            obs = obs.permute(0, 3, 1, 2).float() / 255.0
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


class BareUpdate:
    """PPO's minibatch loop without any overhead; its rows are on the GPU, and it never waits for the GPU."""

    def __init__(self, case: Case) -> None:
        self._case, self._network = case, BareNetwork(case).to("cuda")
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=5e-5)
        self._obs = case.observations(case.batch).to("cuda")
        self._actions = torch.randint(0, case.num_actions, (case.batch,), device="cuda")
        self._logp = torch.full((case.batch,), -1.0, device="cuda")
        self._advantages, self._targets = torch.randn(2, case.batch, device="cuda")

    def __call__(self) -> int:
        steps = 0
        for _ in range(NUM_EPOCHS):
            order = torch.randperm(self._case.batch, device="cuda")
            for rows in order.split(self._case.minibatch):
                logits, values = self._network(self._obs[rows])
                logps = functional.log_softmax(logits, dim=-1)
                logp = logps.gather(-1, self._actions[rows, None]).squeeze(-1)
                ratio = torch.exp(logp - self._logp[rows])
                advantages = self._advantages[rows]
                surrogate = torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)
                loss = functional.mse_loss(values, self._targets[rows]) - surrogate.mean()
                self._optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self._network.parameters(), 0.5)
                self._optimizer.step()
                steps += 1
        return steps

    def close(self) -> None:
        """Do nothing."""


def steps_per_s(update: Callable[[], int], at_least_s: float) -> float:
    """Return gradient steps/s of updates, measured for at least this many seconds."""
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < at_least_s:
        steps += update()
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - started)


def measure_learners(case: Case, repeats: int, at_least_s: float) -> dict[str, list[float]]:
    """Return gradient steps/s of each system and repeat."""
    systems: dict[str, OurUpdate | BareUpdate] = {
        CPU: OurUpdate(case, "cpu", False),
        GPU: OurUpdate(case, "cuda", False),
        COMPILED: OurUpdate(case, "cuda", True),
        BARE: BareUpdate(case),
    }
    for system in systems.values():
        system()
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, system in systems.items():
            found[name].append(steps_per_s(system, at_least_s))
    for system in systems.values():
        system.close()
    return found


def measure_acting(case: Case, num_rows: int, repeats: int, at_least_s: float) -> dict[str, list[float]]:
    """Return microseconds per forward pass of each repeat."""
    runner = make_env_runner("ppo_cartpole", case.network)
    obs = case.observations(num_rows)
    found: dict[str, list[float]] = {CPU: [], GPU: []}
    with torch.inference_mode():
        for _ in range(repeats):
            for name, device in ((CPU, "cpu"), (GPU, "cuda")):
                acting = ActingPass(runner.module.to(device))
                acting({"obs": obs}, True)
                steps, started = 0, time.perf_counter()
                while time.perf_counter() - started < at_least_s:
                    acting({"obs": obs}, True)
                    steps += 1
                found[name].append(1e6 * (time.perf_counter() - started) / steps)
    runner.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum seconds per measurement")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU on this machine")
    machine = f"{torch.cuda.get_device_name()}, {bc.cpu_model()}, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}")
    rows = []
    for case in CASES:
        speeds = measure_learners(case, args.repeats, args.seconds)
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        per_bare = (bc.ratio(speeds[name], speeds[BARE]) for name in (GPU, COMPILED))
        rows.append([case.name, *map(bc.spread, speeds.values()), *per_bare])
        bc.log(f"{case.name}: {medians}, {case.minibatch * medians[GPU]:,.0f} rows/s on the GPU")
    print(bc.markdown_table(["gradient steps/s", CPU, GPU, COMPILED, BARE, "GPU / bare", "compiled / bare"], rows))
    rows = []
    for case in (CASES[0], CASES[2]):
        for num_rows in ACTING_ROWS:
            times = measure_acting(case, num_rows, args.repeats, args.seconds / 4)
            rows.append([case.name.partition(", minibatches")[0], str(num_rows), *map(bc.spread, times.values())])
    print(bc.markdown_table(["acting, microseconds per vector step", "sub-environments", CPU, GPU], rows))


if __name__ == "__main__":
    main()
