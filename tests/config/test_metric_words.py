"""Words for metrics."""

from __future__ import annotations

import pytest

from runner.config.metric_words import learner_words, title_of, words_of
from tests.config.test_metrics import RUNS, metrics_of


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("env_runners/episode_return_mean", "mean return"),
        ("evaluation/env_runners/episode_return_mean", "mean evaluation return"),
        ("evaluation/env_runners/num_env_steps_sampled", "evaluation env steps per iteration"),
        ("env_runners/agent_episode_return_mean/agent_1", "mean return of agent agent_1"),
        ("evaluation/env_runners/module_episode_return_mean/red", "mean evaluation return of module red"),
        ("env_runners/agent_is_success/left", "success rate of agent left"),
        ("env_runners/is_success/easy", "easy (success rate)"),
        ("learners/default_policy/policy_loss", "policy loss (default_policy)"),
        ("learners/a/b/gradients_actor_optimizer_global_norm", "gradient norm (actor, a/b)"),
        ("learners/p/default_optimizer_learning_rate", "learning rate (p)"),
        ("replay_buffers/replay/num_bytes", "memory (bytes, replay)"),
        ("callbacks/angle_below_5_max", "highest angle below 5 (callbacks)"),
        ("connectors/learner/advantages_std", "standard deviation of advantages (connectors, learner)"),
        ("plan/MyOperator/num_skipped_lifetime", "skipped so far (plan, MyOperator)"),
        ("evaluation/offline/agent_1/wis", "WIS estimate of the return (agent_1)"),
        ("evaluation/offline/is_low", "low end of the IS estimate"),
        ("evaluation/offline/eval_loss", "loss on held-out data"),
        ("queues/q/num_items", "items (queues, q)"),
        ("wait_s_mean", "mean wait (s)"),
        ("_mean", "mean"),
        ("num_", "num_"),
        ("", ""),
    ],
)
def test_words(metric: str, words: str) -> None:
    assert words_of(metric) == words


def test_a_title_keeps_the_case_of_the_other_letters() -> None:
    assert title_of("learners/m/qf_mean") == "Mean Q value (m)"
    assert title_of("learners/Red/qf_loss") == "Q loss (Red)"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[0])
def test_metrics_of_a_run_have_words_that_differ_and_contain_no_key(run: tuple[str, ...]) -> None:
    words = {metric: words_of(metric) for metric in metrics_of(*run)}
    assert not [text for text in words.values() if "_" in text.replace("default_policy", "") or "/" in text]
    copies = {"env_runners/num_env_steps_sampled"}  # the same number under two names
    texts = [text for metric, text in words.items() if metric not in copies]
    assert len(set(texts)) == len(texts)


def test_metrics_of_losses_have_words_of_their_own() -> None:
    named = {metric for run in RUNS for metric in metrics_of(*run) if metric.startswith("learners/")}
    assert named
    for metric in named:
        name = metric.rpartition("/")[2]
        assert learner_words(name) != name.replace("_", " ") or name in ("policy_loss", "total_loss", "alpha_loss")
