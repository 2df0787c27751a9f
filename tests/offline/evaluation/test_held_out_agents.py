"""Held-out data of several agents: each agent alone, against estimates by a loop over the recorded rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, ROOT, Run

RECORDED = ROOT / "tests" / "data" / "env_episodes"
KEY = "evaluation.offline_evaluation_"
HELD_OUT = (f"{KEY}input_={RECORDED}", f"{KEY}interval=1", *QUICK)


def weighted_returns(trainer: Trainer, agent: str, module_id: str, gamma: float) -> Iterator[tuple[float, float]]:
    """Yield the ratio of all actions of an episode, and its discounted return."""
    module = trainer.learners.modules[module_id]
    table = pq.read_table(RECORDED)
    columns = [table[f"agents/{agent}/{name}"].to_pylist() for name in ("obs", "actions", "rewards", "action_logp")]
    for obs, actions, rewards, logp in zip(*columns, strict=True):
        with torch.no_grad():
            logits = module.forward_exploration({"obs": torch.tensor(obs[:-1])})["action_dist_inputs"]
        new = torch.log_softmax(logits, -1)[torch.arange(len(actions)), torch.tensor(actions)]
        ratio = float(torch.exp((new.double() - torch.tensor(logp, dtype=torch.float64)).sum()))
        yield ratio, sum(gamma**t * reward for t, reward in enumerate(rewards))


def test_estimates_are_those_of_each_agents_own_ratios() -> None:
    types = f"{KEY}type=[is,wis]"
    with Trainer.from_experiment("ppo_multi_agent_cartpole", [*HELD_OUT, types]) as trainer:
        trainer.train()
        metrics = trainer.evaluator.evaluate_offline(trainer.parts)
        gamma = trainer.config.algorithm.gamma
        for agent, module_id in (("agent_0", "p0"), ("agent_1", "p1")):
            pairs = np.array(list(weighted_returns(trainer, agent, module_id, gamma)))
            ratios, returns = pairs.T
            prefix = f"evaluation/offline/{agent}/"
            assert metrics[f"{prefix}is"] == pytest.approx((ratios * returns).mean(), rel=1e-4)
            assert metrics[f"{prefix}wis"] == pytest.approx((ratios * returns).sum() / ratios.sum(), rel=1e-4)
            assert metrics[f"{prefix}discounted_return_mean"] == pytest.approx(returns.mean(), rel=1e-6)
            assert metrics[f"{prefix}num_episodes"] == len(pairs)
    assert metrics["evaluation/offline/agent_0/is"] != metrics["evaluation/offline/agent_1/is"]
    counts = [metrics[f"evaluation/offline/agent_{n}/num_env_steps"] for n in (0, 1)]
    assert metrics["evaluation/offline/num_env_steps"] == sum(counts)  # type: ignore[arg-type]


def test_a_run_evaluates_reports_and_stops_by_an_agents_metric(run_main: Run) -> None:
    given = ["+experiment=ppo_multi_agent_cartpole", "hydra.run.dir=run", *HELD_OUT, f"{KEY}type=[eval_loss,wis]"]
    outcome = run_main(*given, "++stop.evaluation.offline.agent_1.wis=0.1")
    assert outcome.code == 0, outcome.err
    assert "finished: WIS estimate of the return (agent_1)" in outcome.out
    told = run_main("evaluate", "run", "evaluation.evaluation_duration=2")
    assert told.code == 0, told.err
    for agent in ("agent_0", "agent_1"):
        assert f"  {agent}: " in told.out
    assert told.out.count("weighted importance sampling") == 2


def test_a_metric_of_no_agent_is_refused(run_main: Run) -> None:
    given: list[Any] = ["+experiment=ppo_multi_agent_cartpole", "hydra.run.dir=run", *HELD_OUT, f"{KEY}type=wis"]
    outcome = run_main(*given, "++stop.evaluation.offline.agent_7.wis=0.1")
    assert outcome.code == 2
    assert "this run does not produce the metric evaluation/offline/agent_7/wis" in outcome.err
    assert "did you mean  evaluation/offline/agent_1/wis" in outcome.err
