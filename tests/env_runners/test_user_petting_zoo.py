"""PettingZoo environments that users write, by class and by function, with any agent ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.cli.main import main
from runner.config.errors import ConfigError
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.petting_zoo import as_multi_agent
from runner.experiment.rehearsal import rehearse
from runner.experiment.trainer import Trainer
from runner.testing import check_environment
from tests.conftest import QUICK
from tests.env_runners import user_petting_zoo as envs
from tests.env_runners.test_multi_agent_petting_zoo import assert_samples_go_on
from tests.support.configs import config_from

HERE = "tests.env_runners.user_petting_zoo"
NAMES = ["Guesses", "WithDicts", "Turns", "NumberedAgents", "make_parallel", "make_turns"]
MAPPED = "multi_agent.agent_to_module={0: first, 1: second}"


def overrides(name: str) -> list[str]:
    return [*QUICK, "env=none", f"env._target_={HERE}.{name}", "module.fcnet_hiddens=[4]"]


def trainer_of(name: str, *others: str) -> Trainer:
    return Trainer.from_experiment("ppo_cartpole", [*overrides(name), *others])


@pytest.mark.parametrize("name", NAMES)
def test_training_names_the_agents_by_text(name: str) -> None:
    with trainer_of(name, MAPPED) as trainer:
        result = trainer.train()
        assert [spec.agents for spec in trainer.module_specs] == [("0",), ("1",)]
    assert 0 < (result["env_runners/episode_return_mean"] or 0) <= 10
    assert np.isfinite(result["learners/first/total_loss"])
    assert np.isfinite(result["learners/second/total_loss"])
    assert any(metric.endswith("/0") for metric in result)


@pytest.mark.parametrize("name", NAMES)
def test_check_env_and_validate_accept_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", f"{HERE}.{name}"]) == 0
    assert "agent 0" in capsys.readouterr().out
    assert not check_environment(getattr(envs, name), num_steps=60).faults
    assert rehearse(config_from("+experiment=ppo_cartpole", *overrides(name))).made


@pytest.mark.parametrize("name", ["Guesses", "Turns", "NumberedAgents"])
def test_resume_is_exact(name: str) -> None:
    assert_samples_go_on(lambda: trainer_of(name, MAPPED))


def test_a_resumed_game_does_not_observe_agents_again_that_are_listed_after_their_end() -> None:
    games = [MultiAgentEnvironments(lambda: as_multi_agent(envs.Leaves()), 1, seed=0) for _ in range(2)]
    games[0].reset(("check", 0, 0))
    [*_, [step]] = [games[0].step([{agent: 0}]) for agent in "0120"]
    assert list(step.obs) == ["0", "1"]
    assert step.terminateds["0"]
    games[1].set_state(games[0].get_state())
    for agent, following in (("1", "2"), ("2", "1")):
        assert [list(game.step([{agent: 0}])[0].obs) for game in games] == [[following]] * 2


def test_a_run_records_resumes_and_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    recorded = [f"offline.output={tmp_path / 'recorded'}"]
    stop = ["stop={num_env_steps_sampled_lifetime: 512}"]
    run = ["+experiment=ppo_cartpole", *overrides("Guesses"), MAPPED, *recorded, *stop, f"hydra.run.dir={run_dir}"]
    assert main(run) == 0
    assert list((tmp_path / "recorded").rglob("*.parquet"))
    assert main(["resume", str(run_dir), "stop.num_env_steps_sampled_lifetime=768", "offline.output_append=true"]) == 0
    assert main(["evaluate", str(run_dir)]) == 0
    assert "episode_return_mean" in capsys.readouterr().out


@pytest.mark.parametrize("ids", [[0, 1], ["a", "b"], [("red", 0), ("red", 1)], [np.int64(3), np.int64(4)]])
def test_every_kind_of_id_becomes_text(ids: list[Any]) -> None:
    env = as_multi_agent(envs.Guesses(ids))
    assert isinstance(env, MultiAgentEnv)
    obs, _ = env.reset(seed=0)
    assert list(obs) == [str(agent) for agent in ids] == list(env.observation_spaces)
    _, rewards, terminateds, _, infos = env.step(dict.fromkeys(obs, 0))
    assert list(rewards) == list(terminateds) == list(infos) == list(obs)


def test_ids_that_are_the_same_text() -> None:
    with pytest.raises(ValueError, match="agent ids are equal as strings"):
        as_multi_agent(envs.Guesses([0, "0"]))


def test_no_agents() -> None:
    with pytest.raises(ConfigError, match=r"NoAgents does\s+not\s+define\s+possible_agents"), trainer_of("NoAgents"):
        pass
