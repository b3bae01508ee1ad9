"""The ServerApp: runs the rounds with real nodes and writes the same files as `fedsat run`."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsat import data
from fedsat.engine.capacity import evaluation_batch
from fedsat.engine.evaluate import Counter
from fedsat.engine.examples import Examples
from fedsat.engine.network import ModuleNetwork, initial_weights
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.checkpoint import Checkpoints, RunState
from fedsat.experiment.config import Config, read
from fedsat.experiment.defaults import Given
from fedsat.experiment.environment import pick_device
from fedsat.experiment.folder import CONFIG, ON_NODES, RunFolder, free_folder, read_nodes, refuse_used
from fedsat.experiment.resume import changed, restore
from fedsat.experiment.run import Run, train
from fedsat.experiment.sealed import DamagedError
from fedsat.experiment.settings import parse_value
from fedsat.experiment.setup import Setup
from fedsat.experiment.trackers import find_trackers
from fedsat.flower.announcement import announce
from fedsat.flower.attempts import Attempts
from fedsat.flower.exchange import Exchange
from fedsat.flower.influence import counted, limit, pooled_moments
from fedsat.flower.known import Known
from fedsat.flower.look import look_at_nodes
from fedsat.flower.members import Members
from fedsat.flower.messages import Hello
from fedsat.flower.presence import Presence
from fedsat.flower.remote import RemoteEngine
from fedsat.flower.terms import Terms
from fedsat.flower.transport import GridTransport, Transport
from fedsat.metrics import RoundRecord, find_metrics
from fedsat.models import build_model
from fedsat.options import options_of
from fedsat.rounds import Faults, start
from fedsat.rounds.privacy import refuse_buffers

log = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Read the run's configuration, wait for the nodes, and run the rounds, or only look at the nodes' data."""
    try:
        config, terms, out = read_run_config(context.run_config)
        if terms.look:
            look(GridTransport(grid), config, terms, out)
            return
        run = prepare(GridTransport(grid), config, terms, out)
        log.info("files: %s", out)
        for note in run.notes:
            log.info("note: %s", note)
        train(run, show=_log_round)
    except FedsatError as error:
        log.error("fedsat: %s", error)
        raise


def look(transport: Transport, config: Config, terms: Terms, out: Path) -> None:
    """Look at the nodes' data, log the report, and write it into a folder."""
    found = look_at_nodes(transport, config, terms)
    found.write(out)
    for line in found.text().splitlines():
        log.info("%s", line)
    log.info("files: %s", out)


def read_run_config(given: Mapping[str, Any]) -> tuple[Config, Terms, Path]:
    """Read a Flower run configuration: the run, the settings of the federation, and the folder for the files.

    Keys are the names of settings as on the command line (`per-round`, `algorithm`, `gamma`), those of `Terms`,
    `config` (a configuration file on the server) and `out`. An empty string means the default.
    """
    settings = {key.replace("-", "_"): _value(value) for key, value in given.items() if value != ""}
    terms = Terms(**{name: settings.pop(name) for name in options_of(Terms) if name in settings})
    file, out = settings.pop("config", None), settings.pop("out", None)
    config = Config.of(Given(list(settings.items()), read(Path(file)) if file else None).table)
    name = "look" if terms.look else f"flower-{config.method}-seed{config.seed}"
    return config, terms, Path(out) if out else free_folder(Path("runs"), name)


def _value(value: Any) -> Any:
    """Parse lists, which Flower's configurations contain as strings."""
    return parse_value(value) if isinstance(value, str) and value.startswith("[") else value


def prepare(transport: Transport, config: Config, terms: Terms, out: Path | None = None) -> Run:
    """Wait for the nodes, and return the run before its next round: the first, or the one at which it was interrupted.

    The server writes a checkpoint after every round, because a node keeps no older states of its client.
    """
    if config.checkpoint_every not in (None, 0, 1):
        raise UsageError(f"checkpoint_every is {config.checkpoint_every}; on real nodes it is 1, or 0 (none)")
    config = replace(config, checkpoint_every=1 if config.checkpoint_every is None else config.checkpoint_every)
    if out is not None and (out / ON_NODES).is_file():
        return _resume(transport, config, terms, out)
    if out is not None:
        refuse_used(out)
    run_id = uuid.uuid4().hex
    setup = assemble(transport, config, terms, out, run_id)
    if out is None:
        return Run(setup, RunState(start(setup.engine)))
    nodes = {"id": run_id, "terms": vars(terms)}
    folder = RunFolder.create(out, config.to_toml(), setup.inputs.schema, nodes=nodes)
    return Run(setup, RunState(start(setup.engine)), folder, Checkpoints.of(out, config.checkpoint_every))


def _resume(transport: Transport, config: Config, terms: Terms, path: Path) -> Run:
    """Return the run in a folder as it was at its last checkpoint."""
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} has no {CONFIG}; use another folder")
    if changes := changed(Config.of(read(path / CONFIG)).table(), config.table()):
        raise UsageError(f"{path} contains a run with other settings: {'; '.join(changes)}; use another out")
    run_id = str(read_nodes(path).get("id", ""))

    def connect(config: Config, remembered: Mapping[str, Any]) -> Setup:
        try:
            known = Known.of(remembered) if remembered else None
        except DamagedError as error:
            raise FedsatError(f"{path} cannot be resumed: {error}; to repeat the run, use another out") from error
        return assemble(transport, config, terms, path, run_id, known)

    return restore(path, config.rounds, minutes=config.minutes, on_nodes=connect)


