"""The loader composes as Hydra does, and follows its rules; a failure here means that Hydra has changed."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner.compat.hydra_loader import LAUNCHER_LOGGER, CompositionRules, hydra_main_with, make_loader
from runner.compat.libraries import LibraryChangedError


def _start() -> Callable[[DictConfig, str], None]:
    return _note_package


def _note_package(config: DictConfig, package: str) -> None:
    if package == "db":
        OmegaConf.update(config, "db.packages", [package])


def _complete(config: DictConfig, overrides: Sequence[str]) -> None:
    OmegaConf.update(config, "sizes", [len(overrides), 1], force_add=True)


def _takes(text: str) -> bool:
    return text.startswith("later=")


def _apply(config: DictConfig, text: str) -> None:
    OmegaConf.update(config, "later", text.partition("=")[2], force_add=True)


def _check(path: Path) -> None:
    if "forbidden" in path.read_text():
        raise ValueError(f"{path.name} is forbidden")


def _version(path: Path) -> str:
    return path.read_text()


def _make(config_path: str) -> dict[str, Any] | None:
    return {"defaults": ["/db/one@_here_"], "name": "made"} if config_path == "db/a/b:made" else None


RULES = CompositionRules(_start, _complete, _takes, _apply, _check, _version, _make)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "db").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: [{db: one}, _self_]\nlr: 0.1\n")
    (tmp_path / "db" / "one.yaml").write_text("name: one\nport: 1\n")
    (tmp_path / "db" / "two.yaml").write_text("name: two\n")
    return tmp_path


def _composed(folder: Path, *overrides: str, rules: CompositionRules = RULES) -> Any:
    config = make_loader(folder, None, rules).load_configuration("config", list(overrides), RunMode.RUN)
    return OmegaConf.to_container(config, resolve=False)


def test_without_rules_it_composes_as_hydra_does(folder: Path) -> None:
    overrides = ["db=two", "lr=0.2", "+new=[1,2]"]
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    rules = CompositionRules(lambda: nothing, nothing, lambda _: False, _apply, _check, _version, _make)
    ours = _composed(folder, *overrides, rules=rules)
    with hydra.initialize_config_dir(str(folder), version_base="1.3"):
        config = hydra.compose("config", overrides, return_hydra_config=True)
    theirs: Any = OmegaConf.to_container(config, resolve=False)
    assert ours.pop("hydra")["overrides"] == theirs.pop("hydra")["overrides"]
    assert ours == theirs == {"db": {"name": "two"}, "lr": 0.2, "new": [1, 2]}


def test_rules_change_files_and_apply_overrides(folder: Path) -> None:
    overrides = ["lr=0.2", "later=soon", "db.port=2", "sizes.1=5"]
    config = _composed(folder, *overrides)
    assert config.pop("hydra")["overrides"]["task"] == overrides
    db = {"name": "one", "port": 2, "packages": ["db"]}
    assert config == {"db": db, "lr": 0.2, "sizes": [4, 5], "later": "soon"}


def test_an_option_without_a_file_can_build_on_a_file(folder: Path) -> None:
    assert _composed(folder, "db=a/b:made")["db"] == {"name": "made", "port": 1, "packages": ["db"]}
    with pytest.raises(MissingConfigException, match="db/other"):
        _composed(folder, "db=other")


def test_merged_files_are_remembered_in_order(folder: Path) -> None:
    loader = make_loader(folder, None, RULES)
    loader.load_configuration("config", ["db=two"], RunMode.RUN)
    merged = [(default.config_path, default.package) for default in loader.merged_files]
    assert merged[-2:] == [("db/two", "db"), ("config", "")]


def test_files_are_checked_and_read_again_when_they_change(folder: Path) -> None:
    assert _composed(folder)["db"]["port"] == 1
    (folder / "db" / "one.yaml").write_text("name: one\nport: 3\n")
    assert _composed(folder)["db"]["port"] == 3
    (folder / "db" / "one.yaml").write_text("name: forbidden\n")
    with pytest.raises(ValueError, match=r"one\.yaml is forbidden"):
        _composed(folder)


def test_files_of_the_users_folder_come_first(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    users = tmp_path_factory.mktemp("users")
    (users / "db").mkdir()
    (users / "db" / "three.yaml").write_text("name: three\n")
    config = make_loader(folder, users, RULES).load_configuration("config", ["db=three"], RunMode.RUN)
    assert config.db.name == "three"


def test_an_unknown_key_raises_hydras_error(folder: Path) -> None:
    with pytest.raises(ConfigCompositionException, match="Could not override 'lrr'"):
        _composed(folder, "lrr=1")


def test_hydra_main_composes_with_the_rules(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main", f"hydra.run.dir={tmp_path / 'run'}", "later=soon"])
    jobs: list[DictConfig] = []
    with hydra_main_with(RULES):
        hydra.main(config_path=str(folder), config_name="config", version_base="1.3")(jobs.append)()
    assert [job.later for job in jobs] == ["soon"]
    assert OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml") == jobs[0]
    hydra_values = OmegaConf.load(tmp_path / "run" / ".hydra" / "hydra.yaml").hydra
    assert hydra_values.mode == "RUN"
    assert "hydra.mode=RUN" in hydra_values.overrides.hydra
    with hydra.initialize_config_dir(str(folder), version_base="1.3"):
        assert "later" not in hydra.compose("config")
    assert not GlobalHydra.instance().is_initialized()


def test_launchers_can_pickle_the_loader(folder: Path) -> None:
    loader = pickle.loads(pickle.dumps(make_loader(folder, None, RULES)))
    assert loader.load_configuration("config", ["later=soon"], RunMode.RUN).later == "soon"


def test_the_launchers_logger_is_where_hydra_logs_overrides() -> None:
    assert importlib.import_module(LAUNCHER_LOGGER).log.name == LAUNCHER_LOGGER


def test_a_hydra_without_the_class_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("hydra._internal.hydra.ConfigLoaderImpl")
    with (
        pytest.raises(LibraryChangedError, match=r"hydra-core .* does not define ConfigLoaderImpl"),
        hydra_main_with(RULES),
    ):
        pass
