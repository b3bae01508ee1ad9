"""Golden metrics: a small set of runs must reproduce the recorded numbers exactly.

The last digits depend on the processor, so each processor has its own file. After a change that is meant to change
numbers, `python tests/golden/test_golden.py` records the file of this machine; then remove the other files.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.algorithms import algorithms
from fedsat.experiment.environment import processor

FOLDER = Path(__file__).parent
SMALL: dict[str, Any] = {
    "dataset": "mnist-mini", "clients": 60, "per_round": 4, "workers": 3, "rounds": 2, "epochs": 1, "lr": 0.05,
    "device": "cpu", "seed": 5, "compile": "off",  # another compiler may round differently
}  # fmt: skip
MODELS: dict[str, Any] = {"mlp": {"name": "mlp", "hidden": [8]}, "resnet8": {"name": "resnet8", "width": 2}}
ONLY_MLP = {"fedacg", "fedcm", "feddisco", "fedlesam", "fedrs", "fedvls"}
"""Methods that differ from others in nothing that depends on the model; leaving out the ResNet for them saves time."""
MATRIX = {
    f"{method} {model} {engine}": {"algorithm": method, "model": MODELS[model], "engine": engine}
    for method in algorithms
    for model in MODELS
    for engine in ("sequential", "stacked")
    if model == "mlp" or method not in ONLY_MLP
}


def outcome(run: Any) -> dict[str, Any]:
    """Return training loss, accuracy and worst-class recall of each round, and a digest of the final model."""
    digest = hashlib.sha256()
    for tensor in (*run.model.params.values(), *run.model.buffers.values()):
        digest.update(tensor.contiguous().numpy().tobytes())
    rounds = [[line.train_loss, line.metrics["accuracy"], line.metrics["worst_class_recall"]] for line in run.records]
    return {"rounds": rounds, "model": digest.hexdigest()[:16]}


def machine() -> str:
    """Return what determines the last digits of the numbers."""
    return f"{processor()}, torch {torch.__version__}"


def assert_golden(name: str, run: Any) -> None:
    """Compare bit by bit on the kinds of machines that recorded this run; elsewhere, sums may round differently."""
    recorded = [one for path in sorted(FOLDER.glob("*.json")) if name in (one := json.loads(path.read_text()))["runs"]]
    found, exact = outcome(run), next((one for one in recorded if one["machine"] == machine()), None)
    if exact is not None:
        assert found == exact["runs"][name]
        return
    for line, expected in zip(found["rounds"], recorded[0]["runs"][name]["rounds"], strict=True):
        assert line == pytest.approx(expected, rel=1e-3, abs=5e-3)


def resumed(folder: Path) -> Any:
    """Run three rounds of FedSat with everything that a checkpoint contains, the last one after a resume."""
    settings = {**SMALL, "algorithm": "fedsat", "model": MODELS["mlp"], "average": 0.8, "checkpoint_every": 1}
    fedsat.run(**settings, out=folder)
    return fedsat.resume(folder, rounds=3)


def federated(folder: Path) -> Any:
    """Run two rounds of FedSat on Flower nodes in this process."""
    from fedsat.flower.in_process import InProcessNodes  # noqa: PLC0415 (only with Flower)
    from fedsat.flower.server import prepare  # noqa: PLC0415
    from fedsat.flower.terms import Terms  # noqa: PLC0415

    settings = {**SMALL, "clients": 6, "algorithm": "fedsat", "model": MODELS["mlp"], "engine": "sequential"}
    nodes = [{"dataset": "mnist-mini", "partition-id": client, "num-partitions": 6} for client in range(6)]
    return fedsat.train(
        prepare(InProcessNodes(*nodes), fedsat.configure(**settings), Terms(timeout=60, wait=60), folder)
    )


@pytest.mark.parametrize("name", MATRIX)
def test_methods_models_and_engines(name: str) -> None:
    assert_golden(name, fedsat.run(**SMALL, **MATRIX[name]))


def test_resume(tmp_path: Path) -> None:
    assert_golden("resumed", resumed(tmp_path / "run"))


def test_nodes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")
    assert_golden("on nodes", federated(tmp_path / "run"))


def record() -> None:
    """Write the file of this machine."""
    torch.set_num_threads(1)  # as in all tests
    runs = {name: outcome(fedsat.run(**SMALL, **settings)) for name, settings in MATRIX.items()}
    with tempfile.TemporaryDirectory() as folder:
        runs["resumed"] = outcome(resumed(Path(folder) / "a"))
        runs["on nodes"] = outcome(federated(Path(folder) / "b"))
    lines = ",\n".join(f'    "{name}": {json.dumps(found)}' for name, found in runs.items())
    name = "-".join(processor().lower().replace("(r)", "").split()[:2])
    (FOLDER / f"{name}.json").write_text(f'{{\n  "machine": "{machine()}",\n  "runs": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    record()
