"""Record GIFs of the zoo's policies for docs/results.md; `make policy-gifs`.

An experiment of fixed env steps gets one if it has a policy. GIFs that are newer than their policies are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from learning_table import GIFS
from PIL import Image, ImageSequence

from zoo import EXPERIMENTS, FIXED, POLICIES

LARGEST_GIF = 500_000  # bytes
# Widths in pixels and numbers of frames to try, until a GIF is small enough.
SIZES = ((320, 200), (240, 200), (240, 100), (160, 100), (160, 50))


def missing(experiments: list[str], gifs: Path = GIFS, policies: Path = POLICIES) -> Iterator[str]:
    """Yield the experiments that have a policy and no newer GIF."""
    for name in experiments:
        policy, gif = policies / f"{name}.onnx", gifs / f"{name}.gif"
        if policy.is_file() and not (gif.is_file() and gif.stat().st_mtime >= policy.stat().st_mtime):
            yield name


def record(experiment: str, gifs: Path = GIFS) -> Path:
    """Play an episode of a policy of the zoo, and write it as a GIF of at most `LARGEST_GIF` bytes."""
    gif, partial = gifs / f"{experiment}.gif", gifs / f".{experiment}.new.gif"
    command = [sys.executable, "-m", "runner", "play", f"zoo:{experiment}", "--force", "-o", str(partial)]
    try:
        subprocess.run(command, check=True)
        for width, num_frames in SIZES:
            if partial.stat().st_size <= LARGEST_GIF:
                break
            shrink(partial, width, num_frames)
        partial.replace(gif)
    finally:
        partial.unlink(missing_ok=True)
    return gif


def shrink(gif: Path, width: int, num_frames: int) -> None:
    """Rewrite a GIF with its first `num_frames` frames, at most `width` pixels wide."""
    frames, durations = [], []
    with Image.open(gif) as image:
        width = min(width, image.width)
        size = (width, width * image.height // image.width)
        for frame in islice(ImageSequence.Iterator(image), num_frames):
            durations.append(frame.info["duration"])  # longer for repeated frames, in ms
            frames.append(frame.convert("RGB").resize(size).quantize(64, dither=Image.Dither.NONE))
    frames[0].save(gif, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def main() -> None:
    """Record the missing GIFs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="*", choices=EXPERIMENTS, default=list(FIXED))
    for name in missing(parser.parse_args().experiments):
        gif = record(name)
        print(f"{gif}  {gif.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
