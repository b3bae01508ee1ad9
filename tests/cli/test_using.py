"""`fedsat predict` and `fedsat evaluate` on common kinds of files."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedsat as library
from tests.support.calling import fedsat
from tests.support.patients import write_patients
from tests.support.runs import TINY


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run on images, and the test set."""
    folder = tmp_path_factory.mktemp("digits")
    run = library.run(**{**TINY, "rounds": 2}, out=folder)
    assert run.setup.federation is not None
    return folder, run.setup.federation.dataset.test


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("patients")
    table: dict[str, Any] = {"dataset": write_patients(folder / "patients.csv"), "label": "outcome"}
    library.run(rounds=3, epochs=2, lr=0.05, **table, client="hospital", validation=0.2, out=folder / "run")
    return folder


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table(capsys: pytest.CaptureFixture[str], patients: Path) -> None:
    run, table = str(patients / "run"), patients / "patients.csv"
    lines = table.read_text().splitlines()
    Path("new.csv").write_text("\n".join(",".join(line.split(",")[:-1]) for line in lines) + "\n")
    code, out, err = fedsat(capsys, "predict", run, "new.csv", "--keep", "hospital,age")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("90 samples, model: best.safetensors (round ")
    found = rows("predictions.csv")
    assert list(found[0]) == ["row", "hospital", "age", "predicted", "p(False)", "p(True)"]
    assert [row["row"] for row in found] == [str(number) for number in range(1, 91)]
    assert found[4]["hospital"] == lines[5].split(",")[0]
    assert all((float(row["p(True)"]) > 0.5) == (row["predicted"] == "True") for row in found)

    code, out, err = fedsat(capsys, "evaluate", run, str(table), "--model", "last", "--out", "results.json")
    assert (code, err) == (0, "")
    assert "balanced accuracy %" in out
    assert "true class by row" in out
    results = json.loads(Path("results.json").read_text())
    fedsat(capsys, "predict", run, str(table), "--model", "last")
    right = [
        row["predicted"] == line.split(",")[-1] for row, line in zip(rows("predictions.csv"), lines[1:], strict=True)
    ]
    assert results["overall"]["accuracy"] == pytest.approx(np.mean(right))
    assert (results["model"], results["samples"], results["class_names"]) == ("last", 90, ["False", "True"])

    code, _, err = fedsat(capsys, "predict", run, str(table), str(table), "--out", "both.csv")
    assert (code, [rows("both.csv")[place]["row"] for place in (0, 90)]) == (0, ["patients.csv:1", "patients.csv:1"])


def test_a_wanted_sensitivity(capsys: pytest.CaptureFixture[str], patients: Path) -> None:
    run, table = str(patients / "run"), str(patients / "patients.csv")
    predictor = library.load(run).predictor()
    assert predictor.info.thresholds is not None
    held = predictor.info.thresholds.samples
    code, out, err = fedsat(capsys, "predict", run, table, "--sensitivity", "True=0.8")
    assert (code, err) == (0, "")
    threshold = predictor.thresholds({"True": 0.8})[1]
    assert f"threshold: True if p(True) is at least {threshold:.3g} ({held[1]} validation samples: only" in out
    found = rows("predictions.csv")
    assert list(found[0]) == ["row", "predicted", "decided_by", "p(False)", "p(True)"]
    for row in found:
        reached = float(row["p(True)"]) >= threshold
        assert (row["predicted"], row["decided_by"]) == (("True", "threshold") if reached else ("False", "probability"))

    code, out, err = fedsat(capsys, "evaluate", run, table, "--sensitivity", "True=0.8", "--out", "results.json")
    assert (code, err) == (0, "")
    results = json.loads(Path("results.json").read_text())
    assert results["thresholds"] == {"True": threshold}
    assert np.sum(results["confusion"], 0)[1] == sum(row["predicted"] == "True" for row in found)
    assert "it takes a share or class=share" in fedsat(capsys, "predict", run, table, "--sensitivity", "high")[2]
    assert "unknown class 'ill'" in fedsat(capsys, "predict", run, table, "--sensitivity", "ill=0.9")[2]


def test_thresholds_need_validation_samples(capsys: pytest.CaptureFixture[str], digits: tuple[Path, Any]) -> None:
    np.save("x.npy", digits[1].images[:2])
    code, _, err = fedsat(capsys, "predict", str(digits[0]), "x.npy", "--sensitivity", "0.9")
    assert code == 2
    assert "has no thresholds: they need a completed run with validation samples, such as --validation 0.2" in err


