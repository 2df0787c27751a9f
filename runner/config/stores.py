"""Stores: folders that a URL of fsspec names, as in `s3://bucket/runs`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from runner.config.errors import Problem, list_names, nearest_match


def is_url(place: str) -> bool:
    """Return whether a place is named by a URL, `scheme://...`, and not by a path."""
    return "://" in place


def local_copy_of(url: str) -> Path:
    """Return the run dir, relative to the working folder, of a run at a URL: `outputs/s3/bucket/runs/one`."""
    names = url.replace("://", "/").split("/")
    return Path("outputs", *(name for name in names if name not in ("", ".", "..")))


def find_run_url_problem(key: str, url: str, where: str | None = None) -> Problem | None:
    """Return what is wrong with the URL of a run: with its store, or that it names no run there.

    Args:
        key: of the configuration, for the message.
        url: of a run.
        where: place of the value.
    """
    names = [name for name in url.partition("://")[2].split("/") if name]
    if len(names) < 2 or ".." in names:
        what, allowed = f"{key} names no run in a store", "STORE/NAME, such as s3://bucket/run or file:///mnt/runs/run"
        return Problem(what, where, url, allowed)
    return find_store_problem(key, url, where)


def find_store_problem(key: str, url: str, where: str | None = None) -> Problem | None:
    """Return what is wrong with the URL of a store, as far as it can be told without contacting it.

    Args:
        key: of the configuration, for the message.
        url: of a folder, or the path of a local one.
        where: place of the value.
    """
    from fsspec.registry import available_protocols, known_implementations, registry
    from fsspec.utils import get_protocol

    protocol, known = get_protocol(url), {*available_protocols(), *registry}
    if protocol not in known:
        what, nearest = f"{key} names a file system that is not known", nearest_match(protocol, known)
        return Problem(what, where, url, f"a URL of fsspec, with one of {list_names(known, protocol, 12)}", nearest)
    implementation = known_implementations.get(protocol)
    if implementation is None or protocol in registry:  # imported already
        return None
    package = implementation["class"].partition(".")[0]
    if find_spec(package) is None:
        what = f"{key} needs a package that is not installed"
        return Problem(what, where, url, f"pip install {package}, which knows {protocol}://")
    return None
