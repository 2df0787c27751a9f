"""Asynchronous sampling: against RLlib, against sampling in rounds, and with many env runners whose steps take time.

Parts: `speed` (IMPALA and APPO, ours and RLlib's, two env runners of 16 sub-environments, batches of 500), `slow`
(IMPALA in rounds and not, APPO, and PPO, with steps of 2 ms, of each sub-environment or of all together), `scaling`
(100 env steps a runner and update, steps of 5 ms, constant or lognormal with sigma 1; linear is so many times what one
runner makes of steps of 5 ms), `bytes` (what a sample takes on its way).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import bench_common as bc

PARTS = ("speed", "slow", "scaling", "bytes")
RUNNERS = (4, 8, 16)
SLOW_ENVS = {"SleepingCartPole": "each sub-environment", "SleepingCartPoles": "all 16 together"}
KINDS = ("rounds", "free", "deterministic")


def speed(repeats: int, seconds: float, python_rllib: str) -> list[bc.Result]:
    results = []
    systems = [("ours", "ours_async.py", sys.executable), ("rllib", "rllib_async.py", python_rllib)]
    for repeat in range(repeats):
        for algorithm in ("impala", "appo"):
            for name, script, python in systems:
                flags = ["--algorithm", algorithm, "--seed", str(repeat), "--measured-s", str(seconds)]
                result = bc.run_peer(bc.Peer(name, script, python), flags)
                results.append({**result, "part": "speed", "algorithm": algorithm})
                bc.log(f"[{repeat + 1}/{repeats}] {algorithm} {name} {result['steps_per_s']:,.0f} env steps/s")
    return results


def many(part: str, repeats: int, seconds: float, settings: Sequence[dict[str, object]]) -> list[bc.Result]:
    results = []
    for repeat in range(repeats):
        for setting in settings:
            flags = [f"--{name}={value}" for name, value in setting.items()]
            flags += ["--seed", str(repeat), "--measured-s", str(seconds)]
            result = bc.run_peer(bc.Peer(bc.OURS, "ours_scaling.py", sys.executable), flags)
            results.append({**result, "part": part, **setting})
            bc.log(f"[{repeat + 1}/{repeats}] {setting} {result['steps_per_s']:,.0f} env steps/s")
    return results


def scaling_settings(runners: Sequence[int]) -> list[dict[str, object]]:
    one = [{"runners": 1, "plan": "free", "sigma": 0.0}]
    return one + [
        {"runners": number, "plan": plan, "sigma": sigma}
        for sigma in (0.0, 1.0)
        for number in runners
        for plan in KINDS
    ]


def slow_settings() -> list[dict[str, object]]:
    shared = {"runners": 2, "envs": 16, "batch": 500, "seconds": 0.002}
    systems: list[dict[str, object]] = [{"plan": "rounds"}, {"plan": "free"}]
    systems += [{"experiment": "appo_cartpole", "plan": "free"}, {"experiment": "ppo_cartpole", "plan": "rounds"}]
    return [{**shared, "env": env, **system} for env in SLOW_ENVS for system in systems]


def median_of(results: Sequence[bc.Result], **setting: object) -> float:
    found = [one["steps_per_s"] for one in results if all(one.get(name) == value for name, value in setting.items())]
    return statistics.median(found)


def measured_bytes() -> bc.Result:
    """Return the bytes of a pickled sample, and of its columns, for each env step."""
    from ray import cloudpickle

    from runner import Trainer
    from runner.episodes import nested

    overrides = ["engine=inline", "tracking=none", "evaluation=none"]
    with Trainer.from_experiment("impala_cartpole", overrides=overrides) as trainer:
        sample = trainer.env_runners.sample(500, True)[0]
    columns = [leaf for block in sample.rollout.blocks.values() for leaf in nested.leaves(dict(block.columns))]
    num_steps = sample.rollout.num_env_steps
    buffers: list[object] = []
    header = cloudpickle.dumps(sample, protocol=5, buffer_callback=buffers.append)
    sent = len(header) + sum(buffer.raw().nbytes for buffer in buffers)  # type: ignore[attr-defined]
    return {
        "part": "bytes",
        "sent_per_env_step": sent / num_steps,
        "columns_per_env_step": sum(leaf.nbytes for leaf in columns) / num_steps,
    }


def shown(results: Sequence[bc.Result]) -> str:
    texts = []
    of_part = {part: [one for one in results if one["part"] == part] for part in PARTS}
    if of_part["speed"]:
        rows = []
        for algorithm in ("impala", "appo"):
            ours, theirs = (median_of(of_part["speed"], algorithm=algorithm, peer=name) for name in ("ours", "rllib"))
            lags = [one["lag"] for one in of_part["speed"] if one["algorithm"] == algorithm and one["peer"] == "ours"]
            cells = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.1f}", f"{statistics.median(lags):.1f}"]
            rows.append([algorithm, *cells])
        texts.append(bc.markdown_table(["algorithm", "ours (steps/s)", "RLlib", "ratio", "mean lag (updates)"], rows))
    if of_part["slow"]:
        rows = []
        for env, sleeps in SLOW_ENVS.items():
            of_env = [one for one in of_part["slow"] if one["env"] == env]
            free, rounds = (median_of(of_env, plan=plan, experiment=None) for plan in ("free", "rounds"))
            appo, ppo = (median_of(of_env, experiment=name) for name in ("appo_cartpole", "ppo_cartpole"))
            speeds = [f"{speed:,.0f}" for speed in (free, rounds, appo, ppo)]
            rows.append([sleeps, *speeds, f"{free / rounds:.2f}", f"{free / ppo:.2f}", f"{appo / ppo:.2f}"])
        header = ["2 ms", "IMPALA free (steps/s)", "IMPALA in rounds", "APPO free", "PPO in rounds"]
        header += ["IMPALA free/rounds", "IMPALA/PPO", "APPO/PPO"]
        texts.append(bc.markdown_table(header, rows))
    if of_part["scaling"]:
        rows = []
        one = median_of(of_part["scaling"], runners=1)
        numbers = sorted({result["runners"] for result in of_part["scaling"]} - {1})
        for sigma in (0.0, 1.0):
            for plan in KINDS:
                speeds = [median_of(of_part["scaling"], runners=n, plan=plan, sigma=sigma) for n in numbers]
                of_linear = [f"{value / (n * one):.2f}" for value, n in zip(speeds, numbers, strict=True)]
                rows.append([f"{sigma:g}", plan, *of_linear])
        texts.append(bc.markdown_table(["sigma", "plan", *(f"{n} runners" for n in numbers)], rows))
        texts.append(f"One env runner: {one:,.0f} env steps/s.")
    for one in of_part["bytes"]:
        sent, columns = one["sent_per_env_step"], one["columns_per_env_step"]
        texts.append(f"Bytes for each env step: {sent:.1f} sent, {columns:.1f} of columns, ratio {sent / columns:.2f}.")
    return "\n\n".join(texts)


def main() -> None:
    parser = bc.parser(__doc__, "asynchronous.json")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measured-s", type=float, default=12.0)
    parser.add_argument("--runners", type=int, nargs="+", default=list(RUNNERS))
    args = parser.parse_args()
    repeats, seconds = (1, 2.0) if args.quick else (args.repeats, args.measured_s)
    results: list[bc.Result] = []
    for part in args.parts.split(","):
        if part == "speed":
            results += speed(repeats, seconds, args.python_rllib)
        elif part == "slow":
            results += many(part, repeats, seconds, slow_settings())
        elif part == "scaling":
            results += many(part, repeats, seconds, scaling_settings(args.runners))
        elif part == "bytes":
            results.append(measured_bytes())
    machine = bc.machine_facts([bc.Peer("ours", "ours_async.py", sys.executable)])
    bc.write_json(args.out, {"machine": machine, "repeats": repeats, "seconds": seconds, "asynchronous": results})
    print(f"Medians of {repeats} runs of {seconds:g} s, which take turns.\n")
    print(shown(results))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
