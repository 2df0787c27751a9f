"""A loss that is not finite: the message looks at the batch first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from runner.config.errors import Problem
from runner.env_runners.episode_ids import runner_of, source_of
from runner.env_runners.loss_failure import with_rollout
from runner.env_runners.vector_envs import SyncEnvironments
from runner.episodes.columns import Rollout, concat_rollouts
from runner.learners.loss_failure import LossNotFinite, with_batch
from tests.conftest import QUICK, Run
from tests.support.coded_agents import make_coded_run
from tests.support.coded_runs import coded_module, make_runner, weights_of
from tests.support.environments import CodedEnv

FAILURE = LossNotFinite(Problem("the loss is not finite: total_loss is nan", "minibatch 1 of 2", "loss nan", "numbers"))


def told(rollout: Rollout) -> str:
    return " ".join(str(with_rollout(FAILURE, rollout)).split())


def rollouts() -> list[Rollout]:
    """Of two runners with two sub-environments each, the second one restarted once."""
    module = coded_module()
    samples = []
    for runner in (0, 1):
        numbers = iter(range(2))
        env = SyncEnvironments(lambda numbers=numbers: CodedEnv(next(numbers), (4, 3)), 2, seed=0)  # type: ignore[misc]
        sampling = make_runner(env, module, seed_name=("env_runner", runner, runner))
        samples.append(sampling.sample(12, True, weights_of(module), {}).rollout)
    return samples


def test_the_source_of_a_value_of_an_environment() -> None:
    parts = rollouts()
    block = parts[1].blocks["default_policy"]
    chunk = next(number for number, id_ in enumerate(block.episode_ids) if id_.endswith("-1-0"))
    block.columns["rewards"][block.offsets[chunk] + 2] = -3e38
    text = told(concat_rollouts(parts))
    place = "env runner 1, sub-environment 1, episode 0-env_runner-1.1-1-0, time step 2"
    assert (
        f"got the batch contains rewards = -3e+38 ({place}); 1 value of rewards not finite or beyond 1e+10 loss" in text
    )
    assert "expected values between -1e+10 and 1e+10 in the batch; numbers" in text
    block.columns["obs"][block.first_obs_rows[chunk] + 3, 1] = np.nan
    text = told(concat_rollouts(parts))
    place = place.replace("step 2", "step 3")
    assert f"got the batch contains obs[1] = nan ({place}); 1 value of obs not finite or beyond 1e+10 the batch" in text


def test_a_batch_without_fault() -> None:
    text = told(concat_rollouts(rollouts()))
    assert "got all values of the batch are finite; the largest: rewards = " in text
    assert "expected numbers" in text


def test_several_agents() -> None:
    coded = make_coded_run(0, 2, 2, 1)
    rollout = coded.runner.sample(20, True, coded.weights, {}).rollout
    block = rollout.blocks["m1"]
    row = int(block.offsets[1])
    block.columns["rewards"][row] = np.inf
    (id_, env) = block.episode_ids[1], block.episode_ids[1].split("-")[3]
    assert f"rewards = inf (env runner 0, sub-environment {env}, episode {id_}, time step 0)" in told(rollout)


def test_values_of_nested_columns_and_tensors() -> None:
    columns = {"obs": {"a": (torch.zeros(3, 2), torch.tensor([[0.0], [0.0], [-torch.inf]]))}, "n": np.arange(3)}
    problem = with_batch(FAILURE, columns, lambda name, row: f"{name} {row}").problem
    assert (problem.got or "").startswith("the batch contains obs['a'][1][0] = -inf (obs 2); 1 value of obs not finite")


def test_the_runner_of_an_episode() -> None:
    first, restarted = (rollout.blocks["default_policy"].episode_ids[0] for rollout in rollouts())
    assert (runner_of(first), runner_of(restarted)) == ((0, 0), (1, 1))
    ids = make_coded_run(0, 2, 2, 1).runner.sample(20, True, None, {}).rollout.blocks["m1"].episode_ids
    assert {runner_of(id_) for id_ in ids} == {(0, 0)}


def test_ids_that_say_nothing() -> None:
    assert source_of("recorded-7") is None
    assert runner_of("0-3fa2b1-12-5-a") is None, "a client, which finds its episodes again at another server"
    assert source_of("0-3fa2b1-12-5-a-b\nc") == "client 0-3fa2b1-12"


def test_how_to_go_on_without_the_batch() -> None:
    (rollout, *_) = rollouts()
    text = told(replace(rollout, skip_journal_records=("0.0:3-4", "1.0:7-7")))
    assert (
        "`resume` with rllink.skip_journal_records=[0.0:3-4,1.0:7-7] continues without the messages of this batch"
        in text
    )


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize(
    "plan", [[], ["algorithm.plan=[AsyncGradients,ApplyGradients]", "algorithm.use_kl_loss=false"]]
)
def test_a_run_that_ends_so(run_main: Run, plan: list[str]) -> None:
    target = ("env.env=null", "env._target_=tests.support.environments.Faulty")
    fault = "env.env_config={fault: huge_reward, fault_step: 50}"
    outcome = run_main("+experiment=ppo_cartpole", *QUICK, "hydra.run.dir=run", *target, fault, *plan)
    assert outcome.code == 1
    text = " ".join(outcome.err.split())
    assert text.startswith("the loss is not finite: ")
    assert "the batch contains rewards = 3e+38 (env runner 0, sub-environment " in text
    assert "skip_journal_records" not in text
