"""Version of the package, locations of its YAML files (checkout or wheel), and URLs of stores (fsspec)."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from runner.config.errors import Problem, UserError, list_names, nearest_match

LATEST = "latest"  # link to an experiment's newest run, and its name on the command line
_PACKAGE_DIR = Path(__file__).resolve().parent.parent


def runner_version() -> str | None:
    """Return the version of the installed package, or None if it is not installed."""
    try:
        return importlib.metadata.version("runner")
    except importlib.metadata.PackageNotFoundError:
        return None


def conf_dir() -> Path:
    """Return the folder with `config.yaml` and the groups."""
    for folder in (_PACKAGE_DIR / "conf", _PACKAGE_DIR.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "experiment").is_dir():
            return folder
    raise UserError(f"the installation is broken: no conf/config.yaml next to or inside {_PACKAGE_DIR}")


def zoo_dir() -> Path:
    """Return the folder with trained policies `NAME.onnx`; it may not exist."""
    inside = _PACKAGE_DIR / "zoo"
    return inside if inside.is_dir() else _PACKAGE_DIR.parent / "zoo"


def search_dirs(config_dir: Path | None) -> list[Path]:
    """Return the search path of configuration files, in order of precedence."""
    if config_dir is None:
        return [conf_dir()]
    check_folder(config_dir, "a folder with experiments and options of config groups", f"--config-dir {config_dir}")
    return [conf_dir(), config_dir.resolve()]


def check_folder(path: Path, expected: str, where: str | None = None) -> None:
    """Check that a folder of the command line exists.

    Args:
        path: the folder.
        expected: description of valid folders.
        where: location of a problem, or None for the path.

    Raises:
        UserError: the folder does not exist, or cannot be read.
    """
    try:
        if path.is_dir():
            return
        what = "this is a file, not a folder" if path.exists() else "the folder does not exist"
    except OSError as error:  # in a folder of another user, for example
        what = f"the folder cannot be read: {error.strerror}"
    raise UserError(Problem(what, where or str(path), expected=expected))


def find_config(dirs: Sequence[Path], name: str) -> Path | None:
    """Return the file of a config, for example `experiment/ppo_cartpole`."""
    for folder in dirs:
        path = folder / f"{name.removesuffix('.yaml')}.yaml"
        if os.path.isfile(path):
            return path
    return None


def list_options(dirs: Sequence[Path], group: str) -> dict[str, Path]:
    """Return option name -> file for all options of a group, including subfolders.

    Hidden files and folders are left out, such as `.#ppo.yaml` of Emacs and `.ipynb_checkpoints` of Jupyter.
    """
    options: dict[str, Path] = {}
    for folder in dirs:
        root = folder / group
        for path in sorted(root.rglob("*.yaml")) if group else []:
            name = path.relative_to(root).with_suffix("").as_posix()
            if "/." not in f"/{name}":
                options.setdefault(name, path)
    return dict(sorted(options.items()))


def list_groups(dirs: Sequence[Path]) -> list[str]:
    """Return the names of all groups."""
    found = {path.name for folder in dirs for path in folder.iterdir() if path.is_dir() and path.name[0].isalpha()}
    return sorted(name for name in found if name != "hydra" and list_options(dirs, name))


def display_path(path: Path) -> str:
    """Return a short name for messages: `conf/...` for built-in files, otherwise relative to the working directory."""
    try:
        return (Path("conf") / path.relative_to(conf_dir())).as_posix()
    except ValueError:
        pass
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def is_url(place: str) -> bool:
    """Return whether a string is a URL, `scheme://...`, rather than a path."""
    return "://" in place


def local_copy_of(url: str) -> Path:
    """Return the local run dir, relative to the working directory, of a run at a URL: `outputs/s3/bucket/runs/one`."""
    names = url.replace("://", "/").split("/")
    return Path("outputs", *(name for name in names if name not in ("", ".", "..")))


def find_run_url_problem(key: str, url: str, where: str | None = None) -> Problem | None:
    """Return the problem of the URL of a run, or None.

    Args:
        key: configuration key for the message.
        url: URL of a run.
        where: source of the value.
    """
    names = [name for name in url.partition("://")[2].split("/") if name]
    if len(names) < 2 or ".." in names:
        what, expected = f"{key} is not the URL of a run", "STORE/NAME, such as s3://bucket/run or file:///mnt/runs/run"
        return Problem(what, where, url, expected)
    return find_store_problem(key, url, where)


def find_store_problem(key: str, url: str, where: str | None = None) -> Problem | None:
    """Return the problem of the URL of a store, or None, without contacting it.

    Args:
        key: configuration key for the message.
        url: URL of a folder, or path of a local folder.
        where: source of the value.
    """
    from fsspec.registry import available_protocols, known_implementations, registry
    from fsspec.utils import get_protocol

    protocol, known = get_protocol(url), {*available_protocols(), *registry}
    if protocol not in known:
        what, nearest = f"{key} has an unknown file system", nearest_match(protocol, known)
        return Problem(what, where, url, f"a URL with a protocol of fsspec: {list_names(known, protocol, 12)}", nearest)
    implementation = known_implementations.get(protocol)
    if implementation is None or protocol in registry:  # imported already
        return None
    package = implementation["class"].partition(".")[0]
    if find_spec(package) is None:
        what = f"{key} needs a package that is not installed"
        return Problem(what, where, url, fix=f"pip install {package}")
    return None
