"""`export RUN -o FILE`: the policy of the newest checkpoint as one file, compared with the module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoints.trust import EXPORTING
from runner.cli.arguments import Arguments, UsageError, print_note, usage_of
from runner.cli.output_files import check_new_file, write_file
from runner.cli.stored_run import explaining_problems, open_run
from runner.config.errors import Problem

if TYPE_CHECKING:
    from runner.policy.stored_policy import ExportedPolicy  # imports torch

_FORMATS = ("onnx", "pt2")


def main(arguments: Arguments) -> int:
    """Write the file, and print a summary."""
    path = _file(arguments)
    format_ = _format(arguments.value("--format"), path)
    check_new_file(path, arguments.has("--force"))
    stored = open_run(arguments, EXPORTING)
    from runner.policy.stored_policy import StoredPolicy

    with explaining_problems(stored):
        policy = StoredPolicy.load(stored.checkpoint, stored.config, arguments.value("--module"))
        exported = policy.to_onnx() if format_ == "onnx" else policy.to_pt2()
    write_file(path, exported.content)
    print(f"exported {stored.checkpoint}")
    for line in (*stored.describe_changes(), *_lines(exported, path, format_)):
        print(line)
    return 0


def _file(arguments: Arguments) -> Path:
    """Return the file of `--output`, or of the word that an earlier version took instead; raises `UsageError`."""
    path = arguments.path("--output")
    if len(arguments.words) > 1:
        if path is not None:
            raise UsageError(Problem(f"{arguments.words[1]} is an unexpected argument", fix=usage_of("export")))
        print_note("export RUN FILE is now export RUN -o FILE")
        return Path(arguments.words[1])
    if path is None:
        raise UsageError(Problem("--output is missing", fix="-o policy.onnx"))
    return path


def _format(name: str | None, path: Path) -> str:
    """Return the value of `--format`, else the suffix of the file."""
    chosen = name if name is not None else path.suffix.removeprefix(".")
    if chosen in _FORMATS:
        return chosen
    expected = f".{' or .'.join(_FORMATS)}"
    raise UsageError(
        Problem(
            "the suffix of the file does not belong to a known format", str(path), None, expected, fix="--format onnx"
        )
    )


def _lines(exported: ExportedPolicy, path: Path, format_: str) -> Iterator[str]:
    manifest = exported.manifest
    yield f"  file          {path}, {len(exported.content):,} bytes"
    yield f"  module        {manifest['module_id']}, {manifest['module_class']}"
    for title, key in (("inputs", "inputs"), ("outputs", "outputs")):
        width = max(len(port["name"]) for port in manifest[key])
        for number, port in enumerate(manifest[key]):
            yield f"  {title if number == 0 else '':<13} {port['name']:<{width}}  {_kind(port)}"
    yield f"  distribution  {manifest['distribution']['name']}"
    what = "onnxruntime" if format_ == "onnx" else "the torch program"
    yield (
        f"  checked       {what} differs from the module by at most {exported.difference:.1e} on "
        f"{exported.num_compared} random observations"
    )


def _kind(port: dict[str, Any]) -> str:
    return f"{port['dtype']} [{', '.join(map(str, ['batch', *port['shape']]))}]"
