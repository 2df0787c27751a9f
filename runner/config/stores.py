"""Stores: folders that a URL of fsspec names, as in `s3://bucket/runs`."""

from __future__ import annotations

from importlib.util import find_spec

from runner.config.errors import Problem, list_names, nearest_match


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
