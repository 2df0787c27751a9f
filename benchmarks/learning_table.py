"""Write docs/results.md from the measured runs; `make zoo` and `make learning-table` call it.

Runs are lines of `zoo/runs.jsonl`; experiments that it does not contain come from
`benchmarks/results/learning/results.jsonl`. Runs on recorded data and with external simulators are summaries in
`benchmarks/results/recorded_data.jsonl` and `benchmarks/results/simulators.jsonl`. The pages of `suites.py` and
`gpu.py` in `benchmarks/results` become sections, if they exist. Pictures of `suite_pictures.py` and GIFs of
`policy_gifs.py` are shown, if they exist.

Intervals are 95 % bootstrap intervals of the inter-quartile mean (rliable: Agarwal et al., 2021,
https://arxiv.org/abs/2108.13264). A run that misses its target counts with all of its env steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path("benchmarks/results")
ZOO, LEARNING = Path("zoo/runs.jsonl"), RESULTS / "learning/results.jsonl"
TRAINING_CURVES = RESULTS / "learning/curves"
RECORDED_DATA, SIMULATORS = RESULTS / "recorded_data.jsonl", RESULTS / "simulators.jsonl"
PAGES = (RESULTS / "suites.md", RESULTS / "gpu.md")
PAGE, PICTURES, GIFS = Path("docs/results.md"), Path("docs/pictures/results"), Path("docs/pictures/policies")
# Suite -> parts of the names of its experiments. An experiment belongs to the first suite that has a part of its name.
SUITES = {
    "MuJoCo": ("half_cheetah", "hopper", "walker2d", "swimmer", "reacher", "pusher", "_ant", "humanoid"),
    "MinAtar": ("minatar",),
    "Atari": ("atari",),
    "Several agents": (
        "multi_agent",
        "speaker_listener",
        "investment_game",
        "two_step_game",
        "tictactoe",
        "spread",
    ),
    "Partial observability": ("stateless",),
    "Continuous control": ("pendulum", "lunarlander_continuous", "bipedal_walker"),
    "CartPole and Acrobot": ("cartpole", "acrobot"),
    "LunarLander, images, grids and goals": ("lunarlander", "minigrid", "catch", "bit_flipping", "maze"),
}
ORDER = (
    *("MuJoCo", "MinAtar", "Atari"),
    *("CartPole and Acrobot", "Continuous control", "LunarLander, images, grids and goals", "Partial observability"),
    *("Several agents", "Recorded data", "External simulators"),
)
# Suite -> package of its environments, whose version matters.
PACKAGES = {"MuJoCo": "mujoco", "MinAtar": "minatar"}
VERSIONS = ("python", "torch", "numpy", "gymnasium")
NOTES = {
    "MuJoCo": "`ppo_ant_tuned` does not observe contact forces, which are always zero in the published results.",
    "Several agents": "IPPO and VDN are listed for comparison: they have the targets of MAPPO and QMIX, which need "
    "a centralised critic or a mixing network. Returns are sums over agents. HARL's MAPPO has -58.5 in simple_spread "
    "after 10 M env steps, read from a figure. There, collisions with oneself count (-37.5 per episode) and agents "
    "move without mpe2's delay (about 3.4), so this corresponds to about -24.5.",
    "Recorded data": "`expert` holds 100 episodes of a trained PPO policy on CartPole-v1. `mixed_quality` holds the "
    "240 episodes that PPO trains on while it learns Pendulum-v1 (mean return -553). `rllib_episodes` holds ten "
    "CartPole episodes that RLlib recorded.",
    "External simulators": "Two client processes connect over [RLlink](reference/rllink.md) and step the environment.",
}
# Mean returns that other libraries publish: experiment -> return, env steps, library, source.
_ZOO_PAGE = "[RL-Zoo](https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md)"
_BASELINES = "[OpenAI Baselines](https://github.com/openai/baselines/blob/master/benchmarks_mujoco1M.htm)"
_GYMNAX = "[gymnax](https://github.com/RobertTLange/gymnax)"
_RLLIB = "[RLlib examples](https://github.com/ray-project/ray/tree/master/rllib/examples/algorithms)"
_CLEANRL = "[CleanRL](https://docs.cleanrl.dev/rl-algorithms/{}/)"
_PPO_IN_MINATAR = {"asterix": "15", "breakout": "28", "freeway": "58", "space_invaders": "131"}
OTHERS = (
    ("a2c_cartpole", "500", 500_000, _ZOO_PAGE),
    ("dqn_cartpole", "500", 50_000, _ZOO_PAGE),
    ("dqn_cartpole", "489 ± 16", 500_000, _CLEANRL.format("dqn")),
    ("dqn_cartpole", "450", 200_000, _RLLIB),
    ("dqn_lunarlander", "154 ± 79", 100_000, _ZOO_PAGE),
    ("mappo_simple_spread", "-24.5 (converted)", 10_000_000, "[HARL](https://github.com/PKU-MARL/HARL)"),
    ("ppo_ant", "1327 ± 452", 1_000_000, _ZOO_PAGE),
    ("ppo_ant_tuned", "1327 ± 452", 1_000_000, _ZOO_PAGE),
    ("ppo_bipedal_walker", "213 ± 129", 5_000_000, _ZOO_PAGE),
    ("ppo_cartpole", "500", 100_000, _ZOO_PAGE),
    ("ppo_half_cheetah", "1443 ± 46", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_half_cheetah_tuned", "5819 ± 664", 1_000_000, _ZOO_PAGE),
    ("ppo_hopper", "2383 ± 272", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_hopper", "2410 ± 10", 1_000_000, _ZOO_PAGE),
    ("ppo_humanoid", "716 ± 49", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_inverted_pendulum", "963 ± 22", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_lunarlander", "242 ± 32", 1_000_000, _ZOO_PAGE),
    *((f"ppo_minatar_{game}", value, 10_000_000, _GYMNAX) for game, value in _PPO_IN_MINATAR.items()),
    *((f"dqn_minatar_{game}", f"{value} (PPO)", 10_000_000, _GYMNAX) for game, value in _PPO_IN_MINATAR.items()),
    *((f"pqn_minatar_{game}", f"{value} (PPO)", 10_000_000, _GYMNAX) for game, value in _PPO_IN_MINATAR.items()),
    ("ppo_minigrid_key_corridor", "0.949", 500_000, _ZOO_PAGE),
    ("ppo_pendulum", "-172", 100_000, _ZOO_PAGE),
    ("ppo_pusher", "-40.4 ± 7.2", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_reacher", "-6", 1_000_000, _BASELINES),
    ("ppo_swimmer", "111", 1_000_000, _BASELINES),
    ("ppo_swimmer_tuned", "282 ± 10", 1_000_000, _ZOO_PAGE),
    ("ppo_walker2d", "2288 ± 572", 1_000_000, _CLEANRL.format("ppo")),
    ("ppo_walker2d", "3479 ± 822", 1_000_000, _ZOO_PAGE),
    ("rainbow_cartpole", "481 ± 21 (C51)", 500_000, _CLEANRL.format("c51")),
    ("sac_bipedal_walker", "298 ± 33", 500_000, _ZOO_PAGE),
    ("sac_lunarlander_continuous", "260 ± 65", 500_000, _ZOO_PAGE),
    ("sac_pendulum", "-157 ± 89", 20_000, _ZOO_PAGE),
    ("sac_pendulum", "-250", 20_000, _RLLIB),
    ("tqc_pendulum", "-151 ± 88", 20_000, _ZOO_PAGE),
    ("tqc_pendulum", "-200", 200_000, _RLLIB),
)
INTRODUCTION = """\
# Results

