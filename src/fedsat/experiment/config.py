"""The complete configuration of a run, as stored in `config.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from torch import nn

from fedsat.algorithms import SGD, Algorithm, algorithms, optimizers
from fedsat.data import Columns, Dataset, Partition, load, long_tailed, partitions, with_holdout
from fedsat.engine import Compile, EngineName, Precision
from fedsat.errors import UsageError, unknown
from fedsat.experiment.combinations import check_combination
from fedsat.experiment.legacy import modern_table, renamed, warn
from fedsat.experiment.parts import method_name
from fedsat.metrics import ClientAccuracy
from fedsat.models import FROM_DATA, models
from fedsat.options import Option, check, options_of
from fedsat.registry import Registry
from fedsat.rounds import Attack, LocalTraining, LrSchedule, Privacy, attacks, lr_schedules, privacies
from fedsat.rounds.ledger import Budget, Ledger

PARTS: dict[str, Registry[Any]] = {
    "partition": partitions,
    "model": models,
    "optimizer": optimizers,
    "lr_schedule": lr_schedules,
    "algorithm": algorithms,
    "attack": attacks,
    "privacy": privacies,
}
"""The parts of a run that have a name and options: tables of the file."""

DATA = ("dataset", "label", "client", "test_column", "drop", "hashed", "image_size", "imbalance", "holdout")
"""The settings that decide which samples there are to train and to evaluate on."""


@dataclass(frozen=True)
class Config:
    """A run: data, federation, model, method, protocol and seed."""

    dataset: Annotated[
        str | Dataset,
        Option(
            "a dataset's name, your own table, folder or .npz file, hf:NAME from Hugging Face, or a function as "
            "module:name"
        ),
    ] = "mnist-mini"
    label: Annotated[str | None, Option("column of a table that holds the class to predict")] = None
    client: Annotated[str | None, Option("column of a table that names the client of each row")] = None
    test_column: Annotated[
        str | None, Option("column of a table that says train or test [a fifth of the rows is held out]")
    ] = None
    drop: Annotated[tuple[str, ...], Option("columns of a table to leave out")] = ()
    hashed: Annotated[tuple[str, ...], Option("columns of a table with many different texts, to be hashed")] = ()
    image_size: Annotated[int | None, Option("size in pixels to which a folder's images are resized", at_least=1)] = (
        None
    )
    imbalance: Annotated[
        float,
        Option("size of the first class over that of the last in a long-tailed training set; 1: unchanged", at_least=1),
    ] = 1.0
    holdout: Annotated[
        float,
        Option(
            "share of the training data that replaces the test set, to choose settings by; 0: none", at_least=0, below=1
        ),
    ] = 0.0
    clients: Annotated[int, Option("N, number of clients", at_least=1)] = 100
    per_round: Annotated[int, Option("|S_t|, clients sampled in a round", at_least=1)] = 15
    workers: Annotated[int, Option("w, nodes that evaluate each client's model, including itself", at_least=1)] = 15
    validation: Annotated[
        float,
        Option(
            "share of every client's samples that it evaluates on as a worker and never trains on", at_least=0, below=1
        ),
    ] = 0.0
    worker_samples: Annotated[
        int, Option("largest number of samples on which a worker evaluates models, drawn once; 0: all", at_least=0)
    ] = 0
    report_at_least: Annotated[
        int, Option("clients report nothing about a class of which they have fewer samples than this", at_least=1)
    ] = 1
    rounds: Annotated[int, Option("number of rounds", at_least=1)] = 60
    epochs: Annotated[int, Option("E, local epochs", at_least=1)] = 5
    steps: Annotated[
        int | None, Option("local steps in a round, instead of epochs, the same number for every client", at_least=1)
    ] = None
    batch_size: Annotated[
        int | Literal["all"], Option("B, local batch size; all: a client's samples are one batch", at_least=1)
    ] = 16
    lr: Annotated[float, Option("η, local learning rate", above=0)] = 0.01
    select: Annotated[
        str,
        Option(
            "metric on validation samples by which the best model is chosen; test:accuracy chooses it on the test set, "
            "as the paper does [early_stop's, or balanced_accuracy]"
        ),
    ] = ""
    early_stop: Annotated[
        str,
        Option(
            "metric on validation samples, such as worst_class_recall, or test:METRIC; the run ends when it no longer "
            "improves; empty: off"
        ),
    ] = ""
    patience: Annotated[int, Option("rounds that early_stop waits for an improvement", at_least=1)] = 20
    min_gain: Annotated[float, Option("smallest gain that early_stop counts as an improvement", at_least=0)] = 0.0
    restore_best: Annotated[bool, Option("keep the best model as the final one")] = False
    minutes: Annotated[float, Option("minutes of training after which the run ends; 0: no limit", at_least=0)] = 0.0
    augment: Annotated[Literal["none", "crop-flip"], Option("random changes to training images")] = "none"
    evaluate_every: Annotated[int, Option("rounds between evaluations", at_least=1)] = 1
    average: Annotated[
        float, Option("decay of a running mean of the global models, evaluated as well; 0: none", at_least=0, below=1)
    ] = 0.0
    client_accuracy: Annotated[
        ClientAccuracy,
        Option(
            "clients' accuracy from their class mix and the test recalls, on the test set divided among them, or on "
            "their local training samples"
        ),
    ] = "expected"
    metrics: Annotated[
        tuple[str, ...],
        Option("further metrics to record and compare: names such as auroc, or your own as module:name"),
    ] = ()
    dropout: Annotated[
        float, Option("share of sampled clients and workers that do not respond", at_least=0, below=1)
    ] = 0.0
    stragglers: Annotated[float, Option("share of sampled clients that do fewer epochs", at_least=0, at_most=1)] = 0.0
    max_norm: Annotated[
        float,
        Option(
            "updates whose norm exceeds this many times the median (per step) are refused, unless the server sees only "
            "their sum; 0: none",
            at_least=0,
        ),
    ] = 50.0
    attackers: Annotated[float, Option("share of all clients that are malicious", at_least=0, at_most=1)] = 0.0
    secure_aggregation: Annotated[
        bool, Option("the server learns only the sum of the clients' updates, and no single one")
    ] = False
    budget: Annotated[
        str, Option("ε,δ of the differential privacy, such as 8,1e-5; the run ends before it spends more; empty: none")
    ] = ""
    seed: Annotated[int, Option("seed of partition, initial model, sampling and batches", at_least=0)] = 0
    engine: Annotated[
        EngineName,
        Option(
            "train the clients of a round at once (stacked), one by one (sequential), or whichever the model allows"
        ),
    ] = "auto"
    compile: Annotated[
        Compile, Option("compile the network on a CPU where a C compiler is present (auto), or not (off)")
    ] = "auto"
    device: Annotated[
        str, Option("auto, cpu, cuda, cuda:1, or cuda:all to share each round's clients among all GPUs")
    ] = "auto"
    precision: Annotated[Precision, Option("precision of the training; bf16 is faster on a GPU")] = "float32"
    checkpoint_every: Annotated[
        int | None,
        Option(
            "rounds between checkpoints, 0 for none [10, or more if they would take over 2 % of the time]", at_least=0
        ),
    ] = None
    state_memory: Annotated[
        float | None,
        Option("GB of memory for the clients' states; the rest go to disk [a quarter of the free memory]", at_least=0),
    ] = None
    track: Annotated[tuple[str, ...], Option("tools that metrics are sent to: tensorboard, mlflow, wandb")] = ()
    partition: Annotated[Partition, Option("how samples are split among clients", among=partitions)] = partitions.build(
        "lsmc"
    )
    model: Annotated[Any, Option("the network")] = "mlp"
    optimizer: Annotated[SGD, Option("the clients' optimizer", among=optimizers)] = SGD()
    lr_schedule: Annotated[LrSchedule, Option("the learning rate over the rounds", among=lr_schedules)] = LrSchedule()
    algorithm: Annotated[Algorithm, Option("the federated method", among=algorithms)] = algorithms.build("fedsat")
    attack: Annotated[Attack, Option("what malicious clients do", among=attacks)] = Attack()
    privacy: Annotated[
        Privacy, Option("differential privacy against the server (local), or with a trusted one", among=privacies)
    ] = Privacy()

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", model_table(self.model))
        check(self)
        if self.dataset == "":
            raise UsageError(
                "dataset is empty; give a name (see fedsat list datasets) or a folder, such as . for the current one"
            )
        models.arguments(self.model)
        check_combination(self)

    @property
    def local_training(self) -> LocalTraining:
        """The settings of local training."""
        return LocalTraining(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            augment=self.augment == "crop-flip",
            seed=self.seed,
            stragglers=self.stragglers,
            steps=self.steps,
            optimizer=self.optimizer,
            lr_schedule=self.lr_schedule,
            rounds=self.rounds,
            privacy=self.privacy,
            secure_aggregation=self.secure_aggregation,
        )

    def ledger(self, *, on_nodes: bool) -> Ledger | None:
        """Return the ledger of a run with differential privacy, in a simulation or on real nodes."""
        if not self.privacy.active:
            return None
        return Ledger(
            self.privacy,
            self.clients,
            self.per_round,
            self.workers if self.algorithm.weighting.needs_counts else 0,
            self.seed,
            Budget.of(self.budget).delta,
            amplified=not on_nodes and self._hides_the_sample,
        )

    @property
    def _hides_the_sample(self) -> bool:
        """Whether all samples of clients have the same weights and, if the method uses them, numbers of steps."""
        same_steps = self.steps is not None and not self.stragglers
        return self.algorithm.weighting.equal and (same_steps or not self.algorithm.uses_steps)

    @property
    def method(self) -> str:
        """The algorithm's name with the parts added or left out: `fedsat`, `fedavg+psl`, `fedsat-pwa`."""
        return method_name(self.algorithm)

    @property
    def columns(self) -> Columns:
        """The roles of a table's columns."""
        return Columns.of(vars(self))

    @property
    def dataset_name(self) -> str:
        """The dataset's name in records; for an object, its name and checksum."""
        return self.dataset if isinstance(self.dataset, str) else self.dataset.reference

    @property
    def dataset_label(self) -> str:
        """The dataset's short name in tables."""
        return Path(self.dataset).name if isinstance(self.dataset, str) else self.dataset.name

    def load_dataset(self) -> Dataset:
        """Load the dataset that clients are trained on, with its long tail and what is held out of it.

        Samples are held out of the long-tailed training set, so that settings are chosen by what a run may train on.
        """
        dataset = load(self.dataset, image_size=self.image_size, columns=self.columns, seed=self.seed)
        if self.imbalance > 1:
            dataset = long_tailed(dataset, self.imbalance, self.seed)
        return with_holdout(dataset, self.holdout, self.seed) if self.holdout else dataset

    def table(self) -> dict[str, Any]:
        """Return the configuration as nested plain values, with every option."""
        return complete({**vars(self), "dataset": self.dataset_name})

    def to_toml(self) -> str:
        """Return the configuration as the text of a `config.toml`."""
        return tomli_w.dumps(self.table())

    @staticmethod
    def of(table: Mapping[str, Any]) -> Config:
        """Build a configuration from nested plain values, checking each."""
        table = modern_table(table)
        fields = options_of(Config)
        for key in table:
            if key not in fields:
                raise unknown("setting", key, fields)
        return Config(**{key: fields[key].check(value, "") for key, value in table.items()})


