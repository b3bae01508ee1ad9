"""Saved models: what their files hold, and predictions with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedsat
from fedsat.data import Inputs
from fedsat.errors import DataError, FedsatError, UsageError
from fedsat.experiment.saved import read_info
from fedsat.experiment.store import identity
from tests.support.patients import write_patients
from tests.support.runs import TINY

EXACT: dict[str, Any] = {**TINY, "rounds": 2, "precision": "float64", "select": "test:accuracy"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> fedsat.Run:
    return fedsat.run(**EXACT, average=0.5, out=tmp_path_factory.mktemp("digits"))


def folder_of(run: fedsat.Run) -> Path:
    assert run.folder is not None
    return run.folder.path


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> fedsat.Run:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("patients")
    table: dict[str, Any] = {"dataset": write_patients(folder / "patients.csv"), "label": "outcome"}
    small = {"rounds": 2, "epochs": 1, "lr": 0.05, "precision": "float64"}
    return fedsat.run(**small, **table, client="hospital", out=folder / "run")


def test_predictions_are_those_of_the_evaluation(digits: fedsat.Run) -> None:
    assert digits.setup.federation is not None
    test = digits.setup.federation.dataset.test
    evaluation = digits.setup.engine.evaluate([digits.model], "expected")[0]
    found = fedsat.load(folder_of(digits)).predict(test.images, model="last")
    np.testing.assert_allclose(found.probabilities, evaluation.scores, rtol=1e-12)
    assert (found.classes == test.labels).mean() == evaluation.accuracy
    assert list(found.labels[:3]) == [str(label) for label in found.classes[:3]]
    averaged = digits.setup.engine.evaluate([digits.state.averaged], "expected")[0]  # type: ignore[list-item]
    running_mean = fedsat.load(folder_of(digits)).predict(test.images, model="averaged")
    np.testing.assert_allclose(running_mean.probabilities, averaged.scores, rtol=1e-12)


def test_pixels_may_be_floats_and_lack_the_channel(digits: fedsat.Run) -> None:
    assert digits.setup.federation is not None
    images = digits.setup.federation.dataset.test.images[:5]
    stored = fedsat.load(folder_of(digits))
    expected = stored.predict(images).probabilities
    for same in (images[:, 0], images[:, 0] / 255, torch.from_numpy(images)):
        np.testing.assert_allclose(stored.predict(same).probabilities, expected, rtol=1e-5)
    with pytest.raises(DataError, match=r"float32 from 0 to 255; the model was trained on pixels: pass uint8"):
        stored.predict(images.astype(np.float32))
    with pytest.raises(DataError, match=r"shape \[5, 1, 27, 28\]; the model needs \[n, 1, 28, 28\]"):
        stored.predict(images[:, :, 1:])
    with pytest.raises(DataError, match=r"shape \[1, 28, 28\]|\[n, 1, 28, 28\]"):
        stored.predict(images[0, 0])


def test_a_table_is_read_as_in_training(patients: fedsat.Run) -> None:
    import pandas as pd  # noqa: PLC0415 (an extra)

    assert patients.setup.federation is not None
    dataset = patients.setup.federation.dataset
    assert dataset.rows is not None
    evaluation = patients.setup.engine.evaluate([patients.model], "expected")[0]
    stored = fedsat.load(folder_of(patients))
    found = stored.predict(dataset.rows.test.drop(columns=["outcome", "hospital"]))
    np.testing.assert_allclose(found.probabilities, evaluation.scores, rtol=1e-12)
    frame = found.to_pandas(dataset.rows.test.index)
    assert list(frame.columns) == ["predicted", "p(False)", "p(True)"]
    assert ((frame["p(True)"] > 0.5) == (frame["predicted"] == "True")).all()
    with pytest.raises(DataError, match=r"column 'ward' \(category\) is missing"):
        stored.predict(pd.DataFrame({"age": [50.0], "ill": [True]}))
    with pytest.raises(UsageError, match="pass a data frame with the columns age, ward, ill"):
        stored.predict(np.zeros((3, 5)))


def test_the_file_describes_itself(digits: fedsat.Run) -> None:
    folder = folder_of(digits)
    with safe_open(folder / "averaged.safetensors", framework="pt") as stored:
        texts = stored.metadata()
    assert json.loads(texts["class_names"]) == [str(digit) for digit in range(10)]
    assert json.loads(texts["input_shape"]) == [1, 28, 28]
    assert json.loads(texts["model"]) == {"name": "mlp", "hidden": [8], "projection": 0}
    assert (texts["name"], texts["round"], texts["average"]) == ("averaged", "2", "0.5")
    assert texts["run"] == identity(digits.setup.config.table())
    assert texts["data"] == digits.setup.fingerprint
    info = read_info(folder / "best.safetensors")
    assert info.inputs == digits.setup.inputs
    assert info.round == digits.summary["best"]["round"]


def test_thresholds_find_the_wanted_share_of_the_validation_samples(tmp_path: Path) -> None:
    longer = {**EXACT, "rounds": 6, "select": "balanced_accuracy"}
    run = fedsat.run(**longer, validation=0.2, average=0.5, out=tmp_path)
    for name in ("last", "best", "averaged"):
        predictor = fedsat.load(tmp_path).predictor(name)
        assert predictor.info.thresholds is not None
        assert sum(predictor.info.thresholds.samples) == sum(map(len, run.setup.federation.validation))  # type: ignore[union-attr]
    federation = run.setup.federation
    assert federation is not None
    held = np.concatenate(federation.validation)
    x, y = federation.dataset.train.images[held], federation.dataset.train.labels[held]
    for digit in ("3", "7"):
        found = fedsat.load(tmp_path).evaluate(x, y, sensitivity={digit: 0.9}).recall[int(digit)]
        assert 0.9 <= found <= 0.97


def test_an_old_file_says_what_it_lacks(digits: fedsat.Run, tmp_path: Path) -> None:
    folder = folder_of(digits)
    old = fedsat.load(folder)
    path = tmp_path / "model.safetensors"
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    save_file(load_file(folder / "model.safetensors"), path)
    old = fedsat.load(tmp_path)
    assert set(old.model()) == set(fedsat.load(folder).model())
    with pytest.raises(UsageError, match="holds weights only: an older version of fedsat wrote it, without"):
        old.predict(np.zeros((1, 28, 28), np.uint8))  # the last model: no other was chosen
    save_file(load_file(folder / "model.safetensors"), path, metadata={"format": "pt"})
    with pytest.raises(UsageError, match="metadata cannot be read"):
        old.predictor()
    path.write_bytes(b"\x08")
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        old.predictor()


class Narrow(nn.Module):
    """A network whose code may change."""

    width = 3

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, self.width), nn.Linear(self.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(x.flatten(1)).relu())
        return found


def test_a_network_that_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {key: value for key, value in TINY.items() if key != "hidden"}
    run = fedsat.run(**{**small, "rounds": 1}, algorithm="fedavg", model=Narrow, out=tmp_path)
    images = np.zeros((2, 28, 28), np.uint8)
    assert fedsat.load(tmp_path).predict(images).probabilities.sum(1) == pytest.approx([1, 1])
    monkeypatch.setattr(Narrow, "width", 4)
    with pytest.raises(
        FedsatError, match=r"model\.safetensors: the network .*Narrow' cannot be built: .*size mismatch"
    ):
        fedsat.load(tmp_path).predict(images)
    assert run.status == "completed"


def test_numbers_of_arrays_are_not_scaled_like_pixels() -> None:
    floats = Inputs((1, 2, 2), (0.0,), (1.0,), pixels=False)
    read = floats.read(np.full((3, 2, 2), 200, np.uint8))
    assert read.dtype == np.float32
    assert read.max() == 200
    unknown = Inputs((1, 2, 2), (0.0,), (1.0,))
    assert unknown.read(np.full((3, 2, 2), 200, np.uint8)).dtype == np.uint8
    with pytest.raises(DataError, match="not finite"):
        floats.read(np.full((1, 1, 2, 2), np.nan))
    with pytest.raises(DataError, match="expected numbers"):
        floats.read(np.full((1, 2, 2), "a"))
