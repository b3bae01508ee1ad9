"""Defaults that depend on the dataset: the model for a table, and the clients of data that are already divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.cli.options import settings_of
from fedsat.data import Dataset, Schema
from fedsat.experiment.defaults import Given, brought_by_dataset
from fedsat.experiment.folder import SCHEMA
from fedsat.experiment.jobs import plan
from tests.support.patients import write_patients

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedsat[tables]'")

RUN: dict[str, Any] = {"rounds": 2, "epochs": 1, "label": "outcome", "client": "hospital", "algorithm": "fedavg"}


def test_defaults_of_datasets(tmp_path: Path) -> None:
    path = str(write_patients(tmp_path / "patients.csv"))
    columns = {"label": "outcome", "client": "hospital"}
    clients = {"partition": "natural", "clients": 3, "per_round": 3}
    assert brought_by_dataset({"dataset": path, **columns}) == {"model": "tabular", **clients}
    assert brought_by_dataset({"dataset": path, "label": "outcome", "model": "mlp"}) == {}
    assert brought_by_dataset({"dataset": path, **columns, "partition": "iid"}) == {"model": "tabular"}
    assert brought_by_dataset({"dataset": path, **columns, "per_round": 2})["clients"] == 3
    made = Dataset.from_table(path, **columns)
    assert brought_by_dataset({"dataset": made}) == {"model": "tabular", **clients}
    assert brought_by_dataset({}) == {}
    assert brought_by_dataset({"dataset": "clinics-synthetic", "label": "outcome"}) == {"model": "tabular"}
    assert brought_by_dataset({"dataset": "clinics-synthetic"}) == {
        "model": "tabular", "partition": "natural", "clients": 8, "per_round": 8,
        "label": "outcome", "client": "clinic", "test_column": "split",
    }  # fmt: skip


def test_files_and_options_count_as_given(tmp_path: Path) -> None:
    path = write_patients(tmp_path / "patients.csv")
    file = tmp_path / "mine.toml"
    file.write_text(f'dataset = "{path.as_posix()}"\nlabel = "outcome"\n[model]\nname = "mlp"\n')
    given = settings_of({"config_file": file, "client": "hospital", "hashed": "ward", "set_": ["clients=3"]})
    table = given.table
    assert (table["model"]["name"], table["clients"], table["partition"]["name"]) == ("mlp", 3, "natural")
    assert fedsat.Config.of(table).columns == fedsat.data.Columns("outcome", "hospital", hashed=("ward",))


def test_each_dataset_of_a_grid_has_its_own_defaults() -> None:
    settings: list[tuple[str, Any]] = [("per_round", 4), ("lr", 0.1)]
    grid = [("dataset", ["clinics-synthetic", "mnist-mini"]), ("gamma", [0.5])]
    jobs = plan(Given([*settings, ("seed", 7)]), ["fedavg", "fedsat"], 1, settings, grid)
    tables = {job.label: job.config.table() for job in jobs}
    assert len(tables) == 4
    for label, table in tables.items():
        clinics = "clinics" in label
        model, clients, partition = ("tabular", 8, "natural") if clinics else ("mlp", 100, "lsmc")
        assert (table["model"]["name"], table["clients"], table["partition"]["name"]) == (model, clients, partition)
        assert (table["per_round"], table["lr"], table["seed"]) == (4, 0.1, 7)
        assert table.get("label") == ("outcome" if clinics else None)
    assert tables["fedsat-dataset=mnist-mini-gamma=0.5-seed7"]["algorithm"]["gamma"] == 0.5


def test_a_dataset_of_a_grid_replaces_the_defaults_of_another() -> None:
    named = [("dataset", "clinics-synthetic")]
    (job,) = plan(Given(named), ["fedavg"], 1, named, [("model", ["mlp"])])
    assert (job.config.model["name"], job.config.clients) == ("mlp", 8)
    (job,) = plan(Given(named), ["fedavg"], 1, (), [("dataset", ["mnist-mini"])])
    assert (job.config.model["name"], job.config.clients, job.config.label) == ("mlp", 100, None)


def test_a_run_keeps_its_schema_and_resumes(tmp_path: Path) -> None:
    path = write_patients(tmp_path / "patients.csv")
    whole = fedsat.run(dataset=str(path), **{**RUN, "rounds": 3})
    fedsat.run(dataset=str(path), out=tmp_path / "run", checkpoint_every=1, **RUN)
    table = fedsat.load(tmp_path / "run").table
    assert (table["label"], table["client"], table["model"]["name"]) == ("outcome", "hospital", "tabular")
    assert whole.setup.federation is not None
    schema = whole.setup.federation.dataset.schema
    assert Schema.from_json((tmp_path / "run" / SCHEMA).read_text()) == schema
    assert fedsat.resume(tmp_path / "run", rounds=3).records[-1].metrics == whole.records[-1].metrics
    write_patients(path, rows=87)
    with pytest.raises(fedsat.UsageError, match="the data, or their partition, have changed"):
        fedsat.resume(tmp_path / "run", rounds=4)


def test_a_table_is_learned(tmp_path: Path) -> None:
    path = write_patients(tmp_path / "patients.csv", rows=300)
    run = fedsat.run(dataset=str(path), **{**RUN, "rounds": 8, "epochs": 5, "lr": 0.2}, evaluate_every=8)
    assert run.summary["accuracy"] > 0.9
