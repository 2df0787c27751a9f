"""Microseconds per call of `SingleAgentEpisode`, ours and RLlib's, for the same calls on the same data.

Each process measures all cases with one interpreter (`--measure`); ours and RLlib's alternate. The result of a case is
the fastest of its batches in any of the processes. Observations are (4,) float32, actions ints, rewards floats, with
two extra model outputs, like PPO's on CartPole.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import bench_common as bc
import gymnasium
import numpy as np

STEPS = 200  # per chunk, RLlib's usual order of magnitude
OBSERVATION_SPACE = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTION_SPACE = gymnasium.spaces.Discrete(2)
OBSERVATION, OUTPUT = np.full(4, 0.5, np.float32), np.array([0.25, 0.75], np.float32)
EXTRA = {"action_logp": -0.5, "action_dist_inputs": OUTPUT}

Episode = Any  # of either library


@dataclass(frozen=True)
class Case:
    """A measured operation: `call` on the result of `make`.

    Attributes:
        is_fresh: whether each call needs a new object, because it changes the object.
        num_calls: number of measured operations per `call`.
    """

    name: str
    make: Callable[[], Episode]
    call: Callable[[Episode], object]
    is_fresh: bool = False
    num_calls: int = 1


# --- cases ----------------------------------------------------------------------------------------


def single_agent_cases(cls: Any, mode: str) -> list[Case]:
    def make(steps: int = STEPS) -> Episode:
        episode = single_agent_episode(cls, steps)
        return episode.to_numpy() if mode == "numpy" else episode

    def chunks() -> tuple[Episode, Episode]:
        episode = single_agent_episode(cls, STEPS)
        successor = episode.cut(1)
        add_steps(successor, STEPS)
        return (episode.to_numpy(), successor.to_numpy()) if mode == "numpy" else (episode, successor)

    def after_cut() -> Episode:
        return make().cut(4)

    cases = [
        Case("add_env_step", make, lambda e: add_steps(e, 50), is_fresh=True, num_calls=50),
        Case("cut(1)", make, lambda e: e.cut(1)),
        Case("slice [50:100]", make, lambda e: e[50:100]),
        Case("concat_episode", chunks, lambda pair: pair[0].concat_episode(pair[1]), is_fresh=True),
        Case("get_observations(-1)", make, lambda e: e.get_observations(-1)),
        Case("get_observations()", make, lambda e: e.get_observations()),
        Case("get_actions([0, 7, -1])", make, lambda e: e.get_actions([0, 7, -1])),
        Case(
            "get_observations(slice(-3, 1), lookback)",
            after_cut,
            lambda e: e.get_observations(slice(-3, 1), neg_index_as_lookback=True),
        ),
        Case("get_rewards(slice(-5, None), fill)", lambda: make(2), lambda e: e.get_rewards(slice(-5, None), fill=0.0)),
        Case(
            "get_observations(slice(-5, None), fill)",
            lambda: make(2),
            lambda e: e.get_observations(slice(-5, None), fill=0.0),
        ),
        Case(
            "get_actions(slice(-5, None), fill, one-hot)",
            lambda: make(2),
            lambda e: e.get_actions(slice(-5, None), fill=0, one_hot_discrete=True),
        ),
        Case("get_return", make, lambda e: e.get_return()),
    ]
    if mode == "list":
        cases.insert(1, Case("to_numpy", make, lambda e: e.to_numpy(), is_fresh=True))
    return [Case(f"{mode}: {c.name}", c.make, c.call, c.is_fresh, c.num_calls) for c in cases]


def single_agent_episode(cls: Any, steps: int) -> Episode:
    episode = cls(observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE)
    episode.add_env_reset(OBSERVATION, {})
    add_steps(episode, steps)
    return episode


def add_steps(episode: Episode, steps: int) -> None:
    for _ in range(steps):
        episode.add_env_step(OBSERVATION, 1, 1.0, {}, extra_model_outputs=EXTRA)


# --- measuring (in the process of a peer) ---------------------------------------------------------


def measure_peer(peer: str, budget_s: float) -> dict[str, float]:
    """Return the microseconds of each case."""
    if peer == "ours":
        from runner.episodes import SingleAgentEpisode
    else:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    cases = [case for mode in ("list", "numpy") for case in single_agent_cases(SingleAgentEpisode, mode)]
    return {case.name: measure_case(case, budget_s) for case in cases}


def measure_case(case: Case, budget_s: float) -> float:
    """Return the microseconds of one operation of a case: the fastest of at least 5 batches."""
    size, fastest, end = batch_size(case), float("inf"), time.perf_counter() + budget_s
    gc.collect()
    gc.disable()
    batches = 0
    while batches < 5 or time.perf_counter() < end:
        fastest = min(fastest, batch_seconds(case, size) / size)
        batches += 1
    gc.enable()
    return fastest / case.num_calls * 1e6


def batch_size(case: Case) -> int:
    """Return the number of calls that take 5 ms; few if each needs a new episode, which takes longer to make."""
    once = min(batch_seconds(case, 1) for _ in range(3))
    return max(1, min(10 if case.is_fresh else 10_000, int(0.005 / once)))


def batch_seconds(case: Case, size: int) -> float:
    inputs = [case.make() for _ in range(size)] if case.is_fresh else [case.make()] * size
    call = case.call
    start = time.perf_counter()
    for item in inputs:
        call(item)
    return time.perf_counter() - start


# --- comparing ------------------------------------------------------------------------------------


def run_peer(peer: bc.Peer, budget_s: float) -> dict[str, float]:
    return bc.run_system(peer.name, [peer.python, __file__, "--measure", peer.name, "--budget", str(budget_s)])


def table(results: dict[str, list[dict[str, float]]]) -> str:
    rows, ratios = [], []
    for case in results["ours"][0]:
        ours, theirs = ([run[case] for run in results[peer]] for peer in ("ours", "rllib"))
        ratios.append(min(theirs) / min(ours))
        rows.append([case, f"{min(ours):,.2f}", f"{min(theirs):,.2f}", f"{ratios[-1]:.1f}"])
    head = bc.markdown_table(["case", "ours (µs)", "RLlib (µs)", "RLlib/ours"], rows)
    return f"{head}\n\nRLlib/ours: median {statistics.median(ratios):.1f}, smallest {min(ratios):.1f}."


def main(argv: Sequence[str] | None = None) -> None:
    parser = bc.Parser(__doc__, "episodes.json")
    parser.add_argument("--python-rllib", default=bc.python_of("rllib"))
    parser.add_number("--repeats", 3, 1, "processes per library; ")
    parser.add_number("--budget", 0.2, 0.01, "seconds per case and process; ")
    parser.add_argument("--measure", choices=("ours", "rllib"), help="only measure this library, in this process")
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure_peer(args.measure, args.budget)))
        return
    peers = [bc.Peer("ours", ""), bc.Peer("rllib", "", python=args.python_rllib)]
    machine = bc.machine_facts(peers)
    results: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in peers}
    for repeat in range(args.repeats):
        for peer in peers:
            results[peer.name].append(run_peer(peer, args.budget))
            bc.log(f"[{repeat + 1}/{args.repeats}] {peer.name}")
    bc.write_json(args.out, {"machine": machine, "repeats": args.repeats, "microseconds": results})
    print(f"Microseconds per call: the fastest of {args.repeats} processes.\n")
    print(table(results))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
