"""Asynchronous sampling, compared with RLlib, with sampling in rounds, and with many env runners with slow steps.

Parts: `speed` (IMPALA and APPO, ours and RLlib's; two env runners of 16 sub-environments, batches of 500), `slow`
(IMPALA with and without rounds, APPO, and PPO; steps of 2 ms per sub-environment or per vector step), `scaling` (100
env steps per env runner and update; steps of 5 ms, constant or lognormal with sigma 1; linear scaling is relative to
one env runner), `bytes` (size of samples in transit, for the request sizes of the plans), `broadcast` (time to send
weights of 10 MB to 1 and to 16 env runners, as a share of the time between two updates), `prefetch` (a remote learner
of images, which are sent during or after its update; each update also waits 0, 50 or 100 ms, like a GPU).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import bench_common as bc

RUNNERS = (4, 8, 16)
WAITING_MS = (0, 50, 100)
SLOW_ENVS = {"SleepingCartPole": "each sub-environment", "SleepingCartPoles": "all 16 together"}
KINDS = ("rounds", "free", "deterministic")
# With two env runners, a request is half of a train batch: 80 steps in A3C, 256 in IMPALA and APPO, 500 in `speed`.
REQUESTS = (40, 128, 250, 500)


def speed(repeats: int, seconds: float, python_rllib: str) -> list[bc.Result]:
    results = []
    peers = bc.Peer(bc.OURS, "ours_async.py"), bc.Peer("rllib", "rllib_async.py", python=python_rllib)
    for repeat in range(repeats):
        for algorithm in ("impala", "appo"):
            for peer in peers:
                flags = ["--algorithm", algorithm, "--seed", str(repeat), "--measured-s", str(seconds)]
                result = bc.run_peer(peer, flags)
                results.append({**result, "part": "speed", "algorithm": algorithm})
                bc.log(f"[{repeat + 1}/{repeats}] {algorithm} {peer.name} {result['steps_per_s']:,.0f} env steps/s")
    return results


def many(part: str, repeats: int, seconds: float, settings: Sequence[dict[str, object]]) -> list[bc.Result]:
    results = []
    for repeat in range(repeats):
        for setting in settings:
            flags = [f"--{name}={value}" for name, value in setting.items()]
            flags += ["--seed", str(repeat), "--measured-s", str(seconds)]
            result = bc.run_peer(bc.Peer(bc.OURS, "ours_scaling.py"), flags)
            results.append({**result, "part": part, **setting})
            bc.log(f"[{repeat + 1}/{repeats}] {setting} {result['steps_per_s']:,.0f} env steps/s")
    return results


def broadcast(repeats: int, runners: Sequence[int]) -> list[bc.Result]:
    results = []
    for _ in range(repeats):
        for number in runners:
            result = bc.run_peer(bc.Peer(bc.OURS, "ours_broadcast.py"), ["--runners", str(number)])
            results.append({**result, "part": "broadcast", "runners": number})
    return results


def prefetch(repeats: int, seconds: float) -> list[bc.Result]:
    results = []
    for repeat in range(repeats):
        for waiting_ms in WAITING_MS:
            for ahead in ("false", "true"):
                flags = [f"--prefetch={ahead}", f"--waiting-ms={waiting_ms}"]
                flags += ["--seed", str(repeat), "--measured-s", str(seconds)]
                result = bc.run_peer(bc.Peer(bc.OURS, "ours_prefetch.py"), flags)
                results.append({**result, "part": "prefetch", "waiting_ms": waiting_ms, "ahead": ahead})
                bc.log(f"[{repeat + 1}/{repeats}] {waiting_ms} ms, {ahead}: {result['updates_per_s']:.1f} updates/s")
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


def measured_bytes(request: int, num_samples: int = 20) -> bc.Result:
    """Return the mean env steps per sample, and the bytes of columns and of the pickled sample per env step."""
    from runner import make_env_runner
    from runner.env_runners.env_runner_actor import serialised_bytes
    from runner.episodes import nested

    env_runner = make_env_runner("impala_cartpole")
    env_runner.sample(request)  # starts all episodes
    samples = [env_runner.sample(request) for _ in range(num_samples)]
    env_runner.close()
    blocks = [block for sample in samples for block in sample.rollout.blocks.values()]
    num_env_steps = sum(sample.rollout.num_env_steps for sample in samples)
    num_bytes = sum(leaf.nbytes for block in blocks for leaf in nested.leaves(dict(block.columns)))
    return {
        "part": "bytes",
        "env_steps": num_env_steps / num_samples,
        "sent_per_env_step": sum(map(serialised_bytes, samples)) / num_env_steps,
        "columns_per_env_step": num_bytes / num_env_steps,
    }


def shown_speed(results: Sequence[bc.Result]) -> str:
    rows = []
    for algorithm in ("impala", "appo"):
        ours, theirs = (median_of(results, algorithm=algorithm, peer=name) for name in ("ours", "rllib"))
        lags = [one["lag"] for one in results if one["algorithm"] == algorithm and one["peer"] == "ours"]
        cells = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.1f}", f"{statistics.median(lags):.1f}"]
        rows.append([algorithm, *cells])
    return bc.markdown_table(["algorithm", "ours (steps/s)", "RLlib", "ratio", "mean lag (updates)"], rows)


def shown_slow(results: Sequence[bc.Result]) -> str:
    rows = []
    for env, sleeps in SLOW_ENVS.items():
        of_env = [one for one in results if one["env"] == env]
        free, rounds = (median_of(of_env, plan=plan, experiment=None) for plan in ("free", "rounds"))
        appo, ppo = (median_of(of_env, experiment=name) for name in ("appo_cartpole", "ppo_cartpole"))
        speeds = [f"{speed:,.0f}" for speed in (free, rounds, appo, ppo)]
        rows.append([sleeps, *speeds, f"{free / rounds:.2f}", f"{free / ppo:.2f}", f"{appo / ppo:.2f}"])
    header = ["2 ms", "IMPALA free (steps/s)", "IMPALA in rounds", "APPO free", "PPO in rounds"]
    return bc.markdown_table([*header, "IMPALA free/rounds", "IMPALA/PPO", "APPO/PPO"], rows)


def shown_scaling(results: Sequence[bc.Result]) -> str:
    rows = []
    one = median_of(results, runners=1)
    numbers = sorted({result["runners"] for result in results} - {1})
    for sigma in (0.0, 1.0):
        for plan in KINDS:
            speeds = [median_of(results, runners=n, plan=plan, sigma=sigma) for n in numbers]
            of_linear = [f"{value / (n * one):.2f}" for value, n in zip(speeds, numbers, strict=True)]
            rows.append([f"{sigma:g}", plan, *of_linear])
    table = bc.markdown_table(["sigma", "plan", *(f"{n} runners" for n in numbers)], rows)
    return f"{table}\n\nOne env runner: {one:,.0f} env steps/s."


def shown_bytes(results: Sequence[bc.Result]) -> str:
    rows = []
    for one in results:
        sent, columns = one["sent_per_env_step"], one["columns_per_env_step"]
        rows.append([f"{one['env_steps']:.0f}", f"{columns:.1f}", f"{sent:.1f}", f"{sent / columns:.2f}"])
    return bc.markdown_table(["env steps of a sample", "bytes of columns per step", "bytes sent", "ratio"], rows)


def shown_broadcast(results: Sequence[bc.Result]) -> str:
    rows = []
    for number in sorted({one["runners"] for one in results}):
        of_number = [one for one in results if one["runners"] == number]
        keys = ("mb", "update_ms", "put_ms", "submit_ms")
        rows.append([str(number), *(f"{statistics.median(one[key] for one in of_number):.1f}" for key in keys)])
    header = ["env runners", "weights (MB)", "update (ms)", "put weights (ms)", "send requests (ms)"]
    return bc.markdown_table(header, rows)


def shown_prefetch(results: Sequence[bc.Result]) -> str:
    rows = []
    for waiting_ms in WAITING_MS:
        later, ahead = (
            [one for one in results if one["waiting_ms"] == waiting_ms and one["ahead"] == whether]
            for whether in ("false", "true")
        )
        cells = [
            form.format(statistics.median(one[key] for one in of_kind))
            for key, form in (
                ("update_ms", "{:.1f}"),
                ("updates_per_s", "{:.1f}"),
                ("idle", "{:.0%}"),
                ("lag", "{:.1f}"),
            )
            for of_kind in (later, ahead)
        ]
        of_pairs = [one["updates_per_s"] / other["updates_per_s"] for one, other in zip(ahead, later, strict=True)]
        rows.append([str(waiting_ms), *cells, f"{statistics.median(of_pairs):.2f}"])
    header = [f"{name}{when}" for name in ("update (ms)", "updates/s", "idle", "mean lag") for when in ("", ", ahead")]
    return bc.markdown_table(["waiting (ms)", *header, "updates/s, ratio of pairs"], rows)


SHOWN = {
    "speed": shown_speed,
    "slow": shown_slow,
    "scaling": shown_scaling,
    "bytes": shown_bytes,
    "broadcast": shown_broadcast,
    "prefetch": shown_prefetch,
}


def shown(results: Sequence[bc.Result]) -> str:
    of_part = {part: [one for one in results if one["part"] == part] for part in SHOWN}
    return "\n\n".join(SHOWN[part](found) for part, found in of_part.items() if found)


def main() -> None:
    parser = bc.parser(__doc__, "asynchronous.json")
    parser.add_argument("--parts", default=",".join(SHOWN))
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
        elif part == "broadcast":
            results += broadcast(repeats, (1, max(args.runners)))
        elif part == "prefetch":
            results += prefetch(repeats, seconds)
        elif part == "bytes":
            results += [measured_bytes(request) for request in REQUESTS]
    machine = bc.machine_facts([bc.Peer(bc.OURS, "ours_async.py")])
    bc.write_json(args.out, {"machine": machine, "repeats": repeats, "seconds": seconds, "asynchronous": results})
    print(f"Medians of {repeats} interleaved runs of {seconds:g} s.\n")
    print(shown(results))
    print("\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
