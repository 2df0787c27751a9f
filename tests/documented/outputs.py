"""Commands that the docs show and the output below each, compared except for numbers and paths.

A `bash` block holds commands; the `text` block after it is their output. An unlabelled block holds commands, output or
both. Output that does not follow commands is printed by the block before it, or is a message that a test expects.
Other blocks show neither; a `text` block that follows no commands is a drawing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields

from markdown_it import MarkdownIt

from runner.config.errors import Problem
from tests.conftest import ROOT
from tests.support.problems import problems_in

SHELL = ("python ", "runner ", "cd ", "PYTHONPATH=")
OTHER_PROGRAMS = ("#", "make ", "pip ", ".venv/", "git ", "docker ", "source ", "mlflow ")
# Alternatives of a documented word, in the order in which they are tried.
WORDS = (
    r"(?P<path>/\.\.\./\S*)",
    r"(?P<digest>\b(?=\w*\d)[0-9a-f]{12,16}\b)",
    r"(?P<bar>[▏▎▍▌▋▊▉█]+)",
    r"(?P<number>[-+]?(?:\d[\d.,:e+-]*|inf\b|nan\b)%?)",
    r"(?P<unit>(?<= )(?:bytes|kB|MB|GB|files?|problems?|breaks?|rules?)\b)",
    r"(?P<rest>\s*\.\.\.)",
    r"(?P<verdict>(?:holds|does not hold)$)",
    r"(?P<space>\s+)",
)
MEANING = {
    "path": r"\S+",
    "digest": r"[0-9a-f]+",
    "bar": r"\S+",
    "number": r"(?:[-+]?(?:\d[\d.,:e+-]*|inf|nan)%?|-)",
    "unit": r"\w+",
    "rest": r".*",
    "verdict": r"(?:holds|does not hold)",
    "space": r"\s+",
}
# What differs between a documented message and the one that a test expects; `assert_golden` writes TMP for a folder.
NUMBER = r"[-+]?(?:\d(?:[\d.,:e+-]*\d)?|inf\b|nan\b)%?"  # without the punctuation after it
VARYING = re.compile("|".join([r"/\.\.\./\S*|\b(?:TMP|REPOSITORY|SOURCE)\b(?:/\S*)?", WORDS[1], NUMBER]))
# A text with fewer constant letters describes no message.
FEWEST_LETTERS = 20
FIELDS = tuple(each.name for each in fields(Problem))
# A line of progress: iteration, env steps, return or rows, speed.
PROGRESS = re.compile(r"iter |\s+\d+\s+\d[\d,]*\s+[-\d.,]+\s+\d[\d,]*\s")
# What a run at reduced size ends by is its size.
FINISHED = re.compile(r"^finished: (?:reached [\d,]+ [\w ]+|[\w ().,]+ \S+ >= \S+)$")


@dataclass
class Block:
    """The commands of a code block, and the lines that it shows as printed."""

    commands: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    tokens = MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8"))
    blocks: list[Block] = []
    is_output = False
    for token in tokens:
        language = token.info.strip() if token.type == "fence" else None
        if language in ("", "bash", "sh"):
            blocks.append(_read(token.content))
            is_output = bool(blocks[-1].commands)
        elif language == "text" and is_output:
            blocks.append(Block(printed=[line.rstrip() for line in token.content.splitlines() if line.strip()]))
        elif token.type == "heading_open" or language is not None:
            is_output = False
    return blocks


def is_message(documented: list[str]) -> bool:
    """Whether tests expect these problems or a file of tests/golden has these lines, except for numbers and paths."""
    problems = [_given(asdict(problem)) for problem in problems_in("\n".join(documented))]
    if problems and all(any(_agree(problem, other) for other in expected_problems()) for problem in problems):
        return True
    messages = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "golden").rglob("*.txt"))
    return any(first_line_not_printed(documented, message) is None for message in messages)


@functools.cache
def expected_problems() -> list[dict[str, str]]:
    """Return patterns of the fields of every `Problem(...)` in the tests, and of every other text as a `what`."""
    found: list[dict[str, str]] = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                arguments = dict(zip(FIELDS, node.args, strict=False))
                arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
                found.append({name: "".join(_patterns(value)) for name, value in arguments.items()})
            elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                text = "".join(_patterns(node))
                if len(re.findall(r"\w", text)) >= FEWEST_LETTERS:
                    found.append({"what": text})
    return [each for each in found if re.search(r"\w", each.get("what", ""))]


def _patterns(node: ast.expr) -> Iterator[str]:
    """Yield the patterns of the constant parts of a text; computed parts may be anything."""
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _patterns(part)
    elif isinstance(node, ast.Constant):
        yield re.escape(_without_varying(str(node.value)))
    else:
        yield ".*"


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: _without_varying(value) for name, value in values.items() if value is not None}


def _without_varying(text: str) -> str:
    return VARYING.sub("_", " ".join(text.split()))


def _agree(problem: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    return problem.keys() <= expected.keys() and all(
        re.fullmatch(expected[name], value) for name, value in problem.items()
    )


def _read(text: str) -> Block:
    block = Block()
    for line in text.replace("\\\n", " ").splitlines():
        line = line.rstrip().removeprefix("$ ")
        if line.startswith(SHELL):
            block.commands.append(re.sub(r"^runner ", "python -m runner ", line))
        elif line.strip() and not line.startswith(OTHER_PROGRAMS):
            block.printed.append(line)
    return block


def first_line_not_printed(documented: list[str], printed: str) -> str | None:
    """The first documented line that does not follow the ones before it in what was printed, but for its numbers."""
    rest = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    for line in documented:
        if line.strip() == "...":
            continue
        pattern = re.compile(_pattern(line))
        place = next((place for place, other in enumerate(rest) if pattern.fullmatch(other)), None)
        if place is None:
            return line
        rest = rest[place + (not PROGRESS.match(line)) :]  # one line of progress stands for all at reduced size
    return None


def _pattern(line: str) -> str:
    """What a documented line may be at another size: other numbers, paths and units; a progress line has its labels."""
    line = line.strip()
    if FINISHED.match(line):
        return FINISHED.pattern
    if line.startswith("iter "):  # columns that come later depend on what an iteration has: an evaluation, time left
        line = re.split(r" (?:entropy|elapsed|evaluation|\.\.\.)", line)[0].rstrip() + " ..."
    pattern, end = "", 0
    for word in re.finditer("|".join(WORDS), line):
        pattern += re.escape(line[end : word.start()]) + MEANING[str(word.lastgroup)]
        end = word.end()
    pattern += re.escape(line[end:])
    if line.startswith("recorded "):
        pattern = pattern.replace(r"\s+in\s+data", r"(?:; .* left out)?\s+in\s+data")
    if line.startswith("stop when "):
        return pattern + "(?: or .*)?"
    return pattern
