"""The notebooks of examples/notebooks run from the top to the bottom, at reduced size, and show what they say."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import nbformat
import pytest

from tests.conftest import QUICK, ROOT, result_of
from tests.notebooks.kernels import RunNotebook, outputs_of, printed_by

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHORT = [*QUICK, "~stop", "+stop.training_iteration=3"]


def reduced(path: Path, overrides: list[str]) -> nbformat.NotebookNode:
    """A notebook whose cell of parameters has other overrides."""
    notebook = nbformat.read(path, as_version=4)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    assert parameters.source.startswith("overrides = []")
    parameters.source = f"overrides = {overrides!r}"
    return notebook


def cell_with(notebook: nbformat.NotebookNode, source: str) -> nbformat.NotebookNode:
    (found,) = (cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_the_first_run(tmp_path: Path) -> None:
    client = RunNotebook(reduced(FOLDER / "first_run.ipynb", SHORT), tmp_path)
    notebook = client.run()
    fit = cell_with(notebook, "run = fit(trainer)")
    (live,) = outputs_of(fit, "text/html")
    assert "finished: reached 3 iterations" in live
    assert "data:image/svg+xml;base64," in live
    assert "iter " not in printed_by(fit)  # the plain display
    (record,) = outputs_of(cell_with(notebook, "read_run(run.path)"), "text/html")
    assert "ppo_cartpole" in record
    assert "mean episode return" not in record  # it is in the picture
    assert record.count("data:image/svg+xml;base64,") > 3
    (curves,) = outputs_of(cell_with(notebook, "run.curves"), "text/html")
    assert "data:image/svg+xml;base64," in curves
    (counted,) = outputs_of(cell_with(notebook, "len(run.columns"), "text/plain")
    assert counted.startswith("(3, ")
    (longer,) = outputs_of(cell_with(notebook, "longer = fit(trainer)"), "text/html")
    assert "finished: reached 5 iterations" in longer
    assert "checked" in printed_by(cell_with(notebook, "-m runner export"))
    (total,) = outputs_of(cell_with(notebook, "LocalPolicy("), "text/plain")
    assert float(total) > 5
    (run_dir,) = (tmp_path / "outputs" / "ppo_cartpole").glob("[0-9]*/*")
    assert result_of(run_dir)["training_iteration"] == 5


@pytest.mark.slow
def test_plans_and_pipelines(tmp_path: Path) -> None:
    notebook = RunNotebook(reduced(FOLDER / "plans_and_pipelines.ipynb", SHORT), tmp_path).run()
    (plan,) = outputs_of(cell_with(notebook, "plan, pipelines = "), "image/svg+xml")
    assert "ConcatBatches" in plan
    assert "CompleteEpisodes" not in plan
    (replayed,) = outputs_of(cell_with(notebook, "\nreplayed"), "image/svg+xml")
    assert "StoreToReplayBuffer" in replayed
    assert "├─ Concurrently" in printed_by(cell_with(notebook, "print(replayed)"))
    (pipelines,) = itertools.chain.from_iterable(
        outputs_of(cell, "text/html") for cell in notebook.cells if cell.source == "pipelines"
    )
    assert "GeneralAdvantageEstimation" in pipelines
    (changed,) = outputs_of(cell_with(notebook, "changed = ["), "image/svg+xml")
    assert "CompleteEpisodes" in changed
    (acting,) = outputs_of(cell_with(notebook, "trainer.pipelines().env_to_module"), "image/svg+xml")
    assert "MeanStdFilter" in acting
    live, record = outputs_of(cell_with(notebook, "run = fit(trainer)"), "text/html")
    assert "finished: reached 3 iterations" in live
    assert "Learner" in record
    assert re.search(r"did you mean +ParallelRollouts", printed_by(cell_with(notebook, "except ConfigError")))


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


@pytest.mark.slow
def test_the_display_is_updated_twice_a_second_and_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    overrides = [*QUICK, "~stop", "+stop.time_total_s=1000"]
    make = f"from runner import Trainer, fit\ntrainer = Trainer.from_experiment('ppo_cartpole', {overrides})"
    interrupt = (
        "import os, signal, threading\n"
        "threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "run = fit(trainer, 'run')\n"
    )
    again = interrupt.replace("'run'", "").replace("run =", "again =")
    numbers = [f"len({name}.columns['time_total_s'])" for name in ("again", "run")]
    told = "run.status, again.status, run.path == again.path, " + " > ".join(numbers)
    client = RunNotebook(notebook_of(make, interrupt, again, told, "trainer.close()"), tmp_path)
    notebook = client.run()
    assert outputs_of(notebook.cells[3], "text/plain") == ["('interrupted', 'interrupted', True, True)"]
    (live,) = outputs_of(notebook.cells[1], "text/html")
    assert "interrupted: SIGINT after iteration" in live
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(client.updated)]
    assert len(client.updated) > 6
    assert sum(gap < 0.45 for gap in gaps) <= 2  # the last one of each run comes at once


@pytest.mark.slow
def test_display_none_shows_nothing(tmp_path: Path) -> None:
    source = (
        "from runner import Trainer, fit\n"
        f"with Trainer.from_experiment('ppo_cartpole', {[*SHORT, 'tracking.display=none']}) as trainer:\n"
        "    run = fit(trainer, 'run')"
    )
    notebook = RunNotebook(notebook_of(source), tmp_path).run()
    assert notebook.cells[0].outputs == []
