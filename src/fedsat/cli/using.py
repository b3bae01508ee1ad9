"""`fedsat predict`, `fedsat evaluate` and `fedsat export`: the use of a trained model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat.cli.options import read_names
from fedsat.cli.sections import OUTPUT
from fedsat.data.inputs import is_frame
from fedsat.data.unseen import Unseen, read_unseen
from fedsat.errors import UsageError, unknown
from fedsat.experiment.export import FILES, OUTPUTS, Target, describe
from fedsat.experiment.export import export as write_file
from fedsat.experiment.predictor import Prediction, Predictor
from fedsat.experiment.saved import ModelName
from fedsat.experiment.store import StoredRun
from fedsat.report.evaluated import evaluated_tables, evaluated_values
from fedsat.report.progress import say

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run", show_default=False)]
NewData = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA", help="tables, image files or folders of them, or .npy or .npz files", show_default=False
    ),
]
Labelled = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        help="tables with the label, folders with one folder of images per class, or .npz files with x and y",
        show_default=False,
    ),
]
Which = Annotated[
    ModelName | None,
    typer.Option(help="the model to use [default: the best one if the run has chosen one, or the last]"),
]


def predict(
    folder: RunFolder,
    data: NewData,
    model: Which = None,
    keep: Annotated[
        str | None,
        typer.Option(help="columns of the table to copy into the predictions", metavar="NAMES", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="file for the predictions", rich_help_panel=OUTPUT)] = Path(
        "predictions.csv"
    ),
) -> None:
    """Predict the classes of new samples with a trained model, and write them to a CSV file.

    The samples are read and normalised as in training. The file has the predicted class of each sample and the
    probability of every class.
    """
    console, predictor, found = Console(), *_opened(folder, data, model, labelled=False)
    kept = _kept(found, read_names(keep) if keep else [])
    _write(out, found, kept, predictor.predict(found.x))
    say(console, f"{len(found.names):,} samples, {_described(predictor)}")
    say(console, f"predictions: {out}")


def evaluate(
    folder: RunFolder,
    data: Labelled,
    model: Which = None,
    out: Annotated[
        Path | None, typer.Option(help="file for the results as JSON", show_default=False, rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Evaluate a trained model on new samples of known classes, without training."""
    console, predictor, found = Console(), *_opened(folder, data, model, labelled=True)
    values = evaluated_values(predictor.evaluate(found.x, found.labels), predictor.info.class_names)
    for table in evaluated_tables(values):
        console.print(table)
    say(console, _described(predictor))
    if out is not None:
        _save(out, json.dumps({"model": predictor.info.name, "round": predictor.info.round, **values}, indent=1))
        say(console, f"results: {out}")


def export(
    folder: RunFolder,
    to: Annotated[
        Target, typer.Option(help="onnx, for onnxruntime and others, or torch, for torch.export.load")
    ] = "onnx",
    model: Which = None,
    out: Annotated[
        Path | None,
        typer.Option(help="the file [default: model.onnx or model.pt2]", show_default=False, rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Write a trained model with its preprocessing to one file that can be used without fedsat.

    The probabilities of the file are compared with those of the saved model.
    """
    console, predictor = Console(), StoredRun.read(folder).predictor(model)
    path = write_file(predictor, out or Path(FILES[to]), to)
    say(console, _described(predictor))
    say(console, f"input: {describe(predictor.info.inputs)}")
    say(console, f"output: {OUTPUTS}")
    say(console, f"exported: {path}")


def _opened(folder: Path, data: list[Path], model: ModelName | None, *, labelled: bool) -> tuple[Predictor, Unseen]:
    """Return a run's model and the samples in the given files."""
    stored = StoredRun.read(folder)
    predictor, size = stored.predictor(model), stored.table.get("image_size")
    info = predictor.info
    return predictor, read_unseen(data, info.inputs, info.class_names, image_size=size, labelled=labelled)


def _described(predictor: Predictor) -> str:
    info = predictor.info
    chosen = f", chosen by {info.selected_by}" if info.selected_by else ""
    return f"model: {predictor.path.name} (round {info.round}{chosen})"


def _kept(found: Unseen, names: list[str]) -> dict[str, list[Any]]:
    """Return columns of the table that the predictions are to have."""
    if names and not is_frame(found.x):
        raise UsageError("keep is for tables; the samples are not in one")
    for name in names:
        if name not in found.x.columns:
            raise unknown("column", name, map(str, found.x.columns))
    return {name: found.x[name].tolist() for name in names}


def _write(path: Path, found: Unseen, kept: dict[str, list[Any]], prediction: Prediction) -> None:
    head = [found.kind, *kept, "predicted", *(f"p({name})" for name in prediction.class_names)]
    labels, shares = prediction.labels.tolist(), prediction.probabilities.tolist()
    others = zip(*kept.values(), strict=True) if kept else [()] * len(labels)
    rows = [
        [name, *other, label, *(f"{p:.6g}" for p in row)]
        for name, other, label, row in zip(found.names, others, labels, shares, strict=True)
    ]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror})") from error


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror})") from error