def model_table(spec: Any) -> dict[str, Any]:
    """Return a model's name and all options, including defaults; the name of a class is its `module:Name`."""
    if isinstance(spec, nn.Module):
        name = type(spec).__name__
        raise UsageError(
            f"model is an instance of {name}; give the class, model={name}, and its options as settings, "
            "so that the run can be recorded and repeated"
        )
    if isinstance(spec, type):
        spec = f"{spec.__module__}:{spec.__qualname__}"
    return {key: value for key, value in models.complete(spec).items() if key not in FROM_DATA}


def complete(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with every option, including defaults; nothing is checked."""
    full: dict[str, Any] = {}
    for key, field in options_of(Config).items():
        value = table.get(key, field.default)
        if key == "model":
            full[key] = model_table(value)
        elif field.option.among is not None:
            full[key] = field.option.among.complete(value)
        elif value is not None:
            full[key] = list(value) if isinstance(value, tuple) else value
    return {**full, **{key: value for key, value in table.items() if key not in full and value is not None}}


def read(path: Path, *, warn_of_old: bool = False) -> dict[str, Any]:
    """Return the table in a configuration file, with current names; `warn_of_old` warns of old ones."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no configuration file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read the configuration {path}: {error}") from error
    if warn_of_old:
        warn(f"{path}: {note}" for note in renamed(table))
    return modern_table(table)
