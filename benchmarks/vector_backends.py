"""Env steps per second of random actions in the sub-environments of an env runner, by `env.backend`.

Backends are interleaved three times; the table shows the median, the lowest and the highest value. A reset takes time
but is not an env step. Backends that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass, field
from typing import Any

import bench_common as bc

from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment
from runner.testing.environment_findings import speed_together

REPEATS = 3
_FRAMES = {"stack_num": 1, "use_fire_reset": False}
_GREY_84 = {"_target_": "gymnasium.wrappers.AtariPreprocessing", "noop_max": 30, "grayscale_newaxis": True}


@dataclass(frozen=True)
class Setting:
    """Sub-environments of one backend."""

    task: str
    num_envs: int
    name: str
    env: EnvConfig
    num_steps: int
    mode: str = "auto"
    needs: str = field(default="gymnasium")

    def speed(self, num_steps: int) -> float:
        """Return env steps per second."""
        return speed_together(self._make, self.num_envs, num_steps, seed=0)

    def _make(self, num_envs: int) -> Any:
        return make_environment(self.env, num_envs, self.mode)


def envpool(task: str, num_envs: int, num_steps: int, env: str, **options: Any) -> list[Setting]:
    """Return EnvPool with its default number of threads, one per CPU, and with one thread."""
    return [
        Setting(task, num_envs, name, EnvConfig(env, "envpool", env_config=options | more), num_steps, needs="envpool")
        for name, more in (("envpool", {}), ("envpool, 1 thread", {"num_threads": 1}))
    ]


def settings() -> list[Setting]:
    """Return all settings, grouped by task."""
    found = []
    for num_envs in (8, 64):
        cartpole = EnvConfig("CartPole-v1")
        found += [
            Setting("CartPole-v1", num_envs, "gymnasium, batched", cartpole, 100_000),
            Setting("CartPole-v1", num_envs, "gymnasium, one by one", cartpole, 40_000, "sync"),
            *envpool("CartPole-v1", num_envs, 100_000, "CartPole-v1"),
        ]
    cheetah = "HalfCheetah-v5"
    found += [
        Setting(cheetah, 8, "gymnasium, one by one", EnvConfig(cheetah), 10_000),
        *envpool(cheetah, 8, 20_000, cheetah),
    ]
    options = {"frameskip": 1, "repeat_action_probability": 0.0}
    by_gymnasium = EnvConfig("ale_py:ALE/Breakout-v5", env_config=options, wrappers=[_GREY_84])
    by_ale = EnvConfig("ALE/Breakout-v5", "ale", env_config={**_FRAMES, "reward_clipping": False})
    return [
        *found,
        Setting("Breakout", 8, "gymnasium, one by one", by_gymnasium, 3_000),
        Setting("Breakout", 8, "ale", by_ale, 6_000, needs="ale_py"),
        *envpool("Breakout", 8, 6_000, "Breakout-v5", **_FRAMES),
    ]


def main() -> None:
    """Measure all settings and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are meaningless")
    args = parser.parse_args()
    chosen = [one for one in settings() if importlib.util.find_spec(one.needs)]
    speeds: list[list[float]] = [[] for _ in chosen]
    for _ in range(1 if args.quick else REPEATS):
        for setting, of_setting in zip(chosen, speeds, strict=True):
            of_setting.append(setting.speed(setting.num_envs * 10 if args.quick else setting.num_steps))
    rows = [
        (one.task, str(one.num_envs), one.name, bc.spread(values)) for one, values in zip(chosen, speeds, strict=True)
    ]
    print(bc.markdown_table(["environment", "sub-environments", "backend", "env steps/s"], rows))


if __name__ == "__main__":
    main()
