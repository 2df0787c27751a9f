"""`export RUN_DIR FILE`: the policy of the newest checkpoint as one file, compared with the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoints.trust import EXPORTING, TRUST
from runner.cli.arguments import UsageError, parse_arguments, take_options
from runner.cli.stored_run import naming_changes, open_run
from runner.config.errors import Problem, UserError, nearest_match
from runner.tracking.progress_log import write_atomically

if TYPE_CHECKING:
    from runner.policy.stored_policy import ExportedPolicy  # imports torch

FIXED = {"module.": "the checkpoint holds the parameters of this network"}
_FORMATS = ("onnx", "pt2")


def main(argv: Sequence[str]) -> int:
    """Write the file, and print what is in it."""
    options, rest = take_options(argv, ("--format", "--module"), ("--force", TRUST))
    arguments = parse_arguments(rest, ["RUN_DIR", "FILE"])
    format_, path = _format(options.get("--format"), arguments.words[1]), Path(arguments.words[1])
    check_new_file(path, "--force" in options)
    trust = [TRUST] if TRUST in options else []
    stored = open_run([arguments.words[0], *arguments.overrides, *trust], FIXED, EXPORTING)
    from runner.policy.stored_policy import StoredPolicy

    with naming_changes(stored):
        policy = StoredPolicy.load(stored.checkpoint, stored.config, options.get("--module"))
        exported = policy.to_onnx() if format_ == "onnx" else policy.to_pt2()
    try:
        write_atomically(path, exported.content)
    except OSError as error:
        raise UserError(Problem(f"the file cannot be written: {error}", str(path)).render_alone()) from error
    print(f"exported {stored.checkpoint}")
    for line in (*stored.describe_changes(), *_lines(exported, path, format_)):
        print(line)
    return 0


def _format(name: str | None, path: str) -> str:
    """Return the value of `--format`, else the suffix of the file."""
    chosen = name if name is not None else Path(path).suffix.removeprefix(".")
    if chosen in _FORMATS:
        return chosen
    if name is None:
        raise UsageError(
            f"the format of {path} is not known\n   expected      --format {' or --format '.join(_FORMATS)}"
        )
    nearest = nearest_match(chosen, _FORMATS)
    hint = f"\n   did you mean  {nearest}" if nearest else ""
    raise UsageError(
        f"unknown format {chosen}\n   where         --format\n   expected      {', '.join(_FORMATS)}{hint}"
    )


def check_new_file(path: Path, may_overwrite: bool) -> None:
    """Raise `UserError` where a file is a folder, or is there already and may not be overwritten."""
    if path.is_dir():
        raise UserError(Problem("the file cannot be written: this is a folder", str(path)).render_alone())
    if path.exists() and not may_overwrite:
        problem = Problem("the file exists already", str(path), expected="another file, or --force to overwrite it")
        raise UserError(problem.render_alone())


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
