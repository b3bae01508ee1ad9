"""Exported models compute the same as saved ones, without fedsat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsat
from fedsat.data import Columns, Inputs, Schema
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment import export as exporting
from fedsat.experiment.export import EXTRA, Rows, describe, example_samples, export
from tests.support.calling import fedsat as program
from tests.support.runs import TINY

WITHOUT_FEDSAT = """
import sys
sys.modules["fedsat"] = None  # importing it would fail
import numpy as np, torch
model = torch.export.load(sys.argv[1]).module()
np.save("probabilities.npy", model(torch.from_numpy(np.load("samples.npy"))).detach().numpy())
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    fedsat.run(**{**TINY, "rounds": 1}, precision="float64", out=folder)
    return folder


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("clinics")
    fedsat.run(dataset="clinics-synthetic", rounds=1, epochs=1, per_round=2, out=folder)
    return folder


def images(count: int) -> Any:
    return np.random.default_rng(1).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)


def patients() -> Any:
    """Rows as data frame, with missing values and an unknown category."""
    rows = fedsat.data.load("clinics-synthetic").rows
    assert rows is not None
    frame = rows.test.head(50).reset_index(drop=True)
    frame.loc[0, "ward"] = "no such ward"
    return frame


def test_torch_needs_no_fedsat(digits: Path, tmp_path: Path) -> None:
    stored = fedsat.load(digits)
    path = stored.export(tmp_path / "model.pt2", to="torch")
    np.save(tmp_path / "samples.npy", images(7))
    subprocess.run([sys.executable, "-c", WITHOUT_FEDSAT, path], cwd=tmp_path, check=True)
    found = np.load(tmp_path / "probabilities.npy")
    np.testing.assert_allclose(found, stored.predict(images(7)).probabilities, atol=1e-5)
    extra = {EXTRA: ""}
    torch.export.load(path, extra_files=extra)
    texts = json.loads(extra[EXTRA])
    assert texts["input"] == "x: uint8 [n, 1, 28, 28], pixels from 0 to 255"
    assert json.loads(texts["class_names"]) == [str(digit) for digit in range(10)]


def test_a_table(clinics: Path, tmp_path: Path) -> None:
    stored, frame = fedsat.load(clinics), patients()
    schema = Schema.from_json((clinics / "schema.json").read_text())
    numbers = np.stack([column.read(frame[column.name]) for column in schema.columns], axis=1)
    assert np.isnan(numbers).any()
    expected = stored.predict(frame).probabilities
    module = torch.export.load(stored.export(tmp_path / "model.pt2", to="torch")).module()
    np.testing.assert_allclose(module(torch.from_numpy(numbers)).detach().numpy(), expected, atol=1e-5)

    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    session = onnxruntime.InferenceSession(stored.export(tmp_path / "model.onnx"))
    np.testing.assert_allclose(session.run(None, {"x": numbers})[0], expected, atol=1e-5)
    assert Schema.from_json(session.get_modelmeta().custom_metadata_map["schema"]) == schema


def test_onnx(digits: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    stored = fedsat.load(digits)
    session = onnxruntime.InferenceSession(stored.export(tmp_path / "model.onnx", model="last"))
    for count in (1, 7):
        found = session.run(["probabilities"], {"x": images(count)})[0]
        np.testing.assert_allclose(found, stored.predict(images(count)).probabilities, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["name"] == "last"


@pytest.mark.parametrize("hashed", [(), ("note",)])
def test_rows_become_the_inputs_of_the_schema(hashed: tuple[str, ...]) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "age": [40.0, None, 60.0, 50.0],
            "seen": ["2026-01-01", "2026-01-03", None, "2026-01-02"],
            "note": ["a", "b", None, "b"],
            "ill": [True, False, None, True],
            "outcome": [0, 1, 0, 1],
        }
    )
    schema = Schema.of(frame, Columns("outcome", hashed=hashed))
    inputs = Inputs((schema.width,), (), (), schema=schema)
    numbers = np.vstack([np.stack([column.read(frame[column.name]) for column in schema.columns], 1),
                         example_samples(inputs)])  # fmt: skip
    np.testing.assert_array_equal(schema.encode(frame), schema.inputs(numbers[:4]))
    np.testing.assert_array_equal(Rows(schema)(torch.from_numpy(numbers)).numpy(), schema.inputs(numbers))
    assert numbers[:2, 0].tolist() == pytest.approx([40, np.nan], nan_ok=True)
    assert numbers[1, 1] - numbers[0, 1] == 2  # days
    if not hashed:
        assert numbers[:4, 2].tolist() == pytest.approx([0, 1, np.nan, 1], nan_ok=True)


def test_what_the_file_takes() -> None:
    floats = Inputs((2, 3), (1.0, 2.0), (2.0, 4.0), pixels=False)
    assert describe(floats) == "x: float32 [n, 2, 3], on the scale of the training data"
    assert describe(Inputs((2,), (0.0,), (1.0,))).endswith("on that scale; pixels from 0 to 1")
    samples = example_samples(floats)
    assert (samples.shape, samples.dtype) == ((32, 2, 3), np.float32)
    found = exporting.Scaled(floats)(torch.tensor([[[1.0, 3.0, 5.0], [2.0, 6.0, -2.0]]]))
    assert found.tolist() == [[[0, 1, 2], [0, 1, -1]]]


class Wilful(nn.Module):
    """A network that cannot be traced: what it does depends on the samples."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(784, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1) if float(x.sum()) > 0 else -x.flatten(1))  # type: ignore[no-any-return]


def test_failures_are_reported(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = fedsat.load(digits).predictor()
    with pytest.raises(UsageError, match=r"cannot write .*No such file"):
        export(predictor, tmp_path / "gone" / "model.pt2", "torch")
    monkeypatch.setattr(predictor, "outputs", lambda x: torch.zeros(len(x), 10))
    (tmp_path / "model.pt2").write_text("an earlier export")
    with pytest.raises(FedsatError, match=r"probabilities differ by .* from torch's; .*model\.pt2 is not written"):
        export(predictor, tmp_path / "model.pt2", "torch")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier export"]
    predictor.network = Wilful(10)
    with pytest.raises(FedsatError, match="cannot trace the network"):
        export(predictor, tmp_path / "model.pt2", "torch")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"ONNX files need onnx; install it with pip install 'fedsat\[onnx\]'"):
        fedsat.load(digits).export(tmp_path / "model.onnx")


def test_on_the_command_line(
    capsys: pytest.CaptureFixture[str], digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = program(capsys, "export", str(digits), "--to", "torch")
    assert (code, err, out.splitlines()[-1]) == (0, "", "exported: model.pt2")
    assert "input: x: uint8 [n, 1, 28, 28], pixels from 0 to 255" in out
    assert Path("model.pt2").is_file()
