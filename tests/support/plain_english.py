"""Phrases that the docs and the code avoid.

`python -m tests.support.plain_english [FOLDER ...]` lists where they are, and what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ("benchmarks", "clients", "examples", "runner")
YAML = ("conf",)
PAGES = ("docs", "clients", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_UNIT = r"(step|iteration|episode|run|second|minute|update|minibatch|epoch|trial|agent)"

# Phrase -> what to write instead. A phrase is a regular expression; upper and lower case are the same.
PHRASES = {
    r"\b(go|goes|gone|going|went) on\b": "continue, resume, keep running",
    r"\b(of (one's|your|its|their|his) own|one's)\b": "custom, user-defined",
    r"\b(tell|tells|telling|told|says|hears?)\b(?! apart)": "report, print, log, called when",
    r"(?<!^)\bwhat (it|they|an?|the|is|are|was|were|has|have|other|others|users?|nobody|else|came|comes|becomes)\b"
    r"(?![^.]*\?)": "a noun: sampled steps, the value",
    r"\b(that of|those (of|that|which|in|with)|the ones?|ones (of|that|which|in|with|whose))\b": (
        "a possessive, or the noun"
    ),
    r"\b(is|are|was|were|be) of\b": "covers, belongs to, was measured on",
    r"(?<!there )\b(is|are|was|were) (no|(?-i:none))\b(?! longer)": "is not a valid X; expected Y",
    r"\b(has|have|had) (no|none)\b(?! effect| attribute)": "does not have",
    r"\b(so many|as many|in the mean)\b": "N, a fixed number, on average",
    r"\b(anew|beside|in the place of|but for|stands|lies|likewise|alike|therein|thereof)\b(?! for)": (
        "again, next to, instead of, except for, is"
    ),
    r"\bwhole\b": "complete, entire, all of",
    r"\b(give|gives|given|gave|giving) (on|way)\b": "pass through, return; yield",
    r"(^|[.;] )Where (?![^.]*\?)|\bwhere (there (is|are)|nothing|none|nobody|it is not|one is)\b": "if, when",
    rf"\b(an?|one|once|\d+) ([a-z]+ )?an? ([a-z]+ )?{_UNIT}\b": "per step, per iteration",
    r"\b(refus(e|es|ed|ing)|bears?|borne|strangers?|somebody( else)?|nobody|mend(s|ed|ing)?)\b": (
        "reject, tolerate, untrusted, fix"
    ),
    r"\b(ask|asks|asked|asking) for\b|(?<!you )\bwants\b": "require, request",
    r"\b(no|enough|more|much|the|free|takes?) room\b": "space, capacity, memory",
    r"\blets?\b(?! us)": "set, mark, allow",
    r"\bNone: there (is|are) none\b|\bwithout (any|one)[.;)]": "or None, with its meaning",
    r", too\b": "also",
    r"\bat once\b": "immediately, together",
    r"\b(cut off|broken off)\b": "truncated, incomplete, aborted",
    r"\b(becomes?|became|come|came) of\b|\bby turns\b|\bbr(ing|ings|ought) along\b|\btold apart\b": (
        "happens to, alternately, include, distinguished"
    ),
}
_EXPRESSIONS = {re.compile(phrase, re.IGNORECASE): instead for phrase, instead in PHRASES.items()}
_ANY = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]+>|https?://\S+")


@dataclass(frozen=True)
class Finding:
    """A phrase to avoid.

    Attributes:
        path: file, relative to the root.
        line: number of the line, from 1.
        text: the line.
        phrase: the words found.
        instead: what to write.
    """

    path: str
    line: int
    text: str
    phrase: str
    instead: str


def findings(root: Path = ROOT) -> Iterator[Finding]:
    """Yield the phrases of all pages, docstrings, comments and messages."""
    for path, texts in _texts(root):
        for line, text in texts:
            prose = _CODE.sub(" ` ", text)
            if _ANY.search(prose) is None:
                continue
            for expression, instead in _EXPRESSIONS.items():
                for match in expression.finditer(prose):
                    yield Finding(str(path.relative_to(root)), line, text.strip(), match[0].strip(), instead)


def _texts(root: Path) -> Iterator[tuple[Path, Iterator[tuple[int, str]]]]:
    for folder in PYTHON:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, _python_texts(path.read_text(encoding="utf-8"))
    for folder in YAML:
        for path in sorted((root / folder).rglob("*.yaml")):
            yield path, _yaml_texts(path.read_text(encoding="utf-8"))
    for name in PAGES:
        paths = [root / name] if name.endswith(".md") else sorted((root / name).rglob("*.md"))
        for path in filter(Path.exists, paths):
            yield path, _page_texts(path.read_text(encoding="utf-8"))


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments and of strings with a space in them."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "`" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
            node.values = []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, text in enumerate(node.value.splitlines()):
                yield node.lineno + offset, text
    if "#" in source:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _yaml_texts(source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if "#" in line:
            yield number, line[line.index("#") :]


def _page_texts(source: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code:
            yield number, line


def main(folders: list[str]) -> None:
    """Print the phrases of some folders or files, or of all."""
    for finding in findings():
        if not folders or any(f"{finding.path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders):
            print(f"{finding.path}:{finding.line}: {finding.phrase!r} ({finding.instead})\n    {finding.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
