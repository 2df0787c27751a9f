"""Copy MathJax into the site, so that equations need no network: its script and its fonts, from a Python package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

_MATHJAX = Path(str(files("sphinx-mathjax-offline"))) / "static" / "mathjax"
_FILES = ("tex-chtml.js", "output/chtml/fonts/woff-v2")


def copy_mathjax(app: Sphinx, failure: Exception | None) -> None:
    """Copy the files that pages load; the package has many more."""
    if failure is not None or app.builder.format != "html":
        return
    for name in _FILES:
        target = Path(app.outdir, "_static", "mathjax", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_asset(_MATHJAX / name, target if (_MATHJAX / name).is_dir() else target.parent)


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy MathJax when the site has been built."""
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
