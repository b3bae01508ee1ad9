"""Runs on the built-in data: records, files, and how a run can end."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsat
from fedsat.algorithms import Algorithm, Model, Task
from fedsat.data.splits import divide_among_clients
from fedsat.errors import UsageError
from fedsat.experiment import Config, Run
from fedsat.experiment.folder import free_folder, read_records
from fedsat.experiment.store import StoredRun
from fedsat.metrics import METRICS, RoundRecord
from fedsat.report.figures import write_figures
from fedsat.report.groups import group_runs
from fedsat.report.page import write_page

SMALL: dict[str, Any] = {
    "clients": 30, "per_round": 4, "workers": 3, "rounds": 3, "epochs": 1, "lr": 0.05, "classes_per_client": 3,
}  # fmt: skip


def test_a_run_improves_and_leaves_its_files(tmp_path: Path) -> None:
    run = fedsat.run(**SMALL, out=tmp_path / "one")
    first, last = run.records[0], run.records[-1]
    assert last.metrics["loss"] < first.metrics["loss"]
    assert last.metrics["accuracy"] > 0.2

    folder = tmp_path / "one"
    assert sorted(path.name for path in folder.iterdir()) == [
        "card.html", "card.md", "checkpoints", "config.toml", "counts.npz", "metrics.jsonl", "model.safetensors",
        "summary.json",
    ]  # fmt: skip
    assert read_records(folder) == run.records
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["accuracy"] == last.metrics["accuracy"]
    assert summary["best"]["accuracy"] == max(line.metrics["accuracy"] for line in run.records)
    assert np.sum(summary["confusion"]) == 1000
    saved = load_file(folder / "model.safetensors")
    assert all((saved[name] == tensor).all() for name, tensor in run.model.params.items())


def test_its_config_runs_it_again_with_the_same_numbers(tmp_path: Path) -> None:
    first = fedsat.run(**SMALL, out=tmp_path / "one")
    config = Config.of(tomllib.loads((tmp_path / "one" / "config.toml").read_text()))
    again = fedsat.train(fedsat.prepare(config))
    assert without_times(again.records) == without_times(first.records)
    other = fedsat.run(**SMALL, seed=1)
    assert without_times(other.records) != without_times(first.records)


def without_times(records: list[RoundRecord]) -> list[RoundRecord]:
    return [replace(record, seconds={}) for record in records]


def test_methods_see_the_same_federation_and_sampling() -> None:
    runs = [fedsat.run(**SMALL, algorithm=name) for name in ("fedavg", "fedsat", "fedsat:paper")]
    assert len({str([line.clients for line in run.records]) for run in runs}) == 1
    assert all((run.setup.federation.order == runs[0].setup.federation.order).all() for run in runs)


def test_every_measure_is_there() -> None:
    line = fedsat.run(**SMALL).records[-1]
    assert {
        "round", "train_loss", "clients", "weights", "effective_clients", "bytes_down", "bytes_up", "bytes_workers",
        "lr", "priority_class", "class_scores", "client_scores", "metrics", "seconds",
    } == set(line.to_json())  # fmt: skip
    assert set(line.metrics) == set(METRICS)
    assert set(line.seconds) == {"train", "evaluate_workers", "aggregate", "evaluate"}
    assert sum(line.weights) == pytest.approx(1)
    assert line.metrics["worst_class_recall"] == min(line.metrics["recall"]) == line.metrics["recall"][line.worst_class]
    assert line.metrics["balanced_accuracy"] == pytest.approx(np.mean(line.metrics["recall"]))


def test_own_client_accuracy_is_measured_on_training_samples() -> None:
    run = fedsat.run(**SMALL, client_accuracy="local")
    federation, engine = run.setup.federation, run.setup.engine
    counts = engine.count_by_node(
        Model({name: tensor[None] for name, tensor in run.model.params.items()}, {}),
        [federation.indices(client) for client in range(federation.clients)],
    ).numpy()
    accuracy = [np.trace(matrix) / matrix.sum() for matrix in counts]
    assert run.records[-1].metrics["worst_client_accuracy"] == pytest.approx(min(accuracy))
    assert counts.sum() == len(federation.order)


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_client_accuracy_on_parts_of_the_test_set(engine: str) -> None:
    run = fedsat.run(**{**SMALL, "engine": engine}, client_accuracy="test-split")
    evaluation, made, config = run.state.evaluation, run.setup.engine, run.setup.config
    plain = made.test(run.model)
    owners = divide_among_clients(plain.labels, run.setup.federation.class_counts, config.seed)
    right = plain.scores.argmax(1) == plain.labels
    for client, accuracy in enumerate(evaluation.client_accuracies):
        own = owners == client
        assert (np.isnan(accuracy) and not own.any()) or accuracy == pytest.approx(right[own].mean())
    assert (evaluation.confusion == plain.confusion).all()
    assert evaluation.loss == pytest.approx(plain.loss)
    assert run.records[-1].metrics["worst_client_accuracy"] == np.nanmin(evaluation.client_accuracies)


def test_evaluate_every() -> None:
    run = fedsat.run(**{**SMALL, "rounds": 5, "evaluate_every": 2})
    assert [line.round for line in run.records if line.evaluated] == [2, 4, 5]


def test_the_last_ten_rounds_are_averaged() -> None:
    run = fedsat.run(**{**SMALL, "rounds": 12}, algorithm="fedavg")
    last = [line.metrics["accuracy"] for line in run.records[-10:]]
    assert run.summary["last_ten"]["accuracy"] == pytest.approx(np.mean(last))


def test_a_failure_keeps_what_was_good(tmp_path: Path) -> None:
    good: dict[str, Any] = {}

    def sabotage(run: Run, line: RoundRecord) -> None:
        if line.round == 2:
            good.update({name: tensor.clone() for name, tensor in run.model.params.items()})
            run.setup.engine.train_examples.images.fill_(float("nan"))  # type: ignore[attr-defined]

    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    np.save(data / "images.npy", rng.normal(size=(120, 5)).astype(np.float32))
    np.save(data / "labels.npy", np.arange(120) % 4)
    with pytest.raises(fedsat.TrainingError, match=r"round 3, client \d+, step 1 of"):
        fedsat.run(**{**SMALL, "rounds": 9}, dataset=str(data), callbacks=[sabotage], out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "round 3" in summary["error"]
    assert len(read_records(tmp_path / "run")) == 2
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all((saved[name] == tensor).all() for name, tensor in good.items())


def test_an_interruption_finishes_the_files(tmp_path: Path) -> None:
    def stop(run: Run, line: RoundRecord) -> None:
        if line.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedsat.run(**SMALL, callbacks=[stop], out=tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    assert len(read_records(tmp_path)) == 2
    assert (tmp_path / "model.safetensors").exists()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    fedsat.run(**SMALL, out=tmp_path / "runs" / "one")
    with pytest.raises(fedsat.UsageError, match="already contains a run"):
        fedsat.run(**SMALL, out=tmp_path / "runs" / "one")
    assert free_folder(tmp_path / "runs", "one") == tmp_path / "runs" / "one-2"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fedsat.FedsatError, match="cannot write to"):
        fedsat.run(**SMALL, out=tmp_path / "file" / "run")


@pytest.mark.parametrize(("device", "message"), [("gpu", "auto, cpu, cuda"), ("mps", "auto, cpu, cuda")])
def test_bad_devices(device: str, message: str) -> None:
    with pytest.raises(fedsat.UsageError, match=message):
        fedsat.run(**SMALL, device=device)


def test_notes_say_what_was_limited() -> None:
    run = fedsat.prepare(fedsat.configure(**{**SMALL, "per_round": 29}))
    assert run.notes == ["workers is 3, but a round has only 2: the client itself, and clients that are not sampled"]


def test_a_round_whose_evaluation_is_interrupted_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fedsat.prepare(fedsat.configure(**SMALL), tmp_path / "run")
    run.run_round()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.setup.engine, "evaluate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fedsat.train(run)
    assert [line.round for line in read_records(tmp_path / "run")] == [1]
    assert (run.training.rounds, len(run.records)) == (1, 1)


ADVERSE: dict[str, Any] = {"dropout": 0.4, "stragglers": 0.5, "epochs": 2, "attack": "scale", "attackers": 0.3}


def test_faults_are_recorded(tmp_path: Path) -> None:
    run = fedsat.run(**{**SMALL, **ADVERSE, "per_round": 8, "max_norm": 3.0}, out=tmp_path / "one")
    attackers = set(run.setup.faults.attackers.tolist())
    assert len(attackers) == 9
    assert "9 of 30 clients are malicious (scale)" in run.notes
    refused = [int(client) for line in run.records for client in line.refused]
    assert refused
    assert set(refused) <= attackers
    for line in run.records:
        called = [*line.clients, *line.missing, *map(int, line.refused)]
        assert len(set(called)) == len(called) == 8
        assert len(line.weights) == len(line.clients)
    assert run.summary["refused"] == len(refused)
    assert run.summary["missing"] == sum(len(line.missing) for line in run.records)
    assert read_records(tmp_path / "one") == run.records


def test_a_skipped_round_is_recorded_and_drawn(tmp_path: Path) -> None:
    # One client per round, and half of the clients do not respond: with this seed, the first round is skipped.
    run = fedsat.run(**{**SMALL, "per_round": 1, "dropout": 0.5, "seed": 2}, out=tmp_path / "one")
    skipped, answered = run.records[0], run.records[-1]
    assert (skipped.clients, skipped.weights, skipped.train_loss) == ([], [], None)
    assert skipped.effective_clients == 0
    assert len(skipped.missing) == 1
    assert skipped.bytes_down > 0 == skipped.bytes_up
    assert answered.weights == [1.0]
    groups = group_runs([StoredRun.read(tmp_path / "one")])
    write_page(groups, tmp_path / "page.html")
    write_figures(groups, tmp_path / "figures")


def test_labels_are_flipped_for_training_but_not_for_evaluation() -> None:
    flipped = fedsat.run(**SMALL, attack="label-flip", attackers=1.0)
    honest = fedsat.run(**SMALL)
    assert (flipped.setup.federation.class_counts == honest.setup.federation.class_counts).all()
    # All clients learned to predict 9 − y, and the model is evaluated on y.
    assert flipped.records[-1].metrics["accuracy"] < 0.1
    assert flipped.records[-1].metrics["loss"] > honest.records[-1].metrics["loss"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack": "scale"}, "give both, such as --attack sign-flip --attackers 0.2"),
        ({"attackers": 0.2}, "give both"),
        ({"max_norm": 0.5}, "it must be 0 .no limit. or at least 1"),
        ({"stragglers": 0.2, "epochs": 1}, "so set epochs to at least 2"),
        ({"dropout": 1.0}, "dropout is 1; it must be below 1"),
        ({"attack": "sing-flip", "attackers": 0.2}, "did you mean 'sign-flip'"),
    ],
)
def test_impossible_faults_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fedsat.UsageError, match=message):
        fedsat.configure(**settings)


def test_a_run_is_shown_in_a_line_and_in_notebooks_as_a_table() -> None:
    run = fedsat.run(**SMALL)
    assert re.fullmatch(r"<Run fedsat on mnist-mini, 3 of 3 rounds, accuracy \d+\.\d %>", repr(run))
    html = run._repr_html_()
    assert html.count("<tr>") == 3
    assert f"<td>{100 * run.summary['worst_class_recall']:.1f}</td>" in html


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("hook", "found"), [("begin", "Tensor under 'scale'"), ("end", "Tensor under 'scale'")])
def test_errors_about_hooks_say_what_was_expected(engine: str, hook: str, found: str) -> None:
    algorithm = f"{__name__}:Bare{hook.title()}"
    with pytest.raises(UsageError, match=rf"Bare{hook.title()}.{hook} returned a {found}; it must return named trees"):
        fedsat.run(**SMALL, algorithm=algorithm, engine=engine)


class BareBegin(Algorithm):
    """A method whose `begin` forgets the name of a tree."""

    def begin(self, task: Task) -> Any:
        return {"scale": torch.ones(len(task.class_counts))}


class BareEnd(Algorithm):
    """A method whose `end` does."""

    def end(self, task: Task, carry: Any, result: Any) -> Any:
        return {"scale": torch.ones(len(result.steps))}, {}
