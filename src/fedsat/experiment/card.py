"""The model card of a run: what the model is, what it was trained on, how well it does for whom, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.algorithms import algorithms
from fedsat.data import DATASETS, Federation, Inputs
from fedsat.experiment.document import Block, Code, Document, Grid, Heading, Items, literal
from fedsat.experiment.folder import MODELS
from fedsat.experiment.stopping import TEST
from fedsat.metrics import CHOICES, MEASURES, METRICS, Evaluation, Metric, known
from fedsat.metrics.intervals import intervals
from fedsat.metrics.thresholds import FEW

OVERALL: Sequence[Metric] = (
    *(METRICS[name] for name in ("balanced_accuracy", "worst_class_recall", "accuracy", "worst_client_accuracy")),
    *(CHOICES[name] for name in ("f1", "mcc", "auroc", "average_precision", "brier", "ece")),
)
OF_CLASSES = tuple(
    each for each in MEASURES if each.name in ("recall", "precision", "specificity", "f1", "auroc", "average_precision")
)
"""The measures that tables of classes show."""
MOST_CLASSES, MOST_CLIENTS = 100, 20
"""Classes and clients that the card lists; of more, those with the worst results."""
SMALL_TEST = 50
"""With fewer test samples of a class, the card warns that its results are uncertain."""
UNCALIBRATED = 0.1
"""Calibration error from which the card warns against reading the probabilities as risks."""


@dataclass(frozen=True, eq=False)
class Card:
    """The model and the run that the card describes. A run on real nodes has no `federation`."""

    summary: Mapping[str, Any]
    """The contents of `summary.json`."""
    table: Mapping[str, Any]
    """The configuration."""
    inputs: Inputs
    model: str
    """The model to use: `best` or `last`."""
    evaluation: Evaluation | None
    """Its evaluation on the test set, if the run is completed; of the last model, also as counted by real nodes."""
    metrics: Mapping[str, Any]
    """Its metrics as recorded in its round, if that was evaluated."""
    federation: Federation | None
    thresholds: bool
    parameters: int

    def document(self) -> Document:
        """Return the card."""
        name, data = self.summary["method"], str(self.table["dataset"]).rpartition("/")[2]
        return Document(f"Model card: {name} on {data}", [*self._intended(), *self._use(), *self._data(),
                        *self._training(), *self._results(), *self._limits(), *self._origin()])  # fmt: skip

    @property
    def _classes(self) -> list[str]:
        return list(self.summary["class_names"])

    @property
    def _round(self) -> int:
        return int(self.summary["selected"]["round"] if self.model == "best" else self.summary["rounds"])

    def _intended(self) -> Iterator[Block]:
        classes, clients, method = len(self._classes), self.table["clients"], literal(self.summary["method"])
        where = "real nodes" if self.federation is None else "clients, simulated on one machine"
        yield (
            f"A classifier of {classes} classes, trained by federated learning with {method} on {clients} {where}. "
            f"fedsat {self._made.get('fedsat', '')} wrote this card from the run's files. It cannot know what the "
            "model is meant for or how the data were collected: add this before you pass the model on."
        )
        if self.summary["status"] != "completed":
            done, planned = self.summary["rounds"], self.table["rounds"]
            yield f"The run is {self.summary['status']}; it has {done} rounds of {planned}."

    def _use(self) -> Iterator[Block]:
        yield Heading("How to use it")
        why = "the last round; there were no validation samples to choose a better one"
        if self.model == "best":
            chosen = str(self.summary["selected"]["metric"])
            metric = METRICS.get(chosen.removeprefix(TEST))
            why = f"round {self._round}, chosen by {metric.label if metric else chosen.removeprefix(TEST)} on "
            why += "the test set" if chosen.startswith(TEST) else "validation samples"
        yield (
            f"The model to use is `{MODELS[self.model]}`: that of {why}. The file holds the network's options, the "
            "normalisation and the names of the classes."
        )
        yield Code("fedsat predict RUN new-data --out predictions.csv\nfedsat evaluate RUN labelled-data\n"
                   "fedsat export RUN --to onnx")  # fmt: skip
        yield Code('import fedsat\n\nprediction = fedsat.load("RUN").predict(x)\nprediction.labels, '
                   "prediction.probabilities", "python")  # fmt: skip
        yield f"RUN is the folder of this card. {self._takes()}"
        if self.thresholds:
            yield "To find a given share of a rare class, add `--sensitivity 0.9`."

    def _takes(self) -> str:
        if self.inputs.schema is not None:
            names = ", ".join(f"{literal(column.name)} ({column.kind})" for column in self.inputs.schema.columns)
            return f"The input is a table with the columns {names}."
        shape = " × ".join(map(str, self.inputs.shape))
        return f"A sample is {shape}{' pixels, uint8' if self.inputs.pixels else ' numbers'}."

    def _data(self) -> Iterator[Block]:
        yield Heading("Data")
        info = DATASETS.get(str(self.table["dataset"]))
        if info is not None:
            yield f"`{self.table['dataset']}`: {info.summary}. Origin: {info.origin}. Licence: {info.licence}."
        if self.federation is None:
            yield "The training data are on the nodes. The server knows only what they report."
            return
        counts, dataset = self.federation.class_counts, self.federation.dataset
        validation = sum(map(len, self.federation.validation))
        partition = literal(self.table["partition"]["name"])
        yield (
            f"{counts.sum():,} training samples on {len(counts)} clients (partition `{partition}`), {validation:,} "
            f"validation samples, {len(dataset.test):,} test samples."
        )

    def _training(self) -> Iterator[Block]:
        yield Heading("Training")
        table = self.table
        name = str(table["algorithm"]["name"])
        about = algorithms.entry(name).summary
        steps = f"{table['steps']} steps" if table.get("steps") else f"{table['epochs']} epochs"
        yield f"Method: `{literal(self.summary['method'])}`. {about}"
        yield Grid(
            ("setting", "value"),
            [
                ("rounds", f"{self.summary['rounds']} of {table['rounds']}"),
                ("clients per round", f"{table['per_round']} of {table['clients']}"),
                ("local training", f"{steps}, batches of {table['batch_size']}, learning rate {table['lr']:g}"),
                ("network", f"{table['model']['name']}, {self.parameters:,} parameters"),
                ("differential privacy", self._privacy()),
                ("seed", str(table["seed"])),
            ],
            texts=True,
        )
        yield "`config.toml` has all settings; `fedsat run config.toml` repeats the run."

    def _privacy(self) -> str:
        if "epsilon" in self.summary:
            return f"{self.table['privacy']['name']}, ε = {self.summary['epsilon']:.3g}"
        return "none"

    def _results(self) -> Iterator[Block]:
        yield Heading("Results")
        if self.evaluation is None:
            yield from self._recorded()
            return
        evaluation = self.evaluation
        shown = [each for each in OVERALL if not each.detail.scores or evaluation.histograms is not None]
        with np.errstate(invalid="ignore"):
            values = {each.name: _number(each(evaluation)) for each in shown}
        ranges = self._ranges
        rows = [(each.heading, each.shown(values[each.name]), each.range(ranges.get(each.name))) for each in shown]
        yield (
            f"On {int(evaluation.confusion.sum()):,} test samples. A 95 % interval says how much a value would vary "
            "with another test set of the same size."
        )
        yield Grid(("", "value", "95 % interval"), [row for row in rows if row[1] != "–"])
        yield Heading("Results of each class")
        yield from self._of_classes(evaluation)
        yield Heading("Results of each client")
        yield from self._of_clients(evaluation)

    def _recorded(self) -> Iterator[Block]:
        """The results in the record of the model's round."""
        if not self.metrics:
            yield "No round of this run was evaluated."
            return
        shown = [each for each in METRICS.values() if not each.per and self.metrics.get(each.name) is not None]
        yield Grid(("", "value"), [(each.heading, each.shown(self.metrics[each.name])) for each in shown])
        recall = zip(self._classes, self.metrics["recall"], strict=True)
        yield Grid(("class", "recall %"), [(name, METRICS["accuracy"].shown(value)) for name, value in recall])

    @property
    def _ranges(self) -> Mapping[str, Any]:
        """The intervals of the metrics that need no scores, which take long to resample."""
        if self.model == "last" and "final" in self.summary:
            found: Mapping[str, Any] = self.summary["final"]["intervals"]
            return found
        assert self.evaluation is not None
        counted = [each for each in OVERALL if not each.detail.scores]
        return intervals(self.evaluation, counted, self.table["seed"])

    def _of_classes(self, evaluation: Evaluation) -> Iterator[Block]:
        names, tested = self._classes, evaluation.confusion.sum(1)
        shown = [each for each in OF_CLASSES if not each.scores or evaluation.histograms is not None]
        found = {each.name: known(each.compute(evaluation.counts)) for each in shown}
        trained = None if self.federation is None else self.federation.class_counts.sum(0)
        order = sorted(range(len(names)), key=lambda c: _worst_first(found["recall"][c]))[:MOST_CLASSES]
        head = ["class", *["training samples"] * (trained is not None), "test samples"]
        rows = []
        for place in sorted(order):
            sizes = [f"{int(trained[place]):,}"] if trained is not None else []
            cells = [each.shown(found[each.name][place]) for each in shown]
            rows.append([names[place], *sizes, f"{int(tested[place]):,}", *cells])
        yield Grid([*head, *(f"{each.label} {each.unit}".rstrip() for each in shown)], rows)
        recall = [value for value in found["recall"] if value is not None]
        if recall:
            gap = 100 * (max(recall) - min(recall))
            yield f"Between the best and the worst class, the recall differs by {gap:.1f} percentage points."

    def _of_clients(self, evaluation: Evaluation) -> Iterator[Block]:
        accuracies = known(evaluation.client_accuracies)
        numbers = [value for value in accuracies if value is not None]
        if not numbers:
            yield "The results of single clients are not known here."
            return
        yield {
            "expected": "Accuracies are expected values for the clients' class mixes, from the recall of each class.",
            "test-split": "Accuracies are on the client's part of the test set.",
            "local": "Accuracies are on the client's own training samples.",
        }[self.table["client_accuracy"]]
        order = sorted(range(len(accuracies)), key=lambda k: _worst_first(accuracies[k]))[:MOST_CLIENTS]
        yield Grid(*self._client_rows(sorted(order), accuracies))
        left = len(accuracies) - len(order)
        if left:
            yield f"These are the {MOST_CLIENTS} clients with the lowest accuracies; {left} others are not listed."
        gap = 100 * (max(numbers) - min(numbers))
        yield f"Between the best and the worst client, the accuracy differs by {gap:.1f} percentage points."

    def _client_rows(
        self, clients: Sequence[int], accuracies: Sequence[float | None]
    ) -> tuple[list[str], list[list[str]]]:
        shown = [METRICS["accuracy"].shown(accuracies[client]) for client in clients]
        if self.federation is None:
            return ["client", "accuracy %"], [[str(k), cell] for k, cell in zip(clients, shown, strict=True)]
        counts, given = self.federation.class_counts, self.federation.dataset.client_names
        names = given if len(given) == len(counts) else [str(number) for number in range(len(counts))]
        head = ["client", "training samples", "classes", "largest class %", "accuracy %"]
        rows = []
        for client, cell in zip(clients, shown, strict=True):
            own: NDArray[Any] = counts[client]
            share = f"{100 * own.max() / own.sum():.1f}" if own.sum() else "–"
            rows.append([names[client], f"{own.sum():,}", str(int((own > 0).sum())), share, cell])
        return head, rows

    def _limits(self) -> Iterator[Block]:
        yield Heading("Limits")
        yield Items([*self._of_the_data(), *self._of_the_training()])

    def _of_the_data(self) -> Iterator[str]:
        evaluation = self.evaluation
        yield (
            "The test samples are of the same origin as the training samples. Other people, devices or times may "
            "differ: evaluate the model on your own labelled data first."
        )
        if evaluation is None:
            return
        tested = evaluation.confusion.sum(1)
        few = [
            f"{name} ({count})"
            for name, count in zip(self._classes, tested.tolist(), strict=True)
            if count < SMALL_TEST
        ]
        if few:
            yield f"Few test samples, so the results are uncertain: {_listed(few)}."
        never = [name for name, count in zip(self._classes, evaluation.confusion.sum(0), strict=True) if not count]
        if never:
            yield f"Never predicted on the test set: {_listed(never)}."
        error = _number(CHOICES["ece"](evaluation)) if evaluation.histograms is not None else None
        if error is not None and error > UNCALIBRATED:
            yield (
                f"The probabilities are not calibrated (mean error {100 * error:.0f} percentage points). Use them to "
                "rank samples or with a threshold, and do not read them as risks."
            )

    def _of_the_training(self) -> Iterator[str]:
        chosen = str((self.summary.get("selected") or {}).get("metric", ""))
        if self.model == "last":
            yield "This model was not chosen on validation samples; another round may have been better."
        elif chosen.startswith(TEST):
            yield "This model was chosen on the test set, so its results above are optimistic."
        if not self.thresholds:
            yield "There are no thresholds for a wanted sensitivity, which need validation samples."
        elif self.federation is not None:
            counts = self._validated(self.federation)
            few = [f"{name} ({count})" for name, count in zip(self._classes, counts, strict=True) if count < FEW]
            if few:
                yield f"Few validation samples, so thresholds are uncertain: {_listed(few)}."
        if "epsilon" not in self.summary:
            yield "Training had no differential privacy: the model may reveal something about single training samples."
        if self.table["attackers"]:
            yield f"{100 * self.table['attackers']:g} % of the clients were simulated attackers: this is an experiment."

    def _validated(self, federation: Federation) -> list[int]:
        held = np.concatenate(federation.validation)
        counted: list[int] = np.bincount(federation.dataset.train.labels[held], minlength=len(self._classes)).tolist()
        return counted

    @property
    def _made(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.summary.get("made_with", {})
        return found

    def _origin(self) -> Iterator[Block]:
        yield Heading("Origin")
        facts = [
            f"{key}: {self._made[key]}"
            for key in ("fedsat", "torch", "python", "device", "finished")
            if key in self._made
        ]
        if self._made.get("command"):
            facts.insert(0, f"command: `{literal(self._made['command'])}`")
        yield Items(facts)


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _worst_first(value: float | None) -> float:
    return math.inf if value is None else value


def _listed(names: Sequence[str]) -> str:
    """Return up to ten names."""
    return ", ".join(map(literal, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