def test_a_table_that_differs(capsys: pytest.CaptureFixture[str], patients: Path, digits: tuple[Path, Any]) -> None:
    run, table = str(patients / "run"), patients / "patients.csv"
    Path("other.csv").write_text(table.read_text().replace(",ward,", ",station,"))
    assert fedsat(capsys, "predict", run, "other.csv") == (
        1, "", "fedsat: other.csv: column 'ward' (category) is missing\n",
    )  # fmt: skip
    assert "unknown column 'ag'; did you mean 'age'?" in fedsat(capsys, "predict", run, str(table), "--keep", "ag")[2]
    Path("new.csv").write_text("age,ward,ill\n50,a,True\n")
    assert "column 'outcome', the label, is missing" in fedsat(capsys, "evaluate", run, "new.csv")[2]
    np.save("x.npy", np.zeros((2, 3)))
    assert "x.npy is not a table, but the model was trained on one" in fedsat(capsys, "predict", run, "x.npy")[2]
    assert "there is no file or folder gone.csv" in fedsat(capsys, "predict", run, "gone.csv")[2]
    assert "new.csv: samples can be read from image files" in fedsat(capsys, "predict", str(digits[0]), "new.csv")[2]


def test_image_files(capsys: pytest.CaptureFixture[str], digits: tuple[Path, Any]) -> None:
    run, test = digits
    for place in range(30):
        folder = Path("images", str(test.labels[place]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(test.images[place, 0]).save(folder / f"{place}.png")
    code, _, err = fedsat(capsys, "evaluate", str(run), "images", "--out", "results.json")
    assert (code, err) == (0, "")
    np.savez("arrays.npz", x_test=test.images[:30], y_test=test.labels[:30])
    fedsat(capsys, "evaluate", str(run), "arrays.npz", "--out", "again.json")
    results, again = (json.loads(Path(name).read_text()) for name in ("results.json", "again.json"))
    assert results.pop("overall") == pytest.approx(again.pop("overall"), rel=1e-6)
    assert results == again
    assert np.sum(results["confusion"]) == 30

    one = next(Path("images").rglob("7.png"))
    shutil.copy(one, "seven.png")
    fedsat(capsys, "predict", str(run), "images", "seven.png")
    found = {row["file"]: row for row in rows("predictions.csv")}
    assert len(found) == 31
    assert found["seven.png"]["predicted"] == found[str(one)]["predicted"]
    assert found["seven.png"]["p(3)"] == found[str(one)]["p(3)"]
    Image.fromarray(np.zeros((28, 28, 3), np.uint8)).save("colours.png")
    assert "colours.png has colours" in fedsat(capsys, "predict", str(run), "colours.png")[2]
    np.save("x.npy", test.images[:1])
    assert "give either image files or arrays" in fedsat(capsys, "predict", str(run), "x.npy", "seven.png")[2]
    Path("images", "dog").mkdir()
    shutil.copy(one, "images/dog")
    assert "images: the label 'dog' is not a class" in fedsat(capsys, "evaluate", str(run), "images")[2]


def test_arrays(capsys: pytest.CaptureFixture[str], digits: tuple[Path, Any]) -> None:
    run, test = digits
    np.save("x.npy", test.images[:5])
    np.savez("x.npz", x=test.images[5:8, 0])
    Path("both").mkdir()
    np.save("both/images.npy", test.images[:8])
    np.save("both/labels.npy", test.labels[:8])
    code, _, err = fedsat(capsys, "predict", str(run), "x.npy", "--out", "one.csv")
    assert (code, err) == (0, "")
    fedsat(capsys, "predict", str(run), "both", "--out", "both.csv")
    assert rows("one.csv") == rows("both.csv")[:5]
    assert [row["index"] for row in rows("both.csv")] == [str(place) for place in range(8)]
    code, _, err = fedsat(capsys, "evaluate", str(run), "both")
    assert (code, err) == (0, "")
    assert "contains x; expected x and y or images and labels" in fedsat(capsys, "evaluate", str(run), "x.npz")[2]
    assert "an .npz file with x and y" in fedsat(capsys, "evaluate", str(run), "x.npy")[2]
    assert "the samples are not a table" in fedsat(capsys, "predict", str(run), "x.npy", "--keep", "id")[2]
    np.savez("far.npz", x=test.images[:2], y=[0, 10])
    assert (
        "far.npz: a label is 10; with 10 classes, the largest is 9"
        in fedsat(capsys, "evaluate", str(run), "far.npz")[2]
    )
    np.savez("odd.npz", a=test.images[:2])
    assert "odd.npz: contains a; expected x or images" in fedsat(capsys, "predict", str(run), "odd.npz")[2]


def test_evaluating_in_python(digits: tuple[Path, Any]) -> None:
    folder, test = digits
    stored = library.load(folder)
    evaluation = stored.evaluate(test.images, test.labels)
    assert evaluation.accuracy == stored.summary["accuracy"]
    assert evaluation.loss == pytest.approx(stored.summary["loss"], rel=1e-5)
    assert evaluation.confusion.tolist() == stored.summary["confusion"]
    np.testing.assert_array_equal(evaluation.histograms, stored.counts["histograms"])
    names = [str(label) for label in test.labels]
    assert stored.evaluate(test.images, names).accuracy == evaluation.accuracy
    with pytest.raises(library.UsageError, match="give the classes of the samples: y"):
        stored.evaluate(test.images)
    with pytest.raises(library.DataError, match="there are 1,000 samples but 3 labels"):
        stored.evaluate(test.images, [0, 1, 2])
