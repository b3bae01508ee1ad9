"""Datasets given as objects: arrays, torch datasets, and data that are already divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedsat
from fedsat.data import Dataset, Federation
from fedsat.errors import DataError, UsageError

RUN: dict[str, Any] = {"per_round": 2, "workers": 2, "rounds": 2, "epochs": 1, "device": "cpu", "algorithm": "fedavg"}


def made(samples: int = 60, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """Return images whose brightness depends on the class."""
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    return (rng.normal(size=(samples, 6, 6)) + y[:, None, None]).astype(np.float32), y


def test_arrays_keep_values_and_get_channels() -> None:
    x, y = made()
    dataset = Dataset.from_arrays(x, y, test=(x[:9], y[:9]), name="bright")
    assert dataset.input_shape == (1, 6, 6)
    assert np.array_equal(dataset.train.images[:, 0], x)
    assert dataset.class_names == ("0", "1", "2")
    assert repr(dataset) == "<Dataset bright: 60 training and 9 test samples [1, 6, 6], 3 classes>"


def test_a_sixth_is_held_out() -> None:
    x, y = made()
    dataset = Dataset.from_arrays(x, y)
    assert (len(dataset.train), np.bincount(dataset.test.labels).tolist()) == (51, [3, 3, 3])
    assert "51" not in dataset.note
    assert "9 of 60 samples are held out" in dataset.note


def test_labels_may_be_names() -> None:
    x, y = made()
    names = np.array(["owl", "cat", "dog"])[y]
    dataset = Dataset.from_arrays(x, names, test=(x[:3], names[:3]))
    assert dataset.class_names == ("cat", "dog", "owl")
    assert dataset.test.labels.tolist() == [2, 0, 1]
    chosen = Dataset.from_arrays(x, names, class_names=["owl", "cat", "dog"])
    assert np.bincount(chosen.train.labels, minlength=3).tolist() == [17, 17, 17]
    with pytest.raises(DataError, match="the label 'owl' is not a class"):
        Dataset.from_arrays(x, names, class_names=["cat", "dog"])


def test_a_torch_dataset_equals_its_arrays() -> None:
    x, y = made()
    pairs = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert (
        Dataset.from_torch(pairs, test=pairs, name="d").reference
        == Dataset.from_arrays(torch.from_numpy(x), torch.from_numpy(y), test=(x, y), name="d").reference
    )


def test_clients_that_are_given() -> None:
    x, y = made()
    parts = [(x[:10], y[:10]), TensorDataset(torch.from_numpy(x[10:40]), torch.from_numpy(y[10:40])), (x[40:], y[40:])]
    dataset = Dataset.from_clients(parts, test=(x, y))
    federation = Federation.build(dataset, "natural", 3, seed=7)
    assert federation.sizes.tolist() == [10, 30, 20]
    assert federation.indices(1).tolist() == list(range(10, 40))
    hospitals = np.array(["north", "east"])[(np.arange(60) < 20).astype(int)]
    named = Dataset.from_arrays(x, y, clients=hospitals, test=(x, y))
    assert Federation.build(named, "natural", 2, seed=0).sizes.tolist() == [20, 40]  # east, north


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((4, 3)), "y": [0, 1]}, "4 images but 2 labels"),
        ({"x": np.zeros((4, 3)), "y": [0, 0, 2, 2]}, "no sample has the label 1"),
        ({"x": np.full((4, 3), np.nan), "y": [0, 1, 0, 1]}, "not finite"),
        ({"x": np.zeros((4, 3)), "y": [0, 1, 0, 1], "clients": [1, 2]}, "client of each of 4 samples"),
        ({"x": np.zeros((4, 3)), "y": [0, 1, 0, 1], "test": (np.zeros((1, 2)), [0])}, "have shape \\[3\\], test"),
        ({"x": np.zeros((4, 3)), "y": [0, 1, 0, 1], "test": 5}, "expected a pair"),
    ],
)
def test_what_cannot_be_a_dataset(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays(**arguments)


def test_natural_needs_to_know_the_clients() -> None:
    x, y = made()
    with pytest.raises(UsageError, match="which arrays does not have"):
        Federation.build(Dataset.from_arrays(x, y), "natural", 3, 0)
    with pytest.raises(UsageError, match="has 2 clients; set clients to 2"):
        Federation.build(Dataset.from_arrays(x, y, test=(x, y), clients=y % 2), "natural", 3, 0)


def test_a_folder_may_name_clients(tmp_path: Path) -> None:
    x, y = made()
    for name, array in {"images": x, "labels": y, "clients": y % 2, "test_images": x, "test_labels": y}.items():
        np.save(tmp_path / f"{name}.npy", array)
    run = fedsat.run(dataset=str(tmp_path), partition="natural", clients=2, **RUN)
    assert run.setup.federation is not None
    assert run.setup.federation.sizes.tolist() == [40, 20]


def test_runs_record_the_object_and_resume_with_it(tmp_path: Path) -> None:
    x, y = made(240)
    dataset = Dataset.from_arrays(x, y, name="bright", clients=np.arange(240) % 5)
    whole = fedsat.run(dataset=dataset, **{**RUN, "rounds": 4})
    assert (whole.setup.config.clients, whole.setup.config.table()["dataset"]) == (5, dataset.reference)
    assert repr(whole).startswith("<Run fedavg on bright, 4 of 4 rounds")
    fedsat.run(dataset=dataset, out=tmp_path / "run", checkpoint_every=1, **RUN)
    assert fedsat.load(tmp_path / "run").table["dataset"].startswith("object:bright:")
    with pytest.raises(DataError, match=r"'bright' \(checksum [0-9a-f]{16}\) was passed as an object; pass it again"):
        fedsat.resume(tmp_path / "run", rounds=4)
    with pytest.raises(UsageError, match="was started with the dataset object:bright:"):
        fedsat.resume(tmp_path / "run", rounds=4, dataset=Dataset.from_arrays(x + 1, y, name="bright"))
    resumed = fedsat.resume(tmp_path / "run", rounds=4, dataset=dataset)
    assert resumed.records[-1].metrics == whole.records[-1].metrics


def test_compare_takes_an_object_also_in_processes(tmp_path: Path) -> None:
    x, y = made(240)
    dataset = Dataset.from_arrays(x, y, name="bright")
    settings = {key: value for key, value in RUN.items() if key != "algorithm"}
    settings |= {"clients": 4, "partition": "iid", "dataset": dataset}
    apart = fedsat.compare(["fedavg", "fedprox"], jobs=2, out=tmp_path / "two", **settings)
    alone = fedsat.compare(["fedavg", "fedprox"], out=tmp_path / "one", **settings)
    assert [r.summary["accuracy"] for r in apart.runs] == [r.summary["accuracy"] for r in alone.runs]
    assert apart.report(tmp_path / "page.html").is_file()


def test_a_function_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\nfrom fedsat import Dataset\n\nx = np.eye(40, dtype=np.float32)\n\n"
        "def load():\n    return Dataset.from_arrays(x, np.arange(40) % 2)\n\ndef wrong():\n    return x\n"
    )
    monkeypatch.chdir(tmp_path)
    run = fedsat.run(dataset="my_data:load", partition="iid", clients=4, out="run", **RUN)
    assert run.setup.config.table()["dataset"] == "my_data:load"
    assert fedsat.resume("run", rounds=3).training.rounds == 3
    with pytest.raises(DataError, match=r"wrong\(\) must return a dataset, or an object that can become one: ndarray"):
        fedsat.run(dataset="my_data:wrong", partition="iid", clients=4, **RUN)
    with pytest.raises(UsageError, match="not a function"):
        fedsat.run(dataset="my_data:x", partition="iid", clients=4, **RUN)
