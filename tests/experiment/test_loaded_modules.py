"""New runs that begin with the modules of others: `load_state_path`, and `resume --module-only`."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import load_checkpoint, read_manifest
from runner.config.blocks import EnvRunnersConfig
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.experiment.run_experiment import run_experiment
from runner.experiment.run_folder import opened_run_folder
from runner.experiment.trainer import Trainer
from tests.conftest import QUICK, ROOT, MakeRun, Run, lines_of, progress_of, result_of, without_times
from tests.support.problems import Including, assert_error, out_of_range, unknown_key

FILTER = "connectors=mean_std_filter"
RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"  # ten episodes, 3,614 steps


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Makes the run dir of a short run; the same overrides, the same run."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*overrides: str, experiment: str = "ppo_cartpole") -> Path:
        texts = (f"+experiment={experiment}", *QUICK, "stop.training_iteration=2", *overrides)
        if texts not in made:
            run_dir = tmp_path_factory.mktemp("source")
            composed = compose_experiment(texts)
            with contextlib.redirect_stdout(io.StringIO()), opened_run_folder(run_dir) as folder:
                # What the test itself runs is what it reads.
                assert run_experiment(build_experiment_config(composed), composed, folder) == 0
            made[texts] = run_dir
        return made[texts]

    return make


def checkpoint_of(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "iteration_000002"


def saved_parameters(run_dir: Path, module_id: str = "default_policy") -> dict[str, Any]:
    state = load_checkpoint(checkpoint_of(run_dir))[0]
    return dict(state["learners"]["learners"][module_id]["module"])


def saved_filter(run_dir: Path) -> dict[str, Any]:
    state = load_checkpoint(checkpoint_of(run_dir))[0]
    return dict(state["env_runners"]["shared"]["default_policy"]["MeanStdFilter"])


def trainer_of(*overrides: str, experiment: str = "ppo_cartpole") -> Trainer:
    return Trainer.from_experiment(experiment, [*QUICK, *overrides])


def parameters_of(trainer: Trainer, module_id: str = "default_policy") -> dict[str, Any]:
    return dict(trainer.get_state()["learners"]["learners"][module_id]["module"])


def assert_equal(some: Any, others: Any) -> None:
    """Of nested dicts and lists of arrays, tensors and plain values."""
    if isinstance(some, dict):
        assert list(some) == list(others)
        some, others = list(some.values()), list(others.values())
    if isinstance(some, (list, tuple)):
        assert len(some) == len(others)
        for value, other in zip(some, others, strict=True):
            assert_equal(value, other)
    else:
        np.testing.assert_array_equal(np.asarray(some), np.asarray(others))


def problems_of(*overrides: str, experiment: str = "ppo_cartpole") -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        trainer_of(*overrides, experiment=experiment)
    return list(caught.value.problems)


# -- what is taken over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [".", "checkpoints/iteration_000002"], ids=["run_dir", "checkpoint"])
def test_a_run_begins_with_the_parameters_and_nothing_else(make_run: MakeRun, part: str) -> None:
    source = make_run()
    with trainer_of("seed=5") as trainer:
        fresh = trainer.get_state()
    with trainer_of("seed=5", f"module.load_state_path={source / part}") as trainer:
        state = trainer.get_state()
        assert_equal(parameters_of(trainer), saved_parameters(source))
        result = trainer.train()
    state["learners"]["learners"]["default_policy"].pop("module")
    fresh["learners"]["learners"]["default_policy"].pop("module")
    assert_equal(state, fresh)
    assert result["training_iteration"] == 1
    assert result["num_env_steps_sampled_lifetime"] == result["num_env_steps_sampled"]


def test_what_runners_and_evaluation_act_with_is_the_loaded_module(make_run: MakeRun) -> None:
    source = make_run("algorithm.lr=1e-2")
    with Trainer.from_checkpoint(checkpoint_of(source)) as trainer:
        expected = without_times(trainer.evaluate(5))
    with trainer_of("seed=5", f"module.load_state_path={source}") as trainer:
        # The environments of an evaluation follow from the run's seed: the same one, or returns could not be equal.
        other = without_times(trainer.evaluate(5))
    with trainer_of(f"module.load_state_path={source}") as trainer:
        assert without_times(trainer.evaluate(5)) == expected
    with trainer_of() as trainer:
        assert without_times(trainer.evaluate(5)) != expected
    assert other != expected


@pytest.mark.parametrize("overrides", [[], ["engine=inline", "env_runners.num_env_runners=2"]], ids=["one", "two"])
def test_the_moments_of_a_filter_go_along(make_run: MakeRun, overrides: list[str]) -> None:
    source = make_run(FILTER)
    before = saved_filter(source)
    with trainer_of(FILTER, *overrides, f"module.load_state_path={source}") as trainer:
        shared = trainer.env_runners.shared_state["default_policy"]["MeanStdFilter"]
        assert_equal(shared, before)
        result = trainer.train()
        after = trainer.env_runners.shared_state["default_policy"]["MeanStdFilter"]
    # Each runner filters one observation more than it steps, in each of its sub-environments.
    seen = after["merged_count"] - before["merged_count"]
    assert result["num_env_steps_sampled"] <= seen <= 2 * result["num_env_steps_sampled"]


def test_a_module_of_each_agent_begins_with_its_own_or_with_the_only_one(make_run: MakeRun) -> None:
    agents, experiment = "multi_agent.modules", "ppo_multi_agent_cartpole"
    several, single = make_run(experiment=experiment), make_run()
    with trainer_of("seed=5", experiment=experiment) as trainer:
        fresh = {module_id: parameters_of(trainer, module_id) for module_id in ("p0", "p1")}
    with trainer_of("seed=5", f"module.load_state_path={several}", experiment=experiment) as trainer:
        for module_id in ("p0", "p1"):
            assert_equal(parameters_of(trainer, module_id), saved_parameters(several, module_id))
    with trainer_of("seed=5", f"{agents}.p1.load_state_path={single}", experiment=experiment) as trainer:
        assert_equal(parameters_of(trainer, "p0"), fresh["p0"])
        assert_equal(parameters_of(trainer, "p1"), saved_parameters(single))
        (loaded,) = trainer.loaded_modules
    assert f"6 parameters of default_policy in {checkpoint_of(single)}" in str(loaded)


def test_what_only_one_of_both_has_is_left_where_that_is_asked_for(make_run: MakeRun) -> None:
    iql = ["module=iql", "module.fcnet_hiddens=[32]", "module.fcnet_activation=tanh"]
    source = make_run("module.vf_share_layers=false", FILTER)
    load = f"module.load_state_path={source}"
    with trainer_of("seed=5", *iql) as trainer:
        fresh = parameters_of(trainer)
    with trainer_of("seed=5", *iql, load, "module.load_state_strict=false") as trainer:
        loaded, (told,) = parameters_of(trainer), map(str, trainer.loaded_modules)
    for name, value in saved_parameters(source).items():
        np.testing.assert_array_equal(loaded[name], value)
        fresh.pop(name)
    assert fresh, "IQL's module has Q functions"
    for name, value in fresh.items():
        np.testing.assert_array_equal(loaded[name], value)
    assert "; only in the checkpoint: MeanStdFilter; only here: " in told


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "there", "here"),
    [
        (
            "module.fcnet_hiddens=[16]",
            "encoder.layers.0.weight (32, 4), encoder.layers.0.bias (32,), pi.layers.0.weight (2, 32), "
            "vf.layers.0.weight (1, 32)",
            "encoder.layers.0.weight (16, 4), encoder.layers.0.bias (16,), pi.layers.0.weight (2, 16), "
            "vf.layers.0.weight (1, 16)",
        ),
        ("env=pendulum", "encoder.layers.0.weight (32, 4)", "encoder.layers.0.weight (32, 3)"),
    ],
    ids=["another_network", "other_spaces"],
)
def test_other_shapes(make_run: MakeRun, override: str, there: str, here: str) -> None:
    source = make_run()
    assert problems_of(f"module.load_state_path={source}", override) == [
        Problem(
            "the parameters in the checkpoint have different shapes: the network or its observations differ",
            where=f"module default_policy, load_state_path\n{checkpoint_of(source)}",
            got=f"{there} in the checkpoint",
            expected=f"{here} in this configuration",
        )
    ]


def test_more_and_other_layers(make_run: MakeRun) -> None:
    source = make_run(FILTER)
    overrides = ["module.vf_share_layers=false", "module.fcnet_activation=relu"]
    problems = problems_of(f"module.load_state_path={source}", *overrides)
    assert problems == [
        Problem(
            "the module in the checkpoint differs from the module in this configuration",
            where=f"module default_policy, load_state_path\n{checkpoint_of(source)}",
            got=(
                "only in the checkpoint: MeanStdFilter; only here: vf_encoder.layers.0.weight, "
                'vf_encoder.layers.0.bias; fcnet_activation "tanh" in the checkpoint, "relu" here'
            ),
            fix="module.load_state_strict=false loads the parameters that both have",
        )
    ]


def test_a_filter_that_the_checkpoint_lacks(make_run: MakeRun) -> None:
    (problem,) = problems_of(f"module.load_state_path={make_run()}", FILTER)
    assert "only here: MeanStdFilter" in (problem.got or "")


def test_several_modules_for_one(make_run: MakeRun) -> None:
    source = make_run(experiment="ppo_multi_agent_cartpole")
    assert problems_of(f"module.load_state_path={source}") == [
        Problem(
            "the checkpoint has several modules, but none is named default_policy",
            where=f"load_state_path\n{checkpoint_of(source)}",
            got="p0, p1",
            expected="a module named default_policy, or a single module",
        )
    ]


@pytest.mark.parametrize("verb", [(), ("validate",)], ids=["train", "validate"])
def test_folders_without_a_checkpoint(run_main: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    agents = "multi_agent.modules.p1.load_state_path=empty"
    arguments = ("+experiment=ppo_multi_agent_cartpole", *QUICK, "stop.training_iteration=1")
    outcome = run_main(*verb, *arguments, "module.load_state_path=nowhere", agents, "hydra.run.dir=run")
    assert (outcome.code, outcome.out) == (2, "")
    assert_error(
        outcome.err,
        ConfigError(
            [
                Problem(
                    "module.load_state_path: the folder does not exist",
                    where="override module.load_state_path=nowhere",
                    got="TMP/nowhere",
                    expected="the run dir of a run, or one of its checkpoints",
                ),
                Problem(
                    "multi_agent.modules.p1.load_state_path: the folder does not contain a checkpoint",
                    where="override multi_agent.modules.p1.load_state_path=empty",
                    got="TMP/empty",
                    expected=(
                        "a run that has written one; it does so every checkpoint.every_iterations and at its end"
                    ),
                ),
            ]
        ),
        tmp_path,
    )
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_was_altered(run_main: Run, make_run: MakeRun, tmp_path: Path) -> None:
    shutil.copytree(make_run(), tmp_path / "altered")
    parameters = checkpoint_of(tmp_path / "altered") / "learners.safetensors"
    parameters.write_bytes(parameters.read_bytes()[:-1] + b"x")
    arguments = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", "module.load_state_path=altered")
    outcome = run_main(*arguments, "hydra.run.dir=run")
    assert outcome.code == 2
    assert outcome.err.startswith("a file of the checkpoint is truncated or altered")
    assert not (tmp_path / "run").exists()


# -- on the command line -------------------------------------------------------------------------------------------


def test_a_new_run_of_a_checkpoint_with_its_own_counters_and_records(
    run_main: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    source = make_run("algorithm.lr=7e-4")
    digest = read_manifest(checkpoint_of(source))["digest"]
    outcome = run_main("resume", str(source), "--module-only", "seed=5", "stop.training_iteration=1")
    assert outcome.code == 0, outcome.err
    (run_dir,) = (tmp_path / "outputs" / "ppo_cartpole").glob("[0-9]*/*")
    (told,) = [line for line in outcome.out.splitlines() if line.startswith("  module  ")]
    origin = f"6 parameters of {checkpoint_of(source)} (digest {digest[:12]})"
    assert told.split(maxsplit=1)[1] == f"starts with {origin}"
    (line,) = progress_of(run_dir)
    expected = [*QUICK, "algorithm.lr=7e-4", "seed=5", f"module.load_state_path={source}"]
    with Trainer.from_experiment("ppo_cartpole", expected) as trainer:
        assert without_times(line) == without_times(trainer.train())
    manifest = read_manifest(run_dir / "checkpoints" / "iteration_000001")
    assert manifest["config"]["module"]["load_state_path"] == str(checkpoint_of(source))
    assert "seed: 5\n" in (run_dir / ".hydra" / "config.yaml").read_text()
    again = run_main("resume", str(source), "--module-only", f"hydra.run.dir={run_dir}")
    assert (again.code, again.out) == (2, "")
    assert "already contains a run" in again.err


def test_a_run_that_began_so_goes_on_without_its_source(run_main: Run, make_run: MakeRun, tmp_path: Path) -> None:
    shutil.copytree(make_run(), tmp_path / "source")
    arguments = ("+experiment=ppo_cartpole", *QUICK, "module.load_state_path=source")
    for name, iterations in (("straight", 3), ("run", 2)):
        outcome = run_main(*arguments, f"stop.training_iteration={iterations}", f"hydra.run.dir={name}")
        assert outcome.code == 0, outcome.err
    shutil.rmtree(tmp_path / "source")
    assert run_main("resume", "run", "stop.training_iteration=3").code == 0
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "straight")
    assert run_main("evaluate", "run").code == 0
    with Trainer.from_checkpoint(tmp_path / "run" / "checkpoints" / "iteration_000003") as trainer:
        assert trainer.loaded_modules == []


def test_options_take_the_place_of_blocks_and_an_experiment_of_all_but_the_network(
    run_main: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    source = make_run("module.fcnet_hiddens=[8]", "algorithm.gamma=0.9", "env_runners.num_envs_per_env_runner=2")
    quick = ["algorithm.train_batch_size_per_learner=256", "stop.training_iteration=1", "tracking=none"]
    group = run_main("resume", str(source), "--module-only", "env_runners=local", *quick, "hydra.run.dir=group")
    assert group.code == 0, group.err
    config = stored_config(tmp_path / "group")
    assert config["env_runners"]["num_envs_per_env_runner"] == 1
    assert (config["module"]["fcnet_hiddens"], config["algorithm"]["gamma"]) == ([8], 0.9)
    choice = ["experiment=ppo_dict_cartpole", "env=cartpole", *quick, "hydra.run.dir=experiment"]
    experiment = run_main("resume", str(source), "--module-only", *choice)
    assert experiment.code == 0, experiment.err
    assert experiment.out.startswith("ppo_dict_cartpole\n")
    config = stored_config(tmp_path / "experiment")
    assert (config["env_runners"]["num_envs_per_env_runner"], config["env"]["env"]) == (8, "CartPole-v1")
    assert (config["module"]["fcnet_hiddens"], config["algorithm"]["gamma"]) == ([8], 0.99)


def stored_config(run_dir: Path) -> dict[str, Any]:
    return dict(read_manifest(Path(result_of(run_dir)["checkpoint"]))["config"])


def test_mistakes_in_the_overrides_of_a_new_run_are_one_report(
    run_main: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    mistakes = ["algorithm=pppo", "~env", "seed=-1", "env_runners.explor=true", "nothing=1"]
    outcome = run_main("resume", str(make_run()), "--module-only", *mistakes)
    assert (outcome.code, outcome.out) == (2, "")
    assert_error(
        outcome.err,
        ConfigError(
            [
                Problem(
                    "unknown algorithm 'pppo'",
                    where="override algorithm=pppo",
                    got="pppo",
                    expected=Including(
                        "a2c, ", " ppo, ppo_sb3, ", " more); or a file in DIR/algorithm with --config-dir DIR"
                    ),
                    nearest="ppo",
                ),
                Problem(
                    "a stored run takes overrides of single keys, not of groups",
                    where="override ~env",
                    expected="key=value",
                    fix=(
                        "`runner resume RUN_DIR --module-only` starts a new run with the same module, and takes "
                        "group=option"
                    ),
                ),
                unknown_key("nothing", "1", ExperimentConfig),
                out_of_range("seed", "-1", "an integer >= 0"),
                unknown_key("env_runners.explor", "true", EnvRunnersConfig, nearest="explore"),
            ]
        ),
        tmp_path,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [("evaluate", "run"), ("+experiment=ppo_cartpole",)], ids=["evaluate", "train"])
def test_other_verbs_have_no_such_option(run_main: Run, verb: tuple[str, ...]) -> None:
    outcome = run_main(*verb, "--module-only")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("--module-only is an option of `runner resume`")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # SQLAlchemy deprecates what MLflow uses
def test_mlflow_names_the_run_and_the_checkpoint_that_a_run_begins_with(
    run_main: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    first, second = tmp_path / "outputs" / "first", tmp_path / "outputs" / "second"
    shutil.copytree(make_run(), first)
    (first / "mlflow_run.json").write_text(json.dumps({"run_id": "that of the first", "tracking_uri": "elsewhere"}))
    train = [item for item in QUICK if item != "tracking=none"]
    arguments = ("+experiment=ppo_cartpole", *train, "stop.training_iteration=1", f"hydra.run.dir={second}")
    assert run_main(*arguments, f"module.load_state_path={first}").code == 0
    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    run_id = json.loads((second / "mlflow_run.json").read_bytes())["run_id"]
    assert run_id != "that of the first"
    tags = client.get_run(run_id).data.tags
    assert tags["load_state.run_id"] == "that of the first"
    assert tags["load_state.checkpoint"] == str(checkpoint_of(first))
    assert tags["load_state.digest"] == read_manifest(checkpoint_of(first))["digest"]


# -- recorded data, then an environment ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_behaviour_cloning_and_then_ppo(ray_cluster: None, run_main: Run, tmp_path: Path) -> None:
    small = [
        f"offline.input_={RECORDED}",
        "module.fcnet_hiddens=[16]",
        "algorithm.train_batch_size_per_learner=512",
        "offline.dataset_num_iters_per_learner=3",
        "evaluation.evaluation_interval=null",
        "checkpoint.metric=training_iteration",
        "~stop.evaluation.env_runners.episode_return_mean",
        "stop.training_iteration=2",
        "tracking=none",
    ]
    cloning = run_main("+experiment=bc_cartpole", *small, "hydra.run.dir=bc")
    assert cloning.code == 0, cloning.err
    refused = run_main("resume", "bc", "algorithm=ppo", "offline=none")
    assert refused.code == 2
    assert refused.err.count("`runner resume RUN_DIR --module-only` starts a new run") == 2
    online = run_main("resume", "bc", "--module-only", "experiment=ppo_cartpole", *QUICK, "hydra.run.dir=ppo", _ONE)
    assert online.code == 0, online.err
    overrides = ["module.fcnet_hiddens=[16]", f"module.load_state_path={tmp_path / 'bc'}"]
    with trainer_of(*overrides) as trainer:
        assert_equal(parameters_of(trainer), saved_parameters(tmp_path / "bc"))
        (line,) = progress_of(tmp_path / "ppo")
        assert without_times(line) == without_times(trainer.train())
    assert re.search(r"^  module +starts with 6 parameters of .*bc/checkpoints/iteration_000002 ", online.out, re.M)
    assert line["training_iteration"] == 1
    assert line["num_env_steps_sampled_lifetime"] == line["num_env_steps_sampled"]
    assert json.loads((tmp_path / "bc" / "result.json").read_bytes())["status"] == "finished"


_ONE = "stop.training_iteration=1"
