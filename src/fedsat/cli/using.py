"""`fedsat predict`, `fedsat evaluate` and `fedsat export`: commands that use a trained model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
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
from fedsat.metrics.thresholds import FEW, Sensitivity
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

Wanted = Annotated[
    str | None,
    typer.Option(
        help="decide by thresholds that find this share of a class's validation samples, such as 0.9 or ill=0.9",
        metavar="SHARE|CLASS=SHARE,…",
        show_default=False,
    ),
]


def predict(
    folder: RunFolder,
    data: NewData,
    model: Which = None,
    sensitivity: Wanted = None,
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
    wanted = _wanted(sensitivity)
    _write(out, found, kept, predictor.predict(found.x, sensitivity=wanted))
    say(console, f"{len(found.names):,} samples, {_described(predictor)}")
    _tell_thresholds(console, predictor, wanted)
    say(console, f"predictions: {out}")


def evaluate(
    folder: RunFolder,
    data: Labelled,
    model: Which = None,
    sensitivity: Wanted = None,
    out: Annotated[
        Path | None, typer.Option(help="file for the results as JSON", show_default=False, rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Evaluate a trained model on new samples of known classes, without training."""
    console, predictor, found = Console(), *_opened(folder, data, model, labelled=True)
    wanted = _wanted(sensitivity)
    evaluation = predictor.evaluate(found.x, found.labels, sensitivity=wanted)
    values = evaluated_values(evaluation, predictor.info.class_names)
    for table in evaluated_tables(values):
        console.print(table, "")
    say(console, _described(predictor))
    thresholds = _tell_thresholds(console, predictor, wanted)
    if out is not None:
        about = {"model": predictor.info.name, "round": predictor.info.round, "thresholds": thresholds}
        _save(out, json.dumps({**about, **values}, indent=1))
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


def _wanted(text: str | None) -> Sensitivity | None:
    """Return a sensitivity from the command line: a number, or numbers for classes."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = [each.rpartition("=") for each in read_names(text)]
        return {name.strip(): float(share) for name, _, share in pairs}
    except ValueError:
        raise UsageError(
            f"--sensitivity is {text!r}; it takes a share or class=share, such as 0.9 or ill=0.9"
        ) from None


def _tell_thresholds(console: Console, predictor: Predictor, wanted: Sensitivity | None) -> dict[str, float]:
    """Print the thresholds that decide, and return them by class."""
    info = predictor.info
    if wanted is None or info.thresholds is None:
        return {}
    found = zip(info.class_names, predictor.thresholds(wanted), info.thresholds.samples, strict=True)
    chosen = {name: (float(threshold), samples) for name, threshold, samples in found if not np.isnan(threshold)}
    for name, (threshold, samples) in chosen.items():
        few = f": only {samples}, so the sensitivity on new data is uncertain" if samples < FEW else ""
        say(
            console, f"threshold: {name} if p({name}) is at least {threshold:.3g} ({samples:,} validation samples{few})"
        )
    return {name: threshold for name, (threshold, _) in chosen.items()}


def _kept(found: Unseen, names: list[str]) -> dict[str, list[Any]]:
    """Return the columns of the samples' table that are copied into the predictions."""
    if names and not is_frame(found.x):
        raise UsageError("--keep copies columns of a table, but the samples are not a table")
    for name in names:
        if name not in found.x.columns:
            raise unknown("column", name, map(str, found.x.columns))
    return {name: found.x[name].tolist() for name in names}


def _write(path: Path, found: Unseen, kept: dict[str, list[Any]], prediction: Prediction) -> None:
    columns = {found.kind: found.names, **kept, **prediction.columns}
    rows = zip(*columns.values(), strict=True)
    written = [[f"{value:.6g}" if isinstance(value, np.float64) else value for value in row] for row in rows]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *written])
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror})") from error


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror})") from error
