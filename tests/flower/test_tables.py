"""Nodes with tables of their own: the schema that the federation agreed on, and the columns that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.data import Dataset
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.folder import SCHEMA
from fedsat.experiment.saved import read_info
from tests.support.patients import write_patients

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedsat[tables]'")

from fedsat.flower.terms import Terms
from tests.flower.test_equality import assert_same, federate
from tests.support.faulty_nodes import FaultyNodes

HOSPITALS = ("east", "north", "west")  # as clients are numbered
RUN: dict[str, Any] = {
    "label": "outcome", "clients": 3, "per_round": 2, "workers": 2, "rounds": 2, "epochs": 1, "lr": 0.05,
    "model": "tabular", "partition": "natural", "engine": "sequential",
}  # fmt: skip
WAIT = {"timeout": 60.0, "wait": 60.0}


def test_partitions_of_a_table_equal_the_simulation(tmp_path: Path) -> None:
    table = str(write_patients(tmp_path / "patients.csv"))
    config = fedsat.configure(**RUN, dataset=table, client="hospital")
    grid = FaultyNodes(*({"dataset": table, "partition-id": k, "num-partitions": 3} for k in range(3)))
    run = federate(grid, config, out=tmp_path / "run")
    assert_same(run, fedsat.run(**RUN, dataset=table, client="hospital"))
    assert (tmp_path / "run" / SCHEMA).is_file()


def test_each_node_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The server has a schema only; samples are normalised by it, not by moments of the nodes' inputs."""
    whole = Dataset.from_table(write_patients(tmp_path / "patients.csv"), label="outcome", drop=("hospital",))
    assert whole.schema is not None
    (tmp_path / "schema.json").write_text(whole.schema.to_json())
    files = [write_patients(tmp_path / f"{name}.csv", (name,)) for name in HOSPITALS]
    grid = FaultyNodes(*({"folder": str(file)} for file in files))
    config = fedsat.configure(**RUN, dataset="nowhere.csv")
    terms = Terms(**WAIT, test="nodes", schema=str(tmp_path / "schema.json"))
    run = federate(grid, config, terms, out=tmp_path / "run")
    assert read_info(tmp_path / "run" / "model.safetensors").inputs.schema == whole.schema
    assert run.setup.inputs.schema == whole.schema
    assert run.state.evaluation is not None
    assert run.state.evaluation.confusion.sum() == 3 * 6  # a fifth of 30 rows on each node
    with pytest.raises(UsageError, match="cannot read the schema"):
        federate(grid, config, Terms(**WAIT, test="nodes", schema="nowhere.json"))


def test_a_node_names_the_column_that_differs(tmp_path: Path) -> None:
    table = write_patients(tmp_path / "patients.csv")
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace(",ward,", ",station,"))
    config = fedsat.configure(**RUN, dataset=str(table), client="hospital")
    terms = Terms(timeout=60, wait=0.1, min_fraction=1.0)
    with pytest.raises(FedsatError, match=r"other.csv: column 'ward' \(category\) is missing"):
        federate(FaultyNodes({"folder": str(other), "partition-id": 0}), config, terms)
    node = {"dataset": str(other), "partition-id": 0}
    with pytest.raises(FedsatError, match=r"differs from what the federation agreed on: column 'ward' \(missing\)"):
        federate(FaultyNodes(node), config, terms)
