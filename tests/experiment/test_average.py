"""The running mean of the global models: by hand, in the records, in the files, and after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedsat
from fedsat.algorithms import Model
from fedsat.experiment.average import running_mean
from tests.support.runs import TINY, killed_after, results


def model(weight: float, count: int = 0) -> Model:
    return Model({"w": torch.tensor([weight])}, {"mean": torch.tensor([-weight]), "steps": torch.tensor(count)})


def test_models_count_alike_at_first_and_fade_later() -> None:
    # decay 0.6: after rounds 1, 2, 3 the share is max(0.4, 1/t) = 1, 1/2, 0.4.
    mean = running_mean(None, model(4.0), 1, 0.6)
    mean = running_mean(mean, model(8.0, 3), 2, 0.6)
    assert float(mean.params["w"]) == pytest.approx(6.0)
    mean = running_mean(mean, model(1.0, 5), 3, 0.6)
    assert float(mean.params["w"]) == pytest.approx(0.6 * 6 + 0.4 * 1)
    assert float(mean.buffers["mean"]) == pytest.approx(-4.0)
    assert int(mean.buffers["steps"]) == 5  # a counter has no mean


def test_the_mean_is_evaluated_recorded_and_saved(tmp_path: Path) -> None:
    models: list[Model] = []
    plain = fedsat.run(**TINY, algorithm="feddyn", callbacks=[lambda run, line: models.append(run.model)])
    run = fedsat.run(**TINY, algorithm="feddyn", average=0.5, out=tmp_path / "run")
    mean: Model | None = None
    for number, each in enumerate(models, start=1):
        mean = running_mean(mean, each, number, 0.5)
    assert mean is not None
    saved = load_file(tmp_path / "run" / "averaged.safetensors")
    for name, tensor in mean.params.items():
        assert torch.equal(saved[name], tensor)
    assert run.summary["accuracy"] == plain.summary["accuracy"]  # the training itself is not touched
    assert set(run.summary["models"]) == {"active-mean", "averaged"}
    evaluation = run.setup.engine.evaluate([mean], "expected")[0]
    assert run.summary["models"]["averaged"]["accuracy"] == evaluation.accuracy


def test_the_mean_continues_after_a_resume(tmp_path: Path) -> None:
    settings = {**TINY, "average": 0.8}
    fedsat.run(**settings, out=tmp_path / "whole")
    killed_after(5, tmp_path / "killed", average=0.8)
    fedsat.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    saved = [(tmp_path / run / "averaged.safetensors").read_bytes() for run in ("whole", "killed")]
    assert saved[0] == saved[1]
