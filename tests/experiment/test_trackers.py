"""Trackers, with the real TensorBoard, MLflow and W&B: what they store, also after a run is resumed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.errors import UsageError
from fedsat.experiment.trackers import TRACKERS, find_trackers
from tests.support.calling import fedsat as call

TINY: dict[str, Any] = {
    "clients": 10, "per_round": 3, "workers": 2, "rounds": 4, "epochs": 1, "device": "cpu", "algorithm": "fedavg",
    "checkpoint_every": 2, "average": 0.5, "metrics": ["class_f1"],
}  # fmt: skip


def fail(run: fedsat.Run, record: fedsat.RoundRecord) -> None:
    if record.round == 4:
        raise RuntimeError("no room for round 4")


def failed_and_resumed(out: Path, track: str) -> fedsat.Run:
    """Track rounds 1 to 3, resume after the checkpoint of round 2, and repeat round 3."""
    with pytest.raises(RuntimeError, match="no room"):
        fedsat.run(**TINY, out=out, track=track, callbacks=[fail])
    return fedsat.resume(out)


def expected(run: fedsat.Run, number: int) -> dict[str, float]:
    metrics, model = run.records[number].metrics, run.records[number].models["averaged"]
    return {
        "accuracy": metrics["accuracy"],
        "recall/3": metrics["recall"][3],
        "class_f1/7": metrics["class_f1"][7],
        "averaged/loss": model["loss"],
        "megabytes": (run.records[number].bytes_down + run.records[number].bytes_up) / 1e6,
    }


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = failed_and_resumed(tmp_path / "run", "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for number in range(4):
        for name, value in expected(run, number).items():
            found = events.Scalars(name if "/" in name else f"run/{name}")
            assert [each.step for each in found] == [1, 2, 3, 4]
            assert found[number].value == pytest.approx(value)
    settings = events.Tensors("settings/text_summary")
    assert b'dataset = "mnist-mini"' in settings[0].tensor_proto.string_val[0]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = failed_and_resumed(tmp_path / "run", "mlflow")
    client = tracking.MlflowClient()
    [stored] = client.search_runs([client.get_experiment_by_name("fedsat").experiment_id])
    assert (stored.info.run_name, stored.info.status) == ("run", "FINISHED")
    assert stored.data.params["algorithm.name"] == "fedavg"
    assert stored.data.params["model.hidden"] == "[80, 60]"
    for name in expected(run, 0):
        history = {each.step: each.value for each in client.get_metric_history(stored.info.run_id, name)}
        assert history == pytest.approx({number + 1: expected(run, number)[name] for number in range(4)})
    fedsat.run(**TINY | {"rounds": 1}, out=tmp_path / "other", track="mlflow")
    assert len(client.search_runs([stored.info.experiment_id])) == 2


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    failed_and_resumed(tmp_path / "run", "wandb")
    wandb.teardown()
    first, second = sorted((tmp_path / "run" / "wandb").glob("offline-run-*-*"))
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2]  # one run, when both are synced
    stored = b"".join(path.read_bytes() for path in (*first.glob("*.wandb"), *second.glob("*.wandb")))
    for text in (b"worst_class_recall", b"recall/3", b"averaged/accuracy", b"mnist-mini"):
        assert text in stored


def test_a_round_is_sent_once_it_is_final(tmp_path: Path) -> None:
    """The last round of a run that is stopped is evaluated after the callbacks."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def early(run: fedsat.Run, record: fedsat.RoundRecord) -> None:
        if record.round == 2:
            run.stop("enough")

    run = fedsat.run(**TINY | {"evaluate_every": 3}, out=tmp_path, track=["tensorboard"], callbacks=[early])
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [each.step for each in events.Scalars("run/train_loss")] == [1, 2]
    assert [(e.step, e.value) for e in events.Scalars("run/accuracy")] == [
        (2, pytest.approx(run.records[1].metrics["accuracy"]))
    ]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = TRACKERS[name].package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=re.escape(f"needs {package}; install it with pip install 'fedsat[{name}]'")):
        find_trackers([name])


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    options = "--clients 10 --per-round 3 --rounds 1 --epochs 1 --device cpu --algorithm fedavg".split()
    assert call(capsys, "run", *options, "--track", "tensorboard", "--out", str(tmp_path / "run"))[0] == 0
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    code, _, error = call(capsys, "run", *options, "--track", "tensorbord")
    assert code == 2
    assert "did you mean 'tensorboard'" in error


def test_what_a_tracker_needs() -> None:
    with pytest.raises(UsageError, match="track needs a folder"):
        fedsat.run(**TINY, track="tensorboard")
