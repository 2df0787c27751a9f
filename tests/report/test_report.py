"""`report DIR` for sweeps and runs: what the page shows, that nothing gets out of it, mistakes, MLflow."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from runner.cli.report import _files
from runner.pages.charts import THEMES
from runner.pages.page import Code, Figure, Page, Table, Text, render, render_content
from runner.pages.run_page import run_page
from runner.pages.run_record import read_run
from runner.report.sweep_page import sweep_page
from runner.report.sweep_record import read_sweep
from runner.sweep.trials import SweepFolder
from runner.tracking.known_run import write_known_run
from tests.conftest import QUICK, Run, run_process
from tests.report.folders import EVIL, METRIC, progress_line, replay_line, write_everything, write_run, write_sweep


def page_of(folder: Path) -> Page:
    if (folder / "sweep.json").exists():
        return sweep_page(read_sweep(SweepFolder.open(folder)))
    return run_page(read_run(folder))


def blocks(page: Page, title: str) -> list[Any]:
    """Those of a section; [] where it is not there."""
    return [block for section in page.sections if section.title == title for block in section.blocks]


def texts(page: Page, title: str) -> str:
    """All words of a section."""
    found = []
    for block in blocks(page, title):
        if isinstance(block, Text | Code):
            found.append(block.text)
        elif isinstance(block, Figure):
            found.append(block.caption)
        elif isinstance(block, Table):
            found += [*block.columns, *(cell.text for row in block.rows for cell in row)]
    return "\n".join(found)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("sweep") / "s")


# -- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep(everything: Path) -> None:
    page = page_of(everything)
    assert page.status == {"finished": 32, "stopped": 1, "interrupted": 1, "failed": 2}
    titles = [section.title for section in page.sections]
    assert titles == [
        *("Learning curves", "Over seeds", "Values and objective", "Importance", "Pareto front", "Population"),
        *("Best trial", "Trials", "Failed trials", "Search space"),
    ]
    facts = {fact.name: fact.value for fact in page.facts}
    lines = (everything / "trials.jsonl").read_text().splitlines()
    best = max(json.loads(line)["result"].get(METRIC) or 0 for line in lines)
    assert facts["Best trial"] == f"{best:.4g}"
    assert (facts["Trials"], facts["Wall clock"]) == ("36", "0:00:45")
    assert facts["Training time"] == "0:04:04"  # 12 x 5 s, 23 x 8 s; one could not begin
    assert "the arm has left its rail" in texts(page, "Failed trials")
    assert "0.001 → 0.002" in texts(page, "Population")
    assert f"env.env_config={EVIL}" in texts(page, "Search space")


def test_curves_over_seeds(everything: Path) -> None:
    """Ten combinations in colours, the others grey; where a seed has ended the line goes on dashed."""
    figure = blocks(page_of(everything), "Learning curves")[0]
    rows, others = figure.points["points"], figure.points["others"]
    assert len({row["series"] for row in rows}) == 10
    assert len({row["series"] for row in others}) == 2
    first = [row for row in rows if row["series"] == rows[0]["series"]]
    full, dashed = ([row for row in first if row.get("part") == part] for part in ("full", "dashed"))
    assert full[-1]["x"] == dashed[0]["x"]
    assert full[-1]["y"] == dashed[0]["y"]
    assert all(row["low"] <= row["y"] <= row["high"] for row in full)
    assert dashed[-1]["low"] is None  # two seeds
    assert "Dashed" in figure.caption
    assert "The other 2 are grey" in figure.caption


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    trials = [{"combination": {"lr": value}, "factor": factor} for value, factor in (("1", 3.0), ("2", 5.0))]
    page = page_of(write_sweep(tmp_path / "s", {"lr": ["1", "2"]}, trials))
    (figure,) = blocks(page, "Learning curves")
    assert [row["y"] for row in figure.points["points"] if row["series"] == "lr=2"] == [16, 21, 26, 31, 36, 41]
    assert list(dict.fromkeys(row["series"] for row in figure.points["points"])) == ["lr=2", "lr=1"]
    assert all(row["low"] is None for row in figure.points["points"])
    assert not blocks(page, "Over seeds")
    assert not blocks(page, "Pareto front")


def test_an_estimate_over_seeds_is_in_the_table(tmp_path: Path) -> None:
    trials = [{"combination": {"lr": "1", "seed": str(seed)}, "factor": float(seed)} for seed in range(4)]
    page = page_of(write_sweep(tmp_path / "s", {"lr": ["1"], "seed": list("0123")}, trials))
    table = blocks(page, "Over seeds")[0]
    assert table.columns[:3] == ["lr", "seeds", "mean return, IQM"]
    assert [cell.text for cell in table.rows[0][:3]] == ["1", "4", "13.5"]  # of 0, 9, 18, 27


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_sweep_that_has_reached_nothing(tmp_path: Path, status: str) -> None:
    trial = {"combination": {"lr": "1"}, "status": status, "num_lines": 0}
    page = page_of(write_sweep(tmp_path / "s", {"lr": ["1", "2"]}, [trial]))
    assert "No trial has a value" in texts(page, "Best trial")
    assert render(page)
    assert render(page_of(write_sweep(tmp_path / "none", {"lr": ["1", "2"]}, [])))


def test_the_best_trial_and_the_pareto_front(everything: Path) -> None:
    page = page_of(everything)
    assert f"runner resume {everything}" in texts(page, "Best trial")
    figure, table, _ = blocks(page, "Pareto front")
    marked = {row["trial"] for row in figure.points["points"] if row["marked"]}
    assert marked == {row[0].sort for row in table.rows}


def test_train_it_alone_has_all_arguments_of_the_sweep(tmp_path: Path) -> None:
    arguments = ["+experiment=ppo_cartpole", "tracking=none", "env.env_config={a: 1}", "--config-dir=/my configs"]
    trials = [{"combination": {"algorithm.lr": 0.001, "seed": "3"}}]
    page = page_of(write_sweep(tmp_path, {"algorithm.lr": ["1"]}, trials, arguments=arguments))
    alone = texts(page, "Best trial").splitlines()[-1]
    typed = ["experiment=ppo_cartpole", *arguments[1:]]
    assert shlex.split(alone)[1:] == ["-m", "runner", *typed, "algorithm.lr=0.001", "seed=3"]


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run(tmp_path: Path) -> None:
    lines = [progress_line(number) for number in range(1, 1001)]
    lines[9] |= {f"evaluation/{METRIC}": 300.0}
    ended = {"status": "finished", "stop_reason": "enough"}
    page = page_of(write_run(tmp_path, lines, ended, "['+experiment=ppo_cartpole']"))
    assert (page.title, page.status) == ("ppo_cartpole", {"finished": 1})
    (figure,) = blocks(page, "Learning curves")
    training = [row for row in figure.points["points"] if row["series"] == "training"]
    assert len(training) == 400
    assert training[0]["low"] == training[0]["y"] - 5
    assert [row["y"] for row in figure.points["points"] if row["series"] == "evaluation"] == [300.0]
    assert "mean of 2.5 iterations" in figure.caption
    assert "KL coefficient (default_policy) 0.2 (learners/default_policy/curr_kl_coeff)" in texts(page, "Learner")
    assert (figure.title, figure.metric) == ("Mean return", f"{METRIC}, evaluation/{METRIC}")
    html = render_content(page).html
    assert "Total loss (default_policy)</h3>" in html
    assert ">learners/default_policy/total_loss</p>" in html
    shares = {row["name"]: row["text"] for row in blocks(page, "Time")[0].points["points"]}
    assert shares["sampling"].endswith("50.0%")
    assert shares["update"].endswith("30.0%")  # without the learner pipeline
    assert shares["other"].endswith("10.0%")
    assert "2.9" in texts(page, "Environment")


def test_the_best_return_may_be_the_last_one(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "rising", [progress_line(number) for number in (1, 2, 3)]))
    assert [(fact.value, fact.note) for fact in page.facts if fact.name == "Return"] == [("60", "last; best 60")]
    lines = [progress_line(1), progress_line(3), progress_line(2)]
    page = page_of(write_run(tmp_path / "falling", lines))
    assert [(fact.value, fact.note) for fact in page.facts if fact.name == "Return"] == [("40", "last; best 60")]


def test_evaluation_takes_time_beside_the_iterations(tmp_path: Path) -> None:
    """Sampling 0.5 s, update and learner pipeline 0.4 s of each iteration of 1 s; evaluation comes on top of it."""
    timers = {"timers__evaluation": 1.0, "timers__offline_evaluation": 0.5}
    page = page_of(write_run(tmp_path, [progress_line(number, **timers) for number in (1, 2)]))
    seconds = {row["name"]: row["x"] for row in blocks(page, "Time")[0].points["points"]}
    assert seconds["other"] == pytest.approx(0.2)
    assert (seconds["evaluation"], seconds["evaluation on recorded data"]) == (2.0, 1.0)
    assert sum(seconds.values()) == pytest.approx(5.0)


def test_a_run_that_goes_on_or_has_not_begun(tmp_path: Path) -> None:
    going_on = page_of(write_run(tmp_path / "a", [progress_line(1), progress_line(2, learners__x__loss=float("nan"))]))
    assert going_on.status == {"unfinished": 1}
    empty = page_of(write_run(tmp_path / "b", []))
    assert "No iteration" in texts(empty, "Learning curves")
    for page in (going_on, empty):
        assert "NaN" not in re.sub(r"<script>.*?</script>", "", render(page), flags=re.DOTALL)


def test_several_agents(tmp_path: Path) -> None:
    own = {f"env_runners__agent_episode_return_mean__{name}": 1.0 for name in ("left", "right")}
    losses = {f"learners__{module}__total_loss": 0.5 for module in ("p0", "p1")}
    lines = [
        progress_line(number, **{name: value * number for name, value in (own | losses).items()}) for number in (1, 2)
    ]
    page = page_of(write_run(tmp_path, lines))
    agents = blocks(page, "Learning curves")[1]
    assert {row["series"] for row in agents.points["points"]} == {"left", "right"}
    (losses_figure,) = [block for block in blocks(page, "Learner") if getattr(block, "title", "") == "Total loss"]
    assert {row["series"] for row in losses_figure.points["points"]} == {"default_policy", "p0", "p1"}
    assert losses_figure.metric == ", ".join(f"learners/{name}/total_loss" for name in ("default_policy", "p0", "p1"))


@pytest.mark.parametrize(
    ("buffers", "names"), [(["near"], ["stored", "capacity"]), (["near", "far"], ["near, stored", "far, capacity"])]
)
def test_replay(buffers: list[str], names: list[str], tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, [replay_line(number, *buffers) for number in range(1, 21)]))
    figures = {block.title: block for block in blocks(page, "Replay") if isinstance(block, Figure)}
    assert list(figures) == [
        "Stored env steps",
        "Age of the oldest row (batches)",
        "Mean priority",
        "Trained env steps per sampled env step",
    ]
    lines = [
        [row["y"] for row in figures["Stored env steps"].points["points"] if row["series"] == name] for name in names
    ]
    assert lines == [[1000.0 * min(number, 10) for number in range(1, 21)], [10_000.0] * 20]
    assert "near 410.0 kB" in texts(page, "Replay")
    assert [row["y"] for row in figures["Trained env steps per sampled env step"].points["points"]][
        :2
    ] == pytest.approx([4.0, 16 / 3], rel=1e-4)
    assert blocks(page, "Other metrics") == []


def test_a_task_that_a_resumed_run_has_removed(tmp_path: Path) -> None:
    counts = [{"maze": 10 * number, "room": 30 * number} for number in (1, 2)] + [{"room": 80}, {"room": 90}]
    lines = [
        progress_line(number, **{f"curriculum__{task}__num_episodes": count for task, count in of_tasks.items()})
        for number, of_tasks in enumerate(counts, start=1)
    ]
    drawn, _ = blocks(page_of(write_run(tmp_path, lines)), "Curriculum")
    rows = drawn.points["points"]
    shares = {task: [row["y"] for row in rows if row["series"] == task] for task in ("maze", "room")}
    assert shares == {"maze": [0.25, 0.25, 0.0, 0.0], "room": [0.75, 0.75, 1.0, 1.0]}


@pytest.mark.parametrize("content", ["", "{", "5", '{"a": 1}', '[{"player": "a"}]', '[{"player": "a", "elo": null}]'])
def test_damaged_standings_of_a_league(tmp_path: Path, content: str) -> None:
    run_dir = write_run(tmp_path, [progress_line(1)])
    (run_dir / "league").mkdir()
    (run_dir / "league" / "standings.json").write_text(content)
    [block] = blocks(page_of(run_dir), "League")
    assert block.text.startswith("The standings in league/standings.json cannot be read (")


def test_runs_without_replay_have_no_such_section(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, [progress_line(number, training_intensity=1.0) for number in range(1, 4)]))
    assert blocks(page, "Replay") == []
    assert "Trained env steps per sampled env step 1 (training_intensity)" in texts(page, "Other metrics")


def test_uniform_replay_of_a_full_buffer(tmp_path: Path) -> None:
    lines = [replay_line(number, "replay", capacity=80) for number in range(1, 4)]
    for line in lines:
        del line["replay_buffers/replay/mean_priority"]
        del line["training_intensity"]
    page = page_of(write_run(tmp_path, lines))
    titles = [block.title for block in blocks(page, "Replay") if isinstance(block, Figure)]
    assert titles == ["Age of the oldest row (batches)"]
    assert "Stored env steps 80 (replay_buffers/replay/num_env_steps, replay_buffers/replay/capacity)" in texts(
        page, "Replay"
    )


def test_asynchronous_sampling(tmp_path: Path) -> None:
    names = ("env_runners__weights_lag_mean", "env_runners__weights_lag_max", "env_runners__num_samples_ready")
    names += ("timers__env_runner_idle", "timers__learner_idle")
    names += ("queues__fresh__num_items", "queues__stale__num_items")
    lines = [progress_line(number, **dict.fromkeys(names, float(number))) for number in (1, 2)]
    page = page_of(write_run(tmp_path, lines))
    found = {block.title: block.points["points"] for block in blocks(page, "Asynchrony") if isinstance(block, Figure)}
    assert {title: {row["series"] for row in rows} for title, rows in found.items()} == {
        "Age of the weights (updates)": {"mean", "max"},
        "Samples waiting for the learner": {""},
        "Idle time of env runners, in total (s)": {""},
        "Idle time of the learner (s)": {""},
        "Items in the queue": {"fresh", "stale"},
    }
    elsewhere = {getattr(block, "metric", "") for name in ("Episodes", "Other metrics") for block in blocks(page, name)}
    assert not {title for title in elsewhere if "lag" in title or "samples_ready" in title or "queues" in title}


def test_a_run_on_recorded_data(tmp_path: Path) -> None:
    """No returns: the losses come first; estimates have their intervals as bands."""
    line = {"training_iteration": 1, "learners/default_policy/total_loss": 1.0, "offline_data/rows_read_per_s": 5.0}
    estimate = {f"evaluation/offline/wis{end}": value for end, value in (("", 3.0), ("_low", 1.0), ("_high", 4.0))}
    lines = [{name: value * number for name, value in (line | estimate).items()} for number in (1, 2)]
    page = page_of(write_run(tmp_path, lines))
    (curves,) = blocks(page, "Learning curves")
    assert [row["y"] for row in curves.points["points"]] == [1.0, 2.0]
    assert [row["x"] for row in curves.points["points"]] == [1, 2]
    (wis,) = blocks(page, "Evaluation")
    assert (wis.title, wis.points["points"][1]["low"], wis.points["points"][1]["high"]) == (
        *("WIS estimate of the return", 2.0, 8.0),
    )


# -- the file ---------------------------------------------------------------------------------------------------------


class _Resources(HTMLParser):
    """What a page would load, its scripts, and the tags that are in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_the_page_is_alone_and_nothing_gets_out_of_it(everything: Path) -> None:
    html = render(page_of(everything))
    resources = _Resources()
    resources.feed(html)
    assert resources.loaded == ["data:,"]  # no icon
    assert resources.tags.count("script") == 3
    assert "img" not in resources.tags
    assert EVIL not in html
    assert "url(" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert html == render(page_of(everything))  # no chance, no date


