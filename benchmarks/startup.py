"""Time from the start of `runner` to its first result, compared with the time of its two heavy imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_common as bc

IMPORTS = "import torch, mlflow"
POLL_S = 0.005
TIMEOUT_S = 300.0


def import_seconds() -> float:
    command = [sys.executable, "-c", IMPORTS]
    return bc.seconds_of(lambda: subprocess.run(command, cwd=bc.ROOT, env=bc.one_thread_env(), check=True))


def runner_command(run_dir: Path, extra: list[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "runner"),
        "+experiment=ppo_cartpole",
        "stop.training_iteration=1",
        "evaluation.evaluation_interval=null",
        f"hydra.run.dir={run_dir}",
        *extra,
    ]


def first_result_seconds(extra: list[str]) -> float:
    """Return seconds from the start of the process until progress.jsonl contains a complete line."""
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as tmp:
        run_dir, log_path = Path(tmp) / "run", Path(tmp) / "output.txt"
        with log_path.open("w") as output:
            start = time.perf_counter()
            process = subprocess.Popen(
                runner_command(run_dir, extra),
                cwd=bc.ROOT,
                env=bc.one_thread_env(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                seconds = wait_for_line(run_dir / "progress.jsonl", process, start)
                if seconds is not None:
                    process.wait(timeout=TIMEOUT_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if seconds is None:
            raise SystemExit(f"no line in progress.jsonl:\n{log_path.read_text()[-4000:]}")
        return seconds


def wait_for_line(path: Path, process: subprocess.Popen[bytes], start: float) -> float | None:
    while time.perf_counter() - start < TIMEOUT_S:
        ended = process.poll() is not None
        if path.exists() and b"\n" in path.read_bytes():
            return time.perf_counter() - start
        if ended:
            return None
        time.sleep(POLL_S)
    return None


def main() -> None:
    parser = bc.Parser(__doc__, "startup.json", "Other arguments are overrides for runner.")
    parser.add_number("--repeats", 5, 1)
    args, extra = parser.parse_known_args()
    imports, firsts = [], []
    for repeat in range(args.repeats):
        imports.append(import_seconds())
        firsts.append(first_result_seconds(extra))
        bc.log(f"[{repeat + 1}/{args.repeats}] imports {imports[-1]:.2f} s, first result {firsts[-1]:.2f} s")
    machine = bc.machine_facts([bc.Peer("ours", "ours.py")])
    bc.write_json(args.out, {"machine": machine, "imports_s": imports, "first_result_s": firsts})
    header = ["`import torch, mlflow` (s)", "runner to its first result (s)", "ratio"]
    cells = [bc.spread(imports, 2), bc.spread(firsts, 2), bc.ratio(firsts, imports)]
    print(bc.markdown_table(header, [cells]) + "\n\n" + bc.machine_text(machine))


if __name__ == "__main__":
    main()
