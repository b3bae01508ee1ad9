"""What a run is made of: the federation, the network and the engine, built from its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fedsat import data
from fedsat.engine import LocalEngine, Peer, SharedEngine, make_engine
from fedsat.errors import UsageError
from fedsat.experiment.callbacks import Callback
from fedsat.experiment.config import Config
from fedsat.experiment.environment import environment, pick_devices
from fedsat.experiment.stopping import TEST, USUAL, Criterion, EarlyStopping, PrivacyBudget, TimeBudget
from fedsat.experiment.trackers import Tracker, find_trackers
from fedsat.metrics import CHOICES, METRICS, NO_DETAIL, Metric, find_metrics
from fedsat.models import build_model
from fedsat.rounds import Engine, Faults, attacks
from fedsat.rounds.ledger import Budget, Ledger
from fedsat.rounds.privacy import refuse_buffers
from fedsat.rounds.sampling import draw_attackers


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, built from its configuration."""

    config: Config
    federation: data.Federation | None
    """All clients' data, before any attack changes them; None on real nodes, which keep their data."""
    engine: Engine
    device: torch.device
    inputs: data.Inputs
    """The shape of samples, how they are normalised, and the columns of a table."""
    notes: list[str]
    faults: Faults
    metrics: tuple[Metric, ...] = ()
    """The metrics that the run records in addition to those of every run."""
    validates: bool = False
    """Whether clients evaluate the global model on their validation samples."""
    test_on_nodes: bool = False
    """Whether real nodes test the model on samples that they hold out."""
    trackers: tuple[Tracker, ...] = ()
    """What the run's metrics are sent to."""

    def __post_init__(self) -> None:
        for setting, value in (("early_stop", self.stops_by), ("select", self.criterion)):
            self._check_criterion(setting, value)
        if self.config.restore_best and self.criterion is None:
            raise UsageError(
                "restore_best needs samples to choose the best model by: set some aside with --validation 0.2, or use "
                "--select test:balanced_accuracy to choose it by the test set"
            )
        self._check_metrics()

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the versions, with the compiler of the network, if it is compiled."""
        return {**environment(self.device), "compiler": getattr(self.engine, "compiler", None)}

    def _check_criterion(self, setting: str, criterion: Criterion | None) -> None:
        """Refuse a metric on validation samples if there are none, or if nodes do not report what it needs."""
        if criterion is None or criterion.on_test:
            return
        name = criterion.metric.name
        if not self.validates:
            why = "there are no validation samples; set some aside with --validation 0.2"
            if self.config.validation and self.config.privacy.active:
                why = "clients report no results on validation samples, which would cost privacy that is not counted"
            elif self.config.validation:
                why = "with worker_counts = 'sums', nodes report no results of their own on validation samples"
            raise UsageError(f"{setting} is {name!r}, but {why}; or use '{TEST}{name}', which uses the test set")
        if self.federation is None and criterion.metric not in (*METRICS.values(), *on_nodes(self.metrics)):
            raise UsageError(f"{setting} is {name!r}, which nodes do not report about their validation samples")

    def _check_metrics(self) -> None:
        """Refuse metrics that need counts of single clients, if `client_accuracy` does not provide them."""
        if self.config.client_accuracy != "expected" or self.test_on_nodes:
            return
        for each in self.metrics:
            if each.detail.client_scores or (each.detail.clients and self.federation is None):
                raise UsageError(
                    f"{each.name} needs every client's own results; set client_accuracy to test-split or local"
                )

    @property
    def criterion(self) -> Criterion | None:
        """What the best model is chosen by; None if there are no validation samples and nothing else is given."""
        given = self.config.select or self.config.early_stop
        chosen = Criterion.of("select", given or USUAL, self.metrics)
        return chosen if given or self.validates else None

    @property
    def stops_by(self) -> Criterion | None:
        """What early stopping watches; None without it."""
        name = self.config.early_stop
        return Criterion.of("early_stop", name, self.metrics) if name else None

    @property
    def validated_metrics(self) -> list[Metric]:
        """The metrics on validation samples that are recorded, besides those of every run."""
        return list(self.metrics) if self.federation is not None else on_nodes(self.metrics)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of a run with differential privacy."""
        return self.config.ledger(on_nodes=self.federation is None)

    @property
    def stop_rules(self) -> list[Callback]:
        """The built-in callbacks that the configuration asks for."""
        config, rules = self.config, list[Callback]()
        if self.stops_by is not None:
            rules.append(EarlyStopping(self.stops_by, config.patience, config.min_gain))
        if config.minutes:
            rules.append(TimeBudget(config.minutes))
        if config.budget and self.ledger is not None:
            rules.append(PrivacyBudget(self.ledger, Budget.of(config.budget)))
        return rules

    @property
    def fingerprint(self) -> str:
        """A checksum of the data and of their assignment to clients; empty on real nodes."""
        return "" if self.federation is None else self.federation.fingerprint

    @property
    def remarks(self) -> list[str]:
        """What the user should know about the configuration before the first round."""
        config, federation, notes = self.config, self.federation, list[str]()
        nodes = 1 + config.clients - config.per_round
        if config.algorithm.weighting.needs_counts and config.workers > nodes:
            notes.append(
                f"workers is {config.workers}, but a round has only {nodes}: the client itself, and clients that are "
                "not sampled"
            )
        if (ledger := self.ledger) is not None and config.budget:
            lasts = ledger.affordable(Budget.of(config.budget).epsilon, config.rounds)
            if lasts < config.rounds:
                notes.append(f"the privacy budget lasts for {lasts} of {config.rounds} rounds")
        if federation is None:
            return notes
        lacking = sum(not len(own) for own in federation.validation)
        if lacking:
            notes.append(f"{lacking} clients have no validation samples; as workers, they report nothing")
        attackers = len(self.faults.attackers)
        if attackers:
            notes.append(
                f"{attackers} of {federation.clients} clients are malicious ({attacks.name_of(config.attack)})"
            )
        note = config.algorithm.objective.note(torch.from_numpy(federation.class_counts))
        return notes if note is None else [*notes, note]

    @staticmethod
    def of(config: Config) -> Setup:
        """Load the data, split it, build the model and the engine."""
        devices, metrics, trackers = (
            pick_devices(config.device),
            find_metrics(config.metrics),
            find_trackers(config.track),
        )
        device = devices[0]
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # graphs and Triton kernels go to the current device, wherever tensors are
        dataset = config.load_dataset()
        if config.augment != "none" and len(dataset.input_shape) != 3:
            raise UsageError(f"augment is {config.augment!r}, which needs images; {dataset.name} has none")
        whole = data.Federation.build(dataset, config.partition, config.clients, config.seed)
        federation = replace(
            whole.with_validation(config.validation, config.seed),
            seed=config.seed,
            worker_samples=config.worker_samples,
            report_at_least=config.report_at_least,
        )
        module = build_model(config.model, dataset.input_shape, dataset.classes, config.seed)
        attackers = draw_attackers(config.seed, config.clients, config.attackers)
        attacked = config.attack.poison(federation, attackers)
        engine, note = make_engine(
            config.engine,
            module,
            attacked,
            config.algorithm,
            config.local_training,
            device,
            config.precision,
            config.compile,
        )
        refuse_buffers(config.privacy, engine.initial_model)
        engine.class_mixes = federation.reported_mixes
        notes = [text for text in (dataset.note, note) if text]
        faults = Faults(config.dropout, config.max_norm, config.attack, attackers)
        shared = engine if len(devices) == 1 else SharedEngine(engine, peers(config, devices[1:]))
        inputs, validates = data.Inputs.of(dataset), federation.validated and not config.privacy.active
        return Setup(
            config, federation, shared, device, inputs, notes, faults, metrics, validates=validates, trackers=trackers
        )


def peers(config: Config, devices: Sequence[torch.device]) -> list[Peer]:
    """Start a process for each device, with an engine for the same run."""
    table, threads = (
        {**config.table(), "dataset": config.dataset},
        max(1, torch.get_num_threads() // (1 + len(devices))),
    )
    return [Peer(partial(engine_on, {**table, "device": str(device)}), str(device), threads) for device in devices]


def engine_on(table: dict[str, Any]) -> LocalEngine:
    """Return the engine of a run that trains on one device, from the run's table of settings."""
    engine = Setup.of(Config.of(table)).engine
    assert isinstance(engine, LocalEngine)
    return engine


def on_nodes(chosen: Iterable[Metric]) -> list[Metric]:
    """Return those of the chosen metrics that follow from the confusion matrices of nodes' validation samples."""
    return [each for each in chosen if each.name in CHOICES and each.detail == NO_DETAIL]
