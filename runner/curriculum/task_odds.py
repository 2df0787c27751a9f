"""Rules by which tasks are drawn: each returns the probabilities of K tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from runner.config.curriculum import LAST, LEARNING_PROGRESS, PROMOTE, REGRET, UNIFORM, CurriculumConfig
from runner.curriculum.progress import Progress

# (K,) probabilities.
Odds = npt.NDArray[np.float64]


def _uniform(config: CurriculumConfig, progress: Progress) -> Odds:
    return _shares(np.ones(len(progress.records)))


def _last(config: CurriculumConfig, progress: Progress) -> Odds:
    odds = np.zeros(len(progress.records))
    odds[-1] = 1.0
    return odds


def _promote(config: CurriculumConfig, progress: Progress) -> Odds:
    """Draw the newest promoted task, and earlier ones for a share of the episodes."""
    odds, newest = np.zeros(len(progress.records)), progress.promoted
    odds[:newest] = config.review / max(newest, 1)
    odds[newest] = 1.0 - odds[:newest].sum()
    return _explored(odds, config)


def _learning_progress(config: CurriculumConfig, progress: Progress) -> Odds:
    """Draw tasks in proportion to |fast - slow|, the difference of two moving averages of their values.

    Tasks whose values fall count like tasks whose values rise, because they are being forgotten (Matiisen et al., 2017,
    https://arxiv.org/abs/1707.00183). The slow average is an average of the fast one (Kanitscheider et al., 2021,
    https://arxiv.org/abs/2106.14876, who reweigh it further). K new tasks of N share a probability of K / N.
    """
    records = list(progress.records.values())
    changes = np.array([abs(record.fast - record.slow) for record in records])
    is_new = np.array([not record.num_episodes for record in records])
    return _explored(_with_new(_shares(changes), is_new), config)


def _regret(config: CurriculumConfig, progress: Progress) -> Odds:
    """Draw tasks by prioritised level replay (Jiang et al., 2021, https://arxiv.org/abs/2010.03934).

    Tasks are ranked by a score. The probability mixes (1 / rank) ** (1 / temperature) with the number of episodes since
    the task's last one. K tasks of N without an episode share a probability of K / N.

    The score estimates the regret: the largest value of the task's episodes minus the mean of the newest ones. The
    paper uses the magnitude of the value loss, for which the learner would have to score each episode. "Maximum Monte
    Carlo" (Jiang et al., 2021b, https://arxiv.org/abs/2110.02439) also takes the largest return, and subtracts the
    value function.
    """
    records = list(progress.records.values())
    is_new = np.array([not record.num_episodes for record in records])
    scores = np.array([(record.best or 0.0) - (record.mean or 0.0) for record in records])
    order = np.argsort(-scores, kind="stable")
    order = np.array([place for place in order if not is_new[place]], np.int64)
    weights = np.zeros(len(records))
    weights[order] = (1.0 / np.arange(1, len(order) + 1)) ** (1.0 / config.temperature)
    ages = np.array([float(progress.num_episodes - record.last) for record in records]) * ~is_new
    by_score = _shares(weights)
    by_age = _shares(ages) if ages.any() else by_score
    return _explored(_with_new((1 - config.staleness) * by_score + config.staleness * by_age, is_new), config)


def _with_new(odds: Odds, is_new: npt.NDArray[np.bool_]) -> Odds:
    """Give K new tasks of N the probability K / N in total, and scale the odds of the others to the remaining
    probability."""
    share = is_new.mean()
    return share * _shares(is_new.astype(float)) + (1 - share) * _shares(odds * ~is_new) if is_new.any() else odds


def _explored(odds: Odds, config: CurriculumConfig) -> Odds:
    return (1 - config.exploration) * odds + config.exploration / len(odds)


def _shares(weights: Odds) -> Odds:
    """Return weights that sum to 1; uniform if all weights are zero."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


ODDS: Mapping[str, Callable[[CurriculumConfig, Progress], Odds]] = {
    PROMOTE: _promote,
    UNIFORM: _uniform,
    LEARNING_PROGRESS: _learning_progress,
    REGRET: _regret,
    LAST: _last,
}
