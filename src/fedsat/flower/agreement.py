"""What a node lets a server do: the settings that it accepts, whatever the server asks for.

The node's owner writes the agreement, a TOML file that the node's configuration names:

    fedsat supernode … --agreement agreement.toml
    flower-supernode … --node-config 'folder="/data/ours" agreement="/etc/fedsat/agreement.toml"'

Without a file, the defaults apply. Every message is checked against the agreement before a module is imported, a file
is opened, or a tensor is decoded. What the agreement refuses raises an `AgreementError`, which names the setting. The
server receives its text. Of errors in the node's work, it receives only the class (unless `errors` says otherwise).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w

from fedsat.data.catalog import DATASETS
from fedsat.errors import FedsatError, UsageError, unknown
from fedsat.experiment.config import PARTS, Config
from fedsat.experiment.legacy import modern_table
from fedsat.flower.limits import memory_limit, time_limit
from fedsat.options import Option, check, options_of
from fedsat.registry import Registry
from fedsat.rounds.ledger import Budget
from fedsat.rounds.privacy import Local
from fedsat.secure.shares import PEERS
from fedsat.seeding import Indices

OWN = "fedsat"
"""Stands for all parts of a kind that fedsat itself has, except those that open a file."""

LISTS = {
    "model": "models",
    "algorithm": "methods",
    "objective": "objectives",
    "weighting": "weightings",
    "aggregator": "aggregators",
    "partition": "partitions",
    "optimizer": "optimizers",
    "lr_schedule": "lr_schedules",
    "attack": "attacks",
    "privacy": "privacies",
}
"""The option that lists the accepted parts of each kind."""


class AgreementError(FedsatError):
    """The server asks for something that this node has not agreed to."""


@dataclass(frozen=True)
class Agreement:
    """The settings that a node accepts. In lists of parts, `fedsat` stands for all of fedsat's own."""

    models: Annotated[tuple[str, ...], Option("accepted networks; your own as module:Name")] = (OWN,)
    methods: Annotated[tuple[str, ...], Option("accepted methods")] = (OWN,)
    objectives: Annotated[tuple[str, ...], Option("accepted losses")] = (OWN,)
    weightings: Annotated[tuple[str, ...], Option("accepted weightings")] = (OWN,)
    aggregators: Annotated[tuple[str, ...], Option("accepted aggregators")] = (OWN,)
    partitions: Annotated[tuple[str, ...], Option("accepted partitions of a dataset")] = (OWN,)
    optimizers: Annotated[tuple[str, ...], Option("accepted local optimizers")] = (OWN,)
    lr_schedules: Annotated[tuple[str, ...], Option("accepted schedules of the learning rate")] = (OWN,)
    attacks: Annotated[tuple[str, ...], Option("accepted simulated attacks, although nodes carry out none")] = (OWN,)
    privacies: Annotated[tuple[str, ...], Option("accepted kinds of differential privacy")] = (OWN,)
    datasets: Annotated[
        tuple[str, ...],
        Option("datasets that the run may choose, if the node's configuration has neither dataset nor folder"),
    ] = tuple(name for name, info in DATASETS.items() if info.builtin)
    label: Annotated[str, Option("the only column of a table that the run may predict; empty: any")] = ""
    precisions: Annotated[tuple[str, ...], Option("accepted precisions of the training")] = ("float32", "bf16")
    min_batch_size: Annotated[int, Option("smallest local batch size", at_least=1)] = 8
    max_epochs: Annotated[int, Option("largest number of passes over the samples in a round", at_least=1)] = 20
    max_steps: Annotated[int, Option("largest number of local steps in a round, if the run sets steps", at_least=1)] = (
        10_000
    )
    max_lr: Annotated[float, Option("largest learning rate", above=0)] = 1.0
    max_clients: Annotated[int, Option("largest number of clients in a run", at_least=1)] = 100_000
    max_classes: Annotated[int, Option("largest number of classes", at_least=1)] = 10_000
    max_image_size: Annotated[int, Option("largest image_size in pixels", at_least=1)] = 1024
    max_parameters: Annotated[int, Option("largest number of parameters of a network", at_least=1)] = 100_000_000
    max_megabytes: Annotated[float, Option("largest message", above=0)] = 4096.0
    max_gigabytes: Annotated[float, Option("largest memory that a request may take", above=0)] = 16.0
    max_seconds: Annotated[float, Option("longest time that a request may take", above=0)] = 3600.0
    min_samples: Annotated[int, Option("smallest number of samples with which this node trains", at_least=1)] = 16
    min_class_samples: Annotated[
        int, Option("smallest number of samples in each class that this node has", at_least=1)
    ] = 1
    report_at_least: Annotated[
        int, Option("this node reports nothing about a class of which it has fewer samples than this", at_least=1)
    ] = 1
    histograms: Annotated[
        bool, Option("whether the node may report counts by class without masks, so that the server can read them")
    ] = True
    budget: Annotated[
        str, Option("largest ε,δ of local differential privacy that this node spends in all runs together; empty: any")
    ] = ""
    secure_clients: Annotated[
        int,
        Option(
            "smallest number of clients in a secure sum, of those with which this node shares masks; 0: runs may do "
            "without secure aggregation",
            at_least=0,
            at_most=PEERS + 1,
        ),
    ] = 0
    members: Annotated[
        tuple[str, ...],
        Option("public keys of all clients by number (ssh-ed25519 …), with which they must sign; empty: unsigned"),
    ] = ()
    errors: Annotated[
        Literal["class", "text"],
        Option("what the server is told about other errors; their texts may quote data and paths"),
    ] = "class"

    def __post_init__(self) -> None:
        check(self, "agreement")
        Budget.of(self.budget)

    @staticmethod
    def of_node(node: Mapping[str, Any]) -> Agreement:
        """Return the agreement that the node's configuration names, or the defaults."""
        if "agreement" not in node:
            return Agreement()
        path = Path(str(node["agreement"])).expanduser()
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"cannot read the agreement {path}: {error}") from error
        fields = options_of(Agreement)
        for key in table:
            if key not in fields:
                raise unknown("setting of the agreement", key, fields)
        agreement = Agreement(**table)
        if agreement.budget and not node.get("state"):
            raise UsageError("the agreement has a budget, so the node needs a folder for what it has spent (state)")
        return agreement

    @staticmethod
    def covering(config: Config) -> Agreement:
        """Return an agreement that accepts this configuration, for nodes that belong to whoever starts the run."""
        accepted = Agreement()
        lists: dict[str, Any] = {}
        for part in parts_in(config.table()):
            lists[part.allowed_by] = (*lists.get(part.allowed_by, (OWN,)), part.name)
        return replace(
            accepted,
            **lists,
            precisions=(*accepted.precisions, config.precision),
            min_batch_size=1,
            max_epochs=max(accepted.max_epochs, config.epochs),
            max_steps=max(accepted.max_steps, config.steps or 1),
            max_lr=max(accepted.max_lr, config.lr),
            max_classes=10**9,
            max_image_size=max(accepted.max_image_size, config.image_size or 1),
            max_parameters=10**12,
            max_megabytes=1e6,
            max_gigabytes=1e6,
            max_seconds=1e6,
            min_samples=1,
            errors="text",
        )

    def to_toml(self) -> str:
        """Return the agreement as the text of a file."""
        return tomli_w.dumps(
            {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        )

    def check_message(self, nbytes: int) -> None:
        """Refuse a message that is too large."""
        self._at_most("message in megabytes", nbytes / 1e6, "max_megabytes")

    def config_of(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration of a run, after checking it. Nothing is imported that is not accepted."""
        settings = modern_table(settings)
        for part in parts_in(settings):
            accepted = getattr(self, part.allowed_by)
            if part.name not in accepted and not (OWN in accepted and part.is_own):
                raise AgreementError(f"{part.setting} is {part.name!r}, which is not in {part.allowed_by}")
        config = Config.of(settings)
        if config.batch_size != "all":
            self._at_least("batch_size", config.batch_size, "min_batch_size")
        self._at_most("epochs", config.epochs, "max_epochs")
        self._at_most("steps", config.steps or 1, "max_steps")
        self._at_most("lr", config.lr, "max_lr")
        self._at_most("clients", config.clients, "max_clients")
        self._at_most("image_size", config.image_size or 1, "max_image_size")
        if self.secure_clients and not config.secure_aggregation:
            raise AgreementError("secure_aggregation is false, but this node has set secure_clients")
        if config.precision not in self.precisions:
            raise AgreementError(
                f"precision is {config.precision}; accepted: {', '.join(self.precisions)} (precisions)"
            )
        if self.label and config.label not in (None, self.label):
            raise AgreementError(f"label is {config.label!r}; accepted: {self.label!r} (label)")
        if self.budget and not isinstance(config.privacy, Local):
            raise AgreementError("privacy must be 'local', because this node has a budget of its own (budget)")
        if config.client_accuracy == "test-split":
            self.check_histogram("client_accuracy = 'test-split' (or a look at the nodes' data)")
        return config

    def check_classes(self, classes: int) -> None:
        """Refuse a run with many classes. The confusion matrix has as many numbers as their square."""
        self._at_most("classes", classes, "max_classes")

    def check_histogram(self, what: str) -> None:
        """Refuse to report counts by class, if they are not masked."""
        if not self.histograms:
            raise AgreementError(f"{what} asks for this node's own counts by class, but histograms is false")

    def check_parameters(self, parameters: int) -> None:
        """Refuse a network that is too large."""
        self._at_most("parameters of the network", parameters, "max_parameters")

    def check_samples(self, class_counts: Indices) -> None:
        """Refuse to train on few samples, or with a class that has few. The error does not reveal the numbers."""
        present = class_counts[class_counts > 0]
        if present.sum() < self.min_samples:
            raise AgreementError(f"samples: fewer than {self.min_samples} (min_samples)")
        if (present < self.min_class_samples).any():
            raise AgreementError(f"samples: a class has fewer than {self.min_class_samples} (min_class_samples)")

    def check_peers(self, clients: int) -> None:
        """Refuse secure aggregation among few clients."""
        self._at_least("clients of the secure aggregation", clients, "secure_clients")

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Stop the block after `max_seconds`, or when it needs more than `max_gigabytes`, where that is possible."""
        late = AgreementError(f"the request takes longer than {self.max_seconds:g} s (max_seconds)")
        large = AgreementError(f"the request needs more than {self.max_gigabytes:g} GB of memory (max_gigabytes)")
        with time_limit(self.max_seconds, late), memory_limit(int(self.max_gigabytes * 1e9), large):
            yield

    def _at_least(self, setting: str, value: float, bound: str) -> None:
        if not value >= getattr(self, bound):
            raise AgreementError(
                f"{setting} is {value:g}; this node accepts at least {getattr(self, bound):g} ({bound})"
            )

    def _at_most(self, setting: str, value: float, bound: str) -> None:
        if not value <= getattr(self, bound):
            raise AgreementError(
                f"{setting} is {value:g}; this node accepts at most {getattr(self, bound):g} ({bound})"
            )


@dataclass(frozen=True)
class Part:
    """A part that a configuration names, before anything is imported."""

    setting: str
    registry: Registry[Any]
    name: str

    @property
    def allowed_by(self) -> str:
        """The option of the agreement that lists the accepted parts of this kind."""
        return LISTS[self.registry.kind]

    @property
    def is_own(self) -> bool:
        """Whether the part is fedsat's own, and opens no file."""
        if not self.registry.is_own(self.name):
            return False
        return not any(field.type is Path for field in self.registry.options(self.name).values())


def parts_in(settings: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts of a configuration. A part is imported only when the next one is requested."""
    for key, registry in PARTS.items():
        if key in settings:
            yield from _parts_of(key, registry, settings[key])


def _parts_of(setting: str, registry: Registry[Any], spec: Any) -> Iterator[Part]:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    if not isinstance(name, str):
        raise AgreementError(f"{setting} has no name")
    yield Part(setting, registry, name)
    if isinstance(spec, Mapping):
        for key, field in registry.options(name).items():
            if field.option.among is not None and key in spec:
                yield from _parts_of(f"{setting}.{key}", field.option.among, spec[key])