def assemble(
    transport: Transport,
    config: Config,
    terms: Terms,
    out: Path | None = None,
    run_id: str = "",
    known: Known | None = None,
) -> Setup:
    """Wait for the nodes and build the engine. After a restart, what was `known` of the nodes stays valid."""
    _check_terms(config, terms)
    metrics, trackers = find_metrics(config.metrics), find_trackers(config.track)
    run, dataset, shape = announce(config, terms)
    run = replace(run, id=run_id)
    members = Members(
        Exchange(transport, terms.timeout),
        Hello(run),
        config.clients,
        shape,
        Presence(out),
        terms.replaceable(config.clients),
        min_fraction=terms.min_fraction,
        retries=terms.retries,
        attempts=Attempts(out if config.privacy.active else None),
    )
    if known is not None:
        known.check(run, terms)
        members.shape, members.infos, members.owners = known.shape, dict(known.infos), dict(known.owners)
    _gather(members, config, terms)
    assert members.shape is not None
    infos = list(members.infos.values())
    most = limit((info.samples for info in infos), terms.max_weight)
    if known is not None:
        run = replace(known.run, settings=config.table())
    else:
        mean_samples = sum(counted(info.samples, most) for info in infos) / len(infos)
        run = replace(run, mean_samples=mean_samples, most_samples=most or 0)
    if not run.mean:
        mean, std = pooled_moments(infos, terms.max_weight)
        run = replace(run, mean=mean, std=std)
    device = pick_device(config.device)
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    module = build_model(config.model, members.shape, len(run.class_names), config.seed)
    model = initial_weights(module, device, dtype)
    test = None
    if dataset is not None:
        network = ModuleNetwork(module, features=False, half=config.precision == "bf16")
        examples = Examples(dataset.test, dataset, device, dtype)
        batch = evaluation_batch(module, dataset.input_shape, device)
        test = Counter(network, examples, dataset.classes, batch)
    pixels = None if dataset is None else data.Inputs.of(dataset).pixels
    schema = data.Schema.from_json(run.schema) if run.schema else None
    refuse_buffers(config.privacy, model)
    notes = [dataset.note] if dataset is not None and dataset.note else []
    notes += ["nodes report no accuracies, because these would be exact"] if config.privacy.active else []
    notes += [
        f"client {client} has {info.samples:,} samples but counts as having {most:,} (max_weight {terms.max_weight:g})"
        for client, info in sorted(members.infos.items())
        if most is not None and info.samples > most
    ]
    return Setup(
        config,
        None,
        RemoteEngine(run, config, terms, members, model, test, known),
        device,
        data.Inputs(members.shape, run.mean, run.std, pixels, schema),
        notes,
        Faults(max_norm=config.max_norm),
        metrics,
        test_on_nodes=terms.test == "nodes",
        trackers=trackers,
        validates=bool(config.validation) and terms.worker_counts == "each" and not config.privacy.active,
    )


def _gather(members: Members, config: Config, terms: Terms) -> None:
    """Wait for the nodes; raise an error if too few have joined."""
    members.wait_for(set(range(config.clients)), terms.wait)
    members.agree_on_shape()
    needed = math.ceil(terms.min_fraction * config.clients)
    if len(members.nodes) < needed or members.shape is None:
        why = "".join(f"; {note['why']}" for note in members.take_notes()[:1])
        joined = f"{len(members.nodes)} of {config.clients} nodes joined within {terms.wait:g} s"
        raise FedsatError(f"{joined}, but {needed} are needed to start{why}")


def _check_terms(config: Config, terms: Terms) -> None:
    simulated = [name for name in ("dropout", "stragglers", "attackers") if getattr(config, name)]
    if simulated:
        raise UsageError(f"{simulated[0]} is only available in simulations, not with real nodes; remove it")
    if config.privacy.active and (terms.test == "nodes" or config.client_accuracy != "expected"):
        what = "test is 'nodes'" if terms.test == "nodes" else f"client_accuracy is {config.client_accuracy!r}"
        raise UsageError(
            f"{what}, for which nodes send exact numbers about their samples; with privacy, use test = 'server' and "
            "client_accuracy = 'expected'"
        )
    others = min(config.workers - 1, config.clients - config.per_round)
    weighting = config.algorithm.weighting
    if terms.worker_counts == "sums" and weighting.needs_each_report:
        raise UsageError("worker_counts is 'sums', but the weighting needs the reports of single workers; use 'each'")
    if terms.worker_counts == "sums" and weighting.needs_counts and others < 1:
        raise UsageError(
            "worker_counts is 'sums', but each client is its only worker; use more --workers, and a --per-round below"
            f" {config.clients}, the number of clients"
        )
    if config.client_accuracy == "test-split" and (terms.test == "nodes" or terms.worker_counts == "sums"):
        raise UsageError(
            "client_accuracy is 'test-split', which needs the server's test set and the nodes' class counts; use "
            "'expected', or test = 'server' and worker_counts = 'each'"
        )


def _log_round(run: Run, record: RoundRecord) -> None:
    """Log one line per round."""
    seen = ""
    if record.evaluated:
        worst, metrics = run.setup.engine.class_names[record.worst_class], record.metrics
        seen = f"  accuracy {metrics['accuracy']:.2%}  worst-class recall {metrics['worst_class_recall']:.2%} ({worst})"
    log.info("round %d/%d%s  %.1f s", record.round, run.setup.config.rounds, seen, sum(record.seconds.values()))
