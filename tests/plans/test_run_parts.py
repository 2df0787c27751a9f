"""Parts of a run: what they report at the end of an iteration, and how checkpoints restore or reset them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.config.references import Digests
from runner.experiment.checkpointing import restore, state_of
from runner.experiment.trainer import Trainer
from runner.parts import Announces, Metrics, Part, RunView
from runner.plans.run_parts import RunParts
from tests.plans.hand_made import config_of, parts_of


class _Counter(Part):
    """Counts outcomes, and notes what is called."""

    name = "features/counter"

    def __init__(self, limit: int = 1) -> None:
        self.calls: list[str] = []
        self.count, self._limit = 0, limit

    @property
    def settings(self) -> dict[str, Any]:
        return {"limit": self._limit}

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: Any) -> None:
        self.count = state["count"]
        self.calls.append("set_state")

    def reset(self, old_state: Any) -> None:
        self.calls.append(f"reset {old_state}")

    def restore_notes(self, old_state: Any, is_reset: bool) -> list[str]:
        return [f"counted {old_state.get('count')}, reset: {is_reset}"]

    def begin(self, run: RunView) -> None:
        self.calls.append("begin")

    def metrics(self) -> Metrics:
        return {"counter/before": self.count}

    def end_iteration(self, run: RunView) -> Metrics:
        self.count += len(run.outcomes(self.name))
        return {"counter/after": self.count}

    def announce_to(self, env_runners: Announces, is_evaluation: bool) -> None:
        self.calls.append(f"announce {is_evaluation}")

    def evaluation_metrics(self, outcomes: Sequence[Any]) -> Metrics:
        return {"evaluation/counter": len(outcomes)}

    def write_files(self, run_dir: Path, is_final: bool) -> None:
        self.calls.append(f"write {run_dir} {is_final}")

    def summary(self, run_dir: Path) -> list[str]:
        return [f"counted {self.count}"]

    def close(self) -> None:
        self.calls.append("close")


def _with(trainer: Trainer, counter: _Counter) -> RunParts:
    parts = trainer.parts
    return RunParts(parts.learners, parts.metrics, parts.callbacks, parts.env_runners, features=[counter])


def test_outcomes_reach_their_part_and_metrics_come_first() -> None:
    counter = _Counter()
    parts = RunParts(parts_of().callbacks, parts_of().metrics, parts_of().callbacks, features=[counter])  # type: ignore[arg-type]
    parts.metrics.outcomes = {"features/counter": ["a", "b"], "league": ["c"]}
    result = parts.end_iteration({})
    assert (result["counter/before"], result["counter/after"]) == (0, 2)
    assert parts.evaluation_metrics({"features/counter": ["a"]}) == {"evaluation/counter": 1}
    parts.write_files(Path("run"), is_final=True)
    assert parts.summary(Path("run")) == ["counted 2"]
    parts.close()
    assert counter.calls == ["write run True", "close"]


def test_a_part_is_restored_or_reset_by_its_settings() -> None:
    digests = Digests({}, {})
    with Trainer(config_of()) as trainer:
        before = _Counter()
        before.count = 3
        state = state_of(_with(trainer, before), trainer._plan, digests)
        assert state["features"]["counter"] == {"count": 3}
        same, other, new = _Counter(), _Counter(limit=2), _Counter()
        assert restore(_with(trainer, same), trainer._plan, digests, state) == ["counted 3, reset: False"]
        assert restore(_with(trainer, other), trainer._plan, digests, state) == ["counted 3, reset: True"]
        del state["features"], state["plan"]["settings"]["features"]
        assert restore(_with(trainer, new), trainer._plan, digests, state) == ["counted None, reset: False"]
    assert same.calls == ["set_state", "begin", "announce False"]
    assert other.calls == ["reset {'count': 3}", "begin", "announce False"]
    assert new.calls == ["reset {}", "begin", "announce False"]
    assert same.count == 3
