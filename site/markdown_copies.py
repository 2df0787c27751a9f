"""Write a Markdown copy of each page beside its HTML, and `llms.txt`, a list of these copies for coding assistants."""

from __future__ import annotations

import re
from pathlib import Path

from algorithm_pages import fields_of, plan_of, results_of
from configuration_reference import table_at
from sphinx.application import Sphinx

_DIRECTIVE = re.compile(r"^```\{(\w+)\} ?(.*)\n((?::.*\n)*)(?:(?!```).*\n)*?```$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text", ".js": "javascript"}
_TITLE = "# runner\n\n> Reproducible reinforcement learning from one YAML file, with PyTorch and Ray.\n"


def write_copies(app: Sphinx, failure: Exception | None) -> None:
    """Write the copies of all pages, except of the decision records, in the order of the navigation."""
    if failure is not None or app.builder.name != "html":
        return
    out, env = Path(app.outdir), app.env
    assert env is not None
    lines = [_TITLE]
    for name in sorted(env.found_docs, key=lambda name: (name.count("/"), name)):
        source = Path(env.doc2path(name))
        copy = out / f"{name}.md"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_expanded(source), encoding="utf-8")
        if not name.startswith("adr/"):
            lines.append(f"- [{env.titles[name].astext()}]({name}.md)")
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _expanded(source: Path) -> str:
    """Return the text of a page with included files, plans, tables and results instead of directives."""

    def expand(block: re.Match[str]) -> str:
        directive, argument, options = block[1], block[2].strip(), block[3]
        if directive == "literalinclude":
            file = (source.parent / argument).resolve()
            return f"```{_LANGUAGES.get(file.suffix, '')}\n{file.read_text(encoding='utf-8').rstrip()}\n```"
        if directive == "plan":
            return f"```text\n{plan_of(argument)}\n```"
        if directive in ("configuration", "fields"):
            beyond = re.search(r"^:beyond: (.+)$", options, re.MULTILINE)
            return (table_at if directive == "configuration" else fields_of)(argument, beyond[1] if beyond else None)
        if directive == "results":
            return results_of(argument.split())
        return "" if directive == "toctree" else block[0]

    return _DIRECTIVE.sub(expand, source.read_text(encoding="utf-8"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the copies when the site has been built."""
    app.connect("build-finished", write_copies)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
