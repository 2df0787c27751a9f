"""Where the next file of a writer is: in the output folder, or in a run folder of its own, as RLlib's are."""

from __future__ import annotations

import re
from dataclasses import replace

from pyarrow import fs

from runner.config.offline import OfflineConfig
from runner.offline.files.filesystems import Location
from runner.offline.writing.output_files import names_in
from runner.offline.writing.output_formats import file_extension

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_NAMELESS = "environment"


def safe_name(text: str) -> str:
    """Return a part of a file's name."""
    return _UNSAFE.sub("-", text)


def next_place(
    config: OfflineConfig, location: Location, stem: str, writer_number: int, env_name: str | None
) -> tuple[Location, str]:
    """Return the folder and the name of a file, both free.

    Args:
        config: the `output...` options.
        location: the output folder.
        stem: of the files' names, which no other writer has: names do not clash, whatever folder they are in.
        writer_number: of the writer, from 1.
        env_name: of the environment; None: unknown.
    """
    extension = file_extension(config)
    if not config.output_run_folders:
        number = _highest(re.escape(stem) + r"(\d+)\..*", names_in(location), -1) + 1
        return location, f"{stem}{number:06d}.{extension}"
    env_folder = safe_name(env_name or _NAMELESS).lower().strip("-.") or _NAMELESS
    of_env = replace(location, path=f"{location.path}/{env_folder}")
    head = f"run-{writer_number:06d}-"
    number = _highest(head + r"(\d+)", names_in(of_env, fs.FileType.Directory), 0) + 1
    return replace(of_env, path=f"{of_env.path}/{head}{number:05d}"), f"{stem}{number:06d}.{extension}"


def _highest(pattern: str, names: list[str], default: int) -> int:
    """Return the highest number in names, hidden ones of files that are written among them."""
    found = [re.fullmatch(pattern, name.lstrip(".")) for name in names]
    return max((int(match.group(1)) for match in found if match), default=default)
