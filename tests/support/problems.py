"""Read the problems of an error message back into their fields, so that tests compare fields and not the rendering."""

from __future__ import annotations

import re

from runner.config.errors import Problem

_START = re.compile(r"(?:\d+\. )(?=\S)")
_DETAIL = re.compile(r" {3}(where|got|allowed|nearest)\b *")


def problems_in(text: str) -> list[Problem]:
    """Return the problems of a rendered message; the line breaks of long fields become spaces.

    Args:
        text: "N problems in the configuration" and numbered paragraphs, or one paragraph without a number.
    """
    fields: list[dict[str, str]] = []
    name = ""
    for line in text.splitlines():
        detail = _DETAIL.match(line)
        if detail and fields:
            name = detail[1]
            fields[-1][name] = line[detail.end() :]
        elif line.startswith("   ") and fields:
            fields[-1][name] += f" {line.strip()}"
        elif start := _START.match(line):
            name = "what"
            fields.append({name: line[start.end() :]})
        elif line and not re.match(r"\d+ problems? in the [a-z ]+", line):
            if name == "what" and fields and len(fields[-1]) == 1:  # a long first line of a problem without a number
                fields[-1][name] += f" {line}"
            else:
                name = "what"
                fields.append({name: line})
    return [Problem(**each) for each in fields]