def test_every_chart_can_be_drawn(everything: Path, tmp_path: Path) -> None:
    run = page_of(write_run(tmp_path, [progress_line(number) for number in range(1, 40)]))
    figures = [*page_of(everything).figures, *run.figures]
    assert len(figures) > 10
    for figure in figures:
        svg = vl_convert.vegalite_to_svg(figure.spec(300), config=THEMES["dark"])
        assert svg.count("<path") > 1, figure.name
        assert "NaN" not in svg, figure.name
    assert figures[0].to_png().startswith(b"\x89PNG")


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(run_main: Run, everything: Path, tmp_path: Path) -> None:
    outcome = run_main("report", str(everything), "--output", "new/page.html")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(
        "report   new/page.html\ntrials   32 finished, 1 stopped, 1 interrupted, 2 failed\nbest "
    )
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!doctype html>")
    assert run_main("report", str(everything)).code == 0
    assert (everything / "report.html").stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN_OR_SWEEP is missing"),
        (["a", "b"], "b is an unexpected argument"),
        (["nothing"], "the folder does not exist\n   where         nothing"),
        (["empty"], "the folder contains neither a run nor a sweep"),
        (["run", "--output", "file/page.html"], "the report cannot be written"),
        (["run", "--outptu=x"], "did you mean  --output"),
        (["broken"], "the sweep cannot be read"),
    ],
)
def test_mistakes(run_main: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    write_run(tmp_path / "run", [progress_line(1)])
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sweep.json").write_text("{}")
    outcome = run_main("report", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_heavy_packages_stay_out(everything: Path, tmp_path: Path) -> None:
    program = ("-X", "importtime", "-m", "runner")
    ended = run_process(tmp_path, "report", str(everything), "--output", "page.html", program=program)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert "altair" in imported
    assert not imported & {"torch", "ray", "mlflow", "pandas"}


def test_a_real_run(run_main: Run, tmp_path: Path) -> None:
    run = ("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=3", "hydra.run.dir=run")
    assert run_main(*run).code == 0
    outcome = run_main("report", "run")
    assert outcome.code == 0, outcome.err
    assert "status   finished: reached 3 iterations" in outcome.out
    assert "3" in {fact.value for fact in page_of(tmp_path / "run").facts}


# -- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> tuple[Any, str, str]:
    """A client, the URI of its SQLite store, a run in it that has ended."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    run = client.create_run(experiment)
    client.set_terminated(run.info.run_id, "FAILED", 1234)
    return client, uri, run.info.run_id


@pytest.mark.filterwarnings("ignore")  # MLflow warns about its own store
def test_mlflow_gets_the_page_and_pictures(run_main: Run, tmp_path: Path, store: tuple[Any, str, str]) -> None:
    client, uri, run_id = store
    trials = [{"combination": {"lr": value}} for value in ("1", "2")]
    folder = write_sweep(tmp_path / "s", {"lr": ["1", "2"]}, trials)
    write_known_run(folder / "mlflow_run.json", run_id, uri)
    outcome = run_main("report", str(folder))
    assert outcome.code == 0
    assert "warning" not in outcome.err
    assert f"run {run_id}, artifacts report/" in outcome.out
    names = {own.path for own in client.list_artifacts(run_id, "report")}
    assert names == {
        "report/report.html",
        "report/learning_curves_episode_return_mean.png",
        "report/parallel_coordinates.png",
    }
    local = Path(client.download_artifacts(run_id, "report", str(tmp_path)))
    assert (local / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    assert (local / "parallel_coordinates.png").read_bytes().startswith(b"\x89PNG")
    ended = client.get_run(run_id).info
    assert (ended.status, ended.end_time) == ("FAILED", 1234)


def test_pictures_of_one_name_have_different_files(tmp_path: Path) -> None:
    """Such as the curves of a sweep's training return and evaluation return."""
    page = page_of(write_run(tmp_path / "r", [progress_line(number) for number in (1, 2)]))
    files = list(_files(tmp_path / "page.html", replace(page, sections=[*page.sections, *page.sections]), tmp_path))
    assert len(files) > 3
    assert len(set(files)) == len(files)


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_is_gone_is_a_warning(run_main: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [progress_line(1)])
    for known in ({"run_id": "x", "tracking_uri": "sqlite:////proc/no/mlflow.db"}, {"nothing": 1}):
        (folder / "mlflow_run.json").write_text(json.dumps(known))
        outcome = run_main("report", str(folder))
        assert outcome.code == 0
        assert "warning: the report was not logged to MLflow" in outcome.err
        assert (folder / "report.html").exists()
