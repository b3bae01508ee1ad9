"""The ServerApp: plays a run's rounds with real nodes and leaves the same files as `fedsat run`."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsat import data
from fedsat.data.catalog import DATASETS, info
from fedsat.data.datasets import deviation
from fedsat.engine.capacity import evaluation_batch
from fedsat.engine.evaluate import Counter
from fedsat.engine.examples import Examples
from fedsat.engine.network import ModuleNetwork, initial_weights
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.checkpoint import RunState
from fedsat.experiment.config import Config, override, parse_value, read
from fedsat.experiment.environment import pick_device
from fedsat.experiment.folder import RunFolder, free_folder
from fedsat.experiment.run import Run, Setup, train
from fedsat.flower.exchange import Exchange
from fedsat.flower.members import Members
from fedsat.flower.messages import Card, Hello, RunSpec
from fedsat.flower.remote import RemoteEngine
from fedsat.flower.terms import Terms
from fedsat.metrics import RoundRecord, find_metrics
from fedsat.models import build_model
from fedsat.options import options_of
from fedsat.rounds import Faults, start

log = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Read the run's configuration, wait for the nodes, play the rounds."""
    try:
        config, terms, out = read_run_config(context.run_config)
        run = prepare(grid, config, terms, out)
        log.info("files: %s", out)
        for note in run.notes:
            log.info("note: %s", note)
        train(run, show=_tell)
    except FedsatError as error:
        log.error("fedsat: %s", error)
        raise


def read_run_config(given: Mapping[str, Any]) -> tuple[Config, Terms, Path]:
    """What a Flower run configuration asks for: a run, the terms, and a folder for the files.

    Its keys are the names of settings as on the command line (`per-round`, `algorithm`, `gamma`), those of `Terms`,
    `config` (a configuration file on the server) and `out`. An empty text stands for the default.
    """
    settings = {key.replace("-", "_"): _value(value) for key, value in given.items() if value != ""}
    terms = Terms(**{name: settings.pop(name) for name in options_of(Terms) if name in settings})
    file, out = settings.pop("config", None), settings.pop("out", None)
    config = Config.of(override(read(Path(file)) if file else {}, settings.items()))
    return config, terms, Path(out) if out else free_folder(Path("runs"), f"flower-{config.method}-seed{config.seed}")


def _value(value: Any) -> Any:
    """Flower's configurations hold no lists; they are written as texts."""
    return parse_value(value) if isinstance(value, str) and value.startswith("[") else value


def prepare(grid: Grid, config: Config, terms: Terms, out: Path | None = None) -> Run:
    """A run before its first round, as soon as its nodes are there."""
    setup = assemble(grid, config, terms)
    folder = RunFolder.create(out, config.to_toml(), on_nodes=True) if out is not None else None
    return Run(setup, RunState(start(setup.engine)), folder)  # no checkpoints: clients' states are on the nodes


def assemble(grid: Grid, config: Config, terms: Terms) -> Setup:
    """Gather the nodes and build the engine that works with them."""
    _check_terms(config, terms)
    dataset = None
    if terms.test == "server":
        dataset = data.load(config.dataset, image_size=config.image_size, seed=config.seed)
        run = RunSpec(config.table(), dataset.class_names, False, dataset.mean, dataset.std)
    else:
        run = RunSpec(config.table(), _class_names(config, terms), True)
    shape = dataset.input_shape if dataset is not None else None
    members = Members(Exchange(grid, terms.timeout), Hello(run), config.clients, shape)
    members.wait_for(set(range(config.clients)), terms.wait)
    needed = math.ceil(terms.min_fraction * config.clients)
    if len(members.nodes) < needed or members.shape is None:
        told = "".join(f"; {remark['why']}" for remark in members.take_notes()[:1])
        came = f"{len(members.nodes)} of {config.clients} nodes came in {terms.wait:g} s"
        raise FedsatError(f"{came}, {needed} are needed to begin{told}")
    if not run.mean:
        mean, std = pooled_moments(list(members.cards.values()))
        run = dataclasses.replace(run, mean=mean, std=std)
    device = pick_device(config.device)
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    module = build_model(config.model, members.shape, len(run.class_names), config.seed)
    model = initial_weights(module, device, dtype)
    test = None
    if dataset is not None:
        network = ModuleNetwork(module, features=False, half=config.precision == "bf16")
        examples = Examples(dataset.test, dataset, device, dtype)
        batch = evaluation_batch(module, dataset.input_shape, device)
        test = Counter(network, examples, dataset.classes, batch).evaluate
    notes = [dataset.note] if dataset is not None and dataset.note else []
    return Setup(
        config,
        None,
        RemoteEngine(run, config, terms, members, model, test),
        device,
        notes,
        Faults(max_norm=config.max_norm),
        find_metrics(config.metrics),
    )


def _check_terms(config: Config, terms: Terms) -> None:
    simulated = [name for name in ("dropout", "stragglers", "attackers") if getattr(config, name)]
    if simulated:
        raise UsageError(f"{simulated[0]} is simulated; real nodes fail, lag and lie on their own")
    others = min(config.workers - 1, config.clients - config.per_round)
    weighting = config.algorithm.weighting
    if terms.worker_counts == "sums" and weighting.needs_each_report:
        raise UsageError("worker_counts is 'sums', but these weights look at workers' reports one by one")
    if terms.worker_counts == "sums" and weighting.needs_counts and others < 1:
        raise UsageError(
            "worker_counts is 'sums', but each client's only worker is itself: ask for more --workers and call fewer"
            f" of the {config.clients} clients a round"
        )


def _class_names(config: Config, terms: Terms) -> tuple[str, ...]:
    """The classes of a run whose server has no data."""
    names = tuple(name.strip() for name in terms.class_names.split(",") if name.strip())
    if names:
        return names
    if config.dataset in DATASETS:
        return info(config.dataset).class_names
    raise UsageError('the server has no dataset to know the classes from; name them: class_names = "cat,dog"')


def pooled_moments(cards: list[Card]) -> data.datasets.Moments:
    """Mean and deviation of all nodes' samples, from each node's: Var = Σ n_k (Var_k + (μ_k − μ)²)/n."""
    samples, means, variances = (
        np.stack([card.moments[of].numpy() for card in cards]) for of in ("samples", "mean", "variance")
    )
    shares = (samples / samples.sum())[:, None]
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean) ** 2)).sum(0)
    return tuple(mean.tolist()), tuple(deviation(mean, variance).tolist())


def _tell(run: Run, record: RoundRecord) -> None:
    """A line of the log for each round."""
    seen = ""
    if record.evaluated:
        worst, metrics = run.setup.engine.class_names[record.worst_class], record.metrics
        seen = f"  accuracy {metrics['accuracy']:.2%}  worst class {metrics['worst_class_recall']:.2%} ({worst})"
    log.info("round %d/%d%s  %.1f s", record.round, run.setup.config.rounds, seen, sum(record.seconds.values()))
