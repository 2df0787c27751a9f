"""Places of the YAML files: the root of a checkout, or the package of an installed wheel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.config.errors import UserError

_PACKAGE_DIR = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder with `config.yaml` and the groups."""
    for folder in (_PACKAGE_DIR / "conf", _PACKAGE_DIR.parent / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "experiment").is_dir():
            return folder
    raise UserError(f"the installation is broken: no conf/config.yaml beside or inside {_PACKAGE_DIR}")


def zoo_dir() -> Path:
    """The folder with a trained policy for each of some experiments, as `NAME.onnx`; it may not be there."""
    inside = _PACKAGE_DIR / "zoo"
    return inside if inside.is_dir() else _PACKAGE_DIR.parent / "zoo"


def search_dirs(config_dir: Path | None) -> list[Path]:
    """Return the folders that configuration is read from; the first one with a file counts."""
    if config_dir is None:
        return [conf_dir()]
    if not config_dir.is_dir():
        raise UserError(f"--config-dir {config_dir}: no such folder")
    return [conf_dir(), config_dir.resolve()]


def find_config(dirs: Sequence[Path], name: str) -> Path | None:
    """The file of config `name`, for example `experiment/ppo_cartpole`."""
    for folder in dirs:
        path = folder / f"{name.removesuffix('.yaml')}.yaml"
        if path.is_file():
            return path
    return None


def list_options(dirs: Sequence[Path], group: str) -> dict[str, Path]:
    """Option name -> file, for all options of a group, those in subfolders included."""
    options: dict[str, Path] = {}
    for folder in dirs:
        root = folder / group
        for path in sorted(root.rglob("*.yaml")) if group else []:
            options.setdefault(path.relative_to(root).with_suffix("").as_posix(), path)
    return dict(sorted(options.items()))


def list_groups(dirs: Sequence[Path]) -> list[str]:
    """The names of all groups."""
    found = {path.name for folder in dirs for path in folder.iterdir() if path.is_dir() and path.name[0].isalpha()}
    return sorted(name for name in found if name != "hydra" and list_options(dirs, name))


def display_path(path: Path) -> str:
    """A short name for messages: `conf/...` for our files, relative to the working folder for others."""
    try:
        return (Path("conf") / path.relative_to(conf_dir())).as_posix()
    except ValueError:
        pass
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
