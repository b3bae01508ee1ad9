"""The engine with which a node trains and evaluates its client, and checks of the models that it receives."""

from __future__ import annotations

import functools

import torch

from fedsat.algorithms import Model, Server
from fedsat.engine import SequentialEngine
from fedsat.experiment.environment import pick_device
from fedsat.flower.agreement import Agreement
from fedsat.flower.checks import RefusedError, check_tree
from fedsat.flower.node_data import NodeConfig, federation_of, load_share, number_of
from fedsat.flower.records import MessageError
from fedsat.flower.run_spec import RunSpec
from fedsat.models import build_model, count_parameters
from fedsat.rounds import Protection
from fedsat.rounds.noise import secure
from fedsat.rounds.privacy import refuse_buffers
from fedsat.tree import State


def engine_of(run: RunSpec, node: NodeConfig, client: int) -> SequentialEngine:
    """Return the engine that trains and evaluates on this node's data."""
    return _cached_engine(run.text(), tuple(sorted(node.items())), client)


@functools.lru_cache(maxsize=4)  # reused where one process handles several messages, as in simulations
def _cached_engine(run_text: str, node_items: tuple[tuple[str, object], ...], client: int) -> SequentialEngine:
    run, node = RunSpec.of(run_text), dict(node_items)
    agreement = Agreement.of_node(node)
    config = agreement.config_of(run.settings)
    if not 0 <= client < config.clients or number_of(node) not in (-1, client):
        raise MessageError(f"this node is not client {client}")
    share = load_share(run, config, node)
    federation = federation_of(share, client, config, node)
    agreement.check_samples(federation.class_mixes[client])
    agreement.check_parameters(count_parameters(config.model, share.input_shape, share.classes))
    module = build_model(config.model, share.input_shape, share.classes, config.seed)
    engine = SequentialEngine(
        module,
        federation,
        config.algorithm,
        config.local_training,
        pick_device(str(node.get("device", config.device))),
        torch.float64 if config.precision == "float64" else torch.float32,
        half=config.precision == "bf16",
    )
    refuse_buffers(config.privacy, engine.initial_model)
    engine.mean_samples = run.mean_samples
    engine.protection = Protection(config.privacy, secure, secure=config.secure_aggregation)
    return engine


def received_model(engine: SequentialEngine, model: Model) -> Model:
    """Return a received model on the engine's device; refuse one of other shapes than the run's network."""
    check_tree("parameters", model.params, engine.initial_model.params)
    check_tree("buffers", model.buffers, engine.initial_model.buffers)
    return Model(engine.on_device(model.params), engine.on_device(model.buffers))


def check_received(engine: SequentialEngine, received: State) -> None:
    """Refuse what the method does not broadcast, or in other shapes."""
    start = Server(engine.initial_model, engine.algorithm.initial_memory(engine.initial_model))
    wanted = {name: tree for name, tree in engine.algorithm.broadcast(start).items() if tree}
    if received.keys() != wanted.keys():
        raise RefusedError(f"the method broadcasts {', '.join(wanted) or 'nothing'} besides the model")
    for name, tree in received.items():
        check_tree(name, tree, wanted[name])
