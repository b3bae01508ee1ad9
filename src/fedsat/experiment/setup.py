"""What a run is made of: the federation, the network and the engine, built from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedsat import data
from fedsat.engine import make_engine
from fedsat.errors import UsageError
from fedsat.experiment.callbacks import Callback
from fedsat.experiment.config import Config
from fedsat.experiment.environment import pick_device
from fedsat.experiment.stopping import EarlyStopping, PrivacyBudget, TimeBudget, watched
from fedsat.experiment.trackers import Tracker, find_trackers
from fedsat.metrics import Metric, find_metrics
from fedsat.models import build_model
from fedsat.rounds import Engine, Faults
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
    test_on_nodes: bool = False
    """Whether real nodes test the model on samples that they hold out."""
    trackers: tuple[Tracker, ...] = ()
    """What the run's metrics are sent to."""

    def __post_init__(self) -> None:
        watched(self.config.early_stop, self.metrics)
        self._check_metrics()

    def _check_metrics(self) -> None:
        """Refuse metrics of single clients that the clients' accuracy does not count."""
        if self.config.client_accuracy != "expected" or self.test_on_nodes:
            return
        for each in self.metrics:
            if each.detail.client_scores or (each.detail.clients and self.federation is None):
                raise UsageError(
                    f"{each.name} needs every client's own results; set client_accuracy to test-split or local"
                )

    @property
    def watched(self) -> Metric:
        """The metric by which a model is best."""
        return watched(self.config.early_stop, self.metrics)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of a run with differential privacy."""
        return self.config.ledger(on_nodes=self.federation is None)

    @property
    def stop_rules(self) -> list[Callback]:
        """The built-in callbacks that the configuration asks for."""
        config, rules = self.config, list[Callback]()
        if config.early_stop:
            rules.append(EarlyStopping(self.watched, config.patience, config.min_gain))
        if config.minutes:
            rules.append(TimeBudget(config.minutes))
        if config.budget and self.ledger is not None:
            rules.append(PrivacyBudget(self.ledger, Budget.of(config.budget)))
        return rules

    @property
    def fingerprint(self) -> str:
        """A checksum of the data and of their assignment to clients; empty on real nodes."""
        return "" if self.federation is None else self.federation.fingerprint

    @staticmethod
    def of(config: Config) -> Setup:
        """Load the data, split it, build the model and the engine."""
        device, metrics, trackers = (
            pick_device(config.device),
            find_metrics(config.metrics),
            find_trackers(config.track),
        )
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # graphs and Triton kernels go to the current device, wherever tensors are
        dataset = config.load_dataset()
        if config.augment != "none" and len(dataset.input_shape) != 3:
            raise UsageError(f"augment is {config.augment!r}, which needs images; {dataset.name} has none")
        whole = data.Federation.build(dataset, config.partition, config.clients, config.seed)
        federation = replace(
            whole.with_validation(config.validation, config.seed), report_at_least=config.report_at_least
        )
        module = build_model(config.model, dataset.input_shape, dataset.classes, config.seed)
        attackers = draw_attackers(config.seed, config.clients, config.attackers)
        attacked = config.attack.poison(federation, attackers)
        engine, note = make_engine(
            config.engine, module, attacked, config.algorithm, config.local_training, device, config.precision
        )
        refuse_buffers(config.privacy, engine.initial_model)
        engine.class_mixes = federation.reported_mixes
        notes = [text for text in (dataset.note, note) if text]
        faults = Faults(config.dropout, config.max_norm, config.attack, attackers)
        inputs = data.Inputs.of(dataset)
        return Setup(config, federation, engine, device, inputs, notes, faults, metrics, trackers=trackers)