This page shows how many env steps each experiment needs to reach its target return, over several seeds. `make zoo`
repeats the measurements, and `make learning-table` writes this page from
[zoo/runs.jsonl](../zoo/runs.jsonl).

## Protocol

1. Each seed trains until the target in the experiment's `stop` block is reached, or until its limit of env steps.
2. The return is the mean of the last 100 training episodes, or of 20 greedy evaluation episodes if `stop` names
   `evaluation/env_runners/episode_return_mean`.
3. *Env steps* and *return* are inter-quartile means (IQM) over seeds, with 95 % bootstrap intervals in brackets
   ([rliable](https://arxiv.org/abs/2108.13264)). For a seed that misses the target, the number of env steps is its
   limit.
4. Hyperparameters were chosen on other seeds, except for `dqn_lunarlander` and `sac_lunarlander_continuous`, which run
   three seeds, and for the replay buffer of `dqn_stateless_cartpole_lstm`, which was enlarged after seed 1 was known.
5. Runs end at the target, so do not expect returns far above it.
6. Experiments with a *published* return train for the number of env steps of the published run; DQN in MinAtar trains
   for fewer. In MinAtar the published returns are PPO's. The return here is the mean of 20 greedy evaluation episodes
   at the end. *Env steps to it* is the median of the seeds whose training return reached the published return.
   *Minutes* are at the speed of the fastest seed, on one core.
7. Pictures show the median and the quartiles of the seeds until half of them have stopped. A seed that has stopped
   keeps its last return.

All runs were measured in November 2026 on two CPU cores. Train all seeds of an experiment with
`make zoo ZOO="--experiments NAME"`, one seed with `runner train NAME seed=0`, and play a trained policy with `play`:

```bash
runner play zoo:ppo_sb3_cartpole -o cartpole.gif
```
"""
LIMITATIONS = """\
## Limitations

- `ppo_atari_breakout`, `dqn_atari_breakout` and other experiments that are not in the tables above have
  not been measured.
- The zoo lacks policies of experiments with several agents, because a policy file holds a single module.

## Next steps

- [Algorithms](reference/algorithms.md): choose one.
- [First run](tutorials/first_run.md): train one of these experiments.
- [Sweeps](guides/sweeps.md): run seeds and compare them.
"""
RECORDED = ("experiment", "data", "target", "reached by", "updates", "return")
SIMULATED = ("experiment", "clients", "target", "reached by", "env steps", "return")
SAMPLED = ("experiment", "target", "reached by", "env steps", "return")
FIXED = (
    *("experiment", "env steps", "published", "median", "IQM", "published return reached by"),
    *("env steps to it", "minutes to it", "minutes in total"),
)
Run = Mapping[str, Any]
# Values of runs -> inter-quartile mean, lower and upper bound.
Interval = Callable[[Sequence[float]], tuple[float, float, float]]


def read_runs(path: Path) -> dict[str, list[Run]]:
    """Return experiment -> its runs, the newest one of each seed, by seed."""
    newest = {(run["experiment"], run["seed"]): run for run in _lines_of(path)}
    by_experiment: dict[str, list[Run]] = {}
    for (experiment, _), run in sorted(newest.items()):
        by_experiment.setdefault(experiment, []).append(run)
    return by_experiment


def suite_of(experiment: str) -> str:
    """Return the suite of an experiment that samples."""
    return next(suite for suite, parts in SUITES.items() if any(part in experiment for part in parts))


def row_of(experiment: str, runs: Sequence[Run], interval: Interval) -> str:
    """Return the row of an experiment that samples."""
    target, limit = runs[0]["target"], runs[0]["max_env_steps"]
    reached = [run for run in runs if run["episode_return_mean"] >= target and run["num_env_steps"] <= limit]
    return _row(
        f"`{experiment}`",
        f"{target:g} within {short(limit)}",
        f"{len(reached)} of {len(runs)}",
        "{} [{}, {}]".format(*map(short, interval([float(run["num_env_steps"]) for run in runs]))),
        "{} [{}, {}]".format(*map(_digits, interval([run["episode_return_mean"] for run in runs]))),
    )


def fixed_row_of(experiment: str, runs: Sequence[Run], interval: Interval, curves: Path = TRAINING_CURVES) -> str:
    """Return the row of an experiment that trains for a fixed number of env steps."""
    published = published_return(experiment, runs[0]["max_env_steps"])
    returns = [run["episode_return_mean"] for run in runs]
    goal = math.inf if published is None else published
    reached = [_first_at(curves / f"{experiment}-{run['seed']}.jsonl", goal) for run in runs]
    steps_to_goal = [steps for steps in reached if steps is not None]
    minutes_per_step = min(run["seconds"] / run["num_env_steps"] for run in runs) / 60
    return _row(
        f"`{experiment}`",
        short(runs[0]["max_env_steps"]),
        "-" if published is None else f"{published:,.5g}",
        f"**{_digits(median(returns))}**",
        "{} [{}, {}]".format(*map(_digits, interval(returns))),
        "-" if published is None else f"{sum(value >= goal for value in returns)} of {len(runs)}",
        f"{short(median(steps_to_goal))}, {len(steps_to_goal)} of {len(runs)}" if steps_to_goal else "-",
        f"{median(steps_to_goal) * minutes_per_step:.1f}" if steps_to_goal else "-",
        f"{runs[0]['max_env_steps'] * minutes_per_step:.1f}",
    )


def published_return(experiment: str, num_env_steps: int) -> float | None:
    """Return the first published return of an experiment after at least this number of env steps, or None."""
    found = published(experiment, num_env_steps)
    return None if found is None else found[0]


def published(experiment: str, num_env_steps: int) -> tuple[float, str] | None:
    """Return the first published return of an experiment after at least this number of env steps, and its library, or
    None."""
    for name, value, steps, source in OTHERS:
        if name == experiment and steps >= num_env_steps:
            return float(value.split()[0]), source.partition("]")[0].lstrip("[")
    return None


def also_published(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a paragraph with further published returns after the env steps of these runs, or nothing."""
    seen, further = set(), []
    for name, value, steps, source in OTHERS:
        seed_runs = runs.get(name, [])
        if not seed_runs or seed_runs[0]["target"] is not None or steps != seed_runs[0]["max_env_steps"]:
            continue
        if name in seen:
            further.append(f"`{name}` {value} ({source})")
        seen.add(name)
    return [f"Also published after the same number of env steps: {', '.join(further)}.\n"] if further else []


def picture_of(suite: str, pictures: Path = PICTURES) -> Path:
    """Return the file with the learning curves of a suite."""
    return pictures / f"{'_'.join(re.findall('[a-z]+', suite.lower()))}.svg"


def _first_at(curve: Path, value: float) -> int | None:
    """Return the number of env steps at which a curve first has this return, or None."""
    points = map(json.loads, curve.read_text(encoding="utf-8").splitlines())
    return next((steps for steps, episode_return, _ in points if episode_return >= value), None)


def short(value: float) -> str:
    """Return a number with three digits, and `k` or `M` for thousands and millions."""
    for divisor, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * divisor:
            return f"{_digits(value / divisor)}{unit}"
    return _digits(value)


def rliable_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the inter-quartile mean of runs and its 95 % interval, from 10,000 resamples."""
    import numpy as np
    from rliable import library, metrics

    scores = {"runs": np.array(values, np.float64)[:, None]}  # (runs, tasks)
    np.random.seed(0)  # the resamples of rliable
    point, bounds = library.get_interval_estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=10_000)
    return float(point["runs"][0]), float(bounds["runs"][0, 0]), float(bounds["runs"][1, 0])


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Return the probability that a run of ours is better than a run of the others', and its 95 % interval."""
    import numpy as np
    from rliable import library, metrics

    pair = {"pair": (np.array(ours, np.float64)[:, None], np.array(others, np.float64)[:, None])}
    np.random.seed(0)  # the resamples of rliable
    point, bounds = library.get_interval_estimates(pair, metrics.probability_of_improvement, reps=2_000)
    return float(point["pair"]), float(bounds["pair"][0, 0]), float(bounds["pair"][1, 0])


def comparison(ours: Mapping[str, Sequence[Run]], others: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a row for each experiment of both: the probability that ours needs fewer env steps."""
    rows = list(_head("experiment", "runs", "probability of fewer env steps"))
    for experiment in sorted(set(ours) & set(others)):
        first, second = ours[experiment], others[experiment]
        steps = [[-float(run["num_env_steps"]) for run in runs] for runs in (first, second)]
        share = "{:.2f} [{:.2f}, {:.2f}]".format(*probability_of_improvement(*steps))
        rows.append(_row(f"`{experiment}`", f"{len(first)} and {len(second)}", share))
    return rows


def page_of(runs: Mapping[str, Sequence[Run]], interval: Interval, pages: Sequence[Path] = PAGES) -> str:
    """Return the page docs/results.md: protocol, a section per suite, other pages, published figures."""
    cached = functools.cache(interval)

    def once(values: Sequence[float]) -> tuple[float, float, float]:
        return cached(tuple(values))

    rows: dict[str, list[str]] = {suite: [] for suite in SUITES}
    fixed: dict[str, list[str]] = {suite: [] for suite in SUITES}
    for experiment, of_seeds in sorted(runs.items()):
        if of_seeds[0]["target"] is None:
            fixed[suite_of(experiment)].append(fixed_row_of(experiment, of_seeds, once))
        else:
            rows[suite_of(experiment)].append(row_of(experiment, of_seeds, once))
    tables = {suite: [*_table(FIXED, fixed[suite]), *_table(SAMPLED, rows[suite])] for suite in SUITES}
    tables["Recorded data"] = _table(RECORDED, list(map(_recorded_row, _lines_of(RECORDED_DATA))))
    tables["External simulators"] = _table(SIMULATED, list(map(_simulator_row, _lines_of(SIMULATORS))))
    sections = [INTRODUCTION]
    for suite in ORDER:
        of_suite = {name: runs[name] for name in sorted(runs) if suite_of(name) == suite}
        if tables[suite]:
            sections.append(_suite_section(suite, tables[suite], of_suite))
    sections += [section_of(page) for page in pages if page.is_file()]
    sections += [_others_section(runs, once), LIMITATIONS]
    return "\n".join(sections)


def commands_of(runs: Mapping[str, Sequence[Run]], gifs: Path = GIFS) -> list[str]:
    """Return a table of commands, with a row for each experiment of fixed env steps or with a GIF, or nothing."""
    rows = []
    for name, of_seeds in runs.items():
        has_gif = (gifs / f"{name}.gif").is_file()
        if of_seeds[0]["target"] is not None and not has_gif:
            continue
        cell = [f"`runner train {name} seed=0`", f'`make zoo ZOO="--experiments {name}"`']
        if (ZOO.parent / f"{name}.onnx").is_file():
            cell.append(f"`runner play zoo:{name}`")
        if has_gif:
            cell.append(f'<img src="pictures/policies/{name}.gif" width="160px" alt="an episode of {name}">')
        rows.append(_row(f"`{name}`", "<br>".join(cell)))
    return _table(("experiment", "train one seed, train all seeds, play the policy"), rows)


def measured_on(runs: Mapping[str, Sequence[Run]], package: str | None) -> list[str]:
    """Return paragraphs with the machines and versions of the runs that were stored with versions.

    Args:
        package: its version matters in addition to `VERSIONS`.
    """
    experiments: dict[str, list[str]] = {}
    for name, of_seeds in runs.items():
        for conditions in sorted({_conditions(run, package) for run in of_seeds if run.get("versions")}):
            experiments.setdefault(conditions, []).append(f"`{name}`")
    lines = []
    for conditions, names in experiments.items():
        of_which = "" if len(names) == len(runs) else f" of {', '.join(names)}"
        lines.append(f"Machine and versions{of_which}: {conditions}.\n")
    return lines


def section_of(page: Path) -> str:
    """Return a page with headings that are one level lower."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in [*lines, ""])


def _suite_section(suite: str, tables: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the section of a suite: its tables, learning curves, commands, machines."""
    lines = [f"## {suite}\n", *([f"{NOTES[suite]}\n"] if suite in NOTES else []), *tables]
    picture = picture_of(suite)
    if picture.is_file():
        lines.append(f"![{suite}: return over training](pictures/results/{picture.name})\n")
    return "\n".join([*lines, *also_published(runs), *commands_of(runs), *measured_on(runs, PACKAGES.get(suite))])


def _conditions(run: Run, package: str | None) -> str:
    """Return the machine and the versions of a run."""
    versions = {name: run["versions"][name] for name in (*VERSIONS, package) if name in run["versions"]}
    return f"{run['machine']}; {', '.join(f'{name} {version}' for name, version in versions.items())}"


def _table(columns: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return a table that ends with an empty line; nothing without rows."""
    return [*_head(*columns), *rows, ""] if rows else []


def _others_section(runs: Mapping[str, Sequence[Run]], interval: Interval) -> str:
    rows = []
    for experiment, value, steps, source in OTHERS:
        if experiment not in runs or runs[experiment][0]["target"] is None:  # not measured, or in the tables above
            continue
        returns, env_steps = (
            interval([float(run[key]) for run in runs[experiment]])[0]
            for key in ("episode_return_mean", "num_env_steps")
        )
        ours = f"{_digits(returns)} at {short(env_steps)}"
        rows.append(_row(f"`{experiment}`", ours, f"{value} at {short(steps)}", source))
    text = (
        "Other libraries train for a fixed number of env steps and report the return at the end; runner stops at the "
        "target.\nTherefore compare the env steps at equal returns. The published figures are from November 2026."
    )
    head = _head("experiment", "runner (this page)", "published return", "source")
    return "\n".join(["## Published results of other libraries\n", f"{text}\n", *head, *rows, ""])


def _recorded_row(line: Run) -> str:
    return _row(
        f"`{line['experiment']}`",
        f"`{line['data']}`",
        f"{line['target']:g}",
        f"{line['reached']} of {line['seeds']}",
        f"{short(line['updates_median'])} (worst {short(line['updates_worst'])})",
        f"{_digits(line['return_median'])} (worst {_digits(line['return_worst'])})",
    )


def _simulator_row(line: Run) -> str:
    env_steps = [steps for steps in line["num_env_steps"] if steps is not None]
    return _row(
        f"`{line['experiment']}`",
        line["clients"],
        f"{line['target']:g}",
        f"{sum(value >= line['target'] for value in line['returns'])} of {len(line['returns'])}",
        f"{short(median(env_steps))} (median)" if env_steps else "not recorded",
        f"{_digits(median(line['returns']))} (median)",
    )


def _lines_of(path: Path) -> Iterator[Run]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _digits(value: float) -> str:
    """Return a number with about three digits."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*columns: str) -> tuple[str, str]:
    return _row(*columns), f"|{' --- |' * len(columns)}"


def main() -> None:
    """Write the page, or compare two files of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, nargs=2, help="print which of two files of results is better instead")
    arguments = parser.parse_args()
    if arguments.compare is not None:
        print("\n".join(comparison(*map(read_runs, arguments.compare))))
        return
    PAGE.write_text(page_of(read_runs(LEARNING) | read_runs(ZOO), rliable_interval), encoding="utf-8")


if __name__ == "__main__":
    main()
