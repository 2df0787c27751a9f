"""`schema`: the JSON schema of experiment files, for editors."""

from __future__ import annotations

from runner.cli.arguments import Arguments
from runner.cli.experiment_files import MODELINE, schema_text
from runner.cli.output_files import check_new_file, write_file
from runner.config.paths import search_dirs


def main(arguments: Arguments) -> int:
    """Print the schema, or write it to a file."""
    text, output = schema_text(search_dirs(arguments.config_dir)), arguments.path("--output")
    if output is None:
        print(text, end="")
        return 0
    check_new_file(output, arguments.has("--force"))
    write_file(output, text.encode())
    print(f"wrote {output}\n  a line for your experiment files: {MODELINE}PATH, relative to the file")
    return 0
