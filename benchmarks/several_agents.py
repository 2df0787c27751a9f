"""Cost of a critic for all agents, and cost per agent step with growing numbers of agents in one environment.

Times are processor times of this process (`OMP_NUM_THREADS=1`), so other work on the machine matters little. The cases
are interleaved.

    python benchmarks/several_agents.py --turns 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from runner import Trainer, make_env_runner

CRITICS = {
    "a module for each agent": [],
    "and a critic for both": [
        "multi_agent.multi_rl_module={_target_: runner.modules.CentralisedCritic}",
        "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
        "connector: {_target_: runner.pipelines.AddObservationsOfAllAgentsToTrainBatch}}]",
    ],
}
NUM_AGENTS = (2, 8, 16, 32, 64)
QUIET = ["tracking=none", "evaluation.evaluation_interval=null"]


def seconds_per_agent_step(experiment: str, overrides: Sequence[str], num_iterations: int) -> float:
    """Return processor seconds per agent step for sampling and learning, without the first iteration."""
    num_agent_steps = 0
    with Trainer.from_experiment(experiment, [*QUIET, *overrides]) as trainer:
        update = trainer.learners.update

        def counting(rollout: Any, num_env_steps: int) -> Any:
            nonlocal num_agent_steps
            num_agent_steps += sum(block.num_rows for block in rollout.blocks.values())
            return update(rollout, num_env_steps)

        trainer.learners.update = counting
        trainer.train()
        started, num_agent_steps = time.process_time(), 0
        for _ in range(num_iterations):
            trainer.train()
        return (time.process_time() - started) / num_agent_steps


def seconds_per_sampled_step(num_agents: int) -> float:
    """Return processor seconds per agent step of an env runner of 8 environments with `num_agents` agents each."""
    num_env_steps = 16_000 // num_agents
    runner = make_env_runner("ppo_multi_agent_cartpole_shared", [f"env.env_config.num_agents={num_agents}"])
    runner.sample(num_env_steps)
    started = time.process_time()
    rollout = runner.sample(num_env_steps).rollout
    seconds = time.process_time() - started
    runner.close()
    return seconds / sum(block.num_rows for block in rollout.blocks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are meaningless")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.iterations = 1, 1
    found: dict[str, list[float]] = {}
    for _ in range(args.turns):
        for name, overrides in CRITICS.items():
            cost = seconds_per_agent_step("ppo_multi_agent_cartpole", overrides, args.iterations)
            found.setdefault(name, []).append(cost)
        for number in NUM_AGENTS:
            found.setdefault(f"sampling, {number} agents", []).append(seconds_per_sampled_step(number))
    for name, costs in found.items():
        turns = ", ".join(f"{1e6 * cost:.1f}" for cost in costs)
        print(f"{name:>28}  {1e6 * statistics.median(costs):7.1f} us per agent step ({turns})")
    alone, together = (statistics.median(found[name]) for name in CRITICS)
    print(f"a critic for both takes {together / alone:.2f} times as long")


if __name__ == "__main__":
    main()
