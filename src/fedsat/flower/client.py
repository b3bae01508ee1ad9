"""The ClientApp: a node with its own data, where the sequential engine trains and evaluates one client.

Flower starts a process for every message, so state is kept in the node's context (see `fedsat.flower.memory`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedsat.algorithms import Model
from fedsat.data.arrays import mean_and_variance
from fedsat.engine import SequentialEngine
from fedsat.experiment.config import Config
from fedsat.experiment.environment import pick_device
from fedsat.flower import masks
from fedsat.flower.memory import Memory
from fedsat.flower.messages import (
    Evaluate,
    Evaluated,
    EvaluateWorker,
    Hello,
    NodeInfo,
    RunSpec,
    Train,
    Trained,
    WorkerCounts,
)
from fedsat.flower.node_data import NodeConfig, federation_of, load_share, number_of
from fedsat.flower.records import Message, MessageError, Stamp
from fedsat.metrics import ClassCounts, expected_accuracy
from fedsat.models import build_model
from fedsat.rounds import Protection
from fedsat.rounds.noise import secure
from fedsat.seeding import Indices
from fedsat.tree import Tree, expand, tree_map

app = ClientApp()


@app.query("hello")
@app.train()
@app.evaluate("worker")
@app.evaluate()
def reply(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Handle any message of the server."""
    return FlowerMessage(handle(message.metadata.message_type, message.content, context), reply_to=message)


def handle(kind: str, content: RecordDict, context: Context) -> RecordDict:
    """Handle a request of the given kind (Flower's message type), and return the content of the reply."""
    if kind not in HANDLERS:
        raise MessageError(f"unknown message type {kind!r}")
    reply, stamp = HANDLERS[kind](content, context).pack(), Stamp.of(content)
    if stamp is not None:
        stamp.put(reply)
    return reply


def hello(content: RecordDict, context: Context) -> NodeInfo:
    """Introduce this node, and start the run with an empty memory."""
    request, memory, node = Hello.unpack(content), Memory(context.state), context.node_config
    config = Config.of(request.run.settings)
    share = load_share(request.run, config, node)
    federation = federation_of(share, 0, config)  # the numbers of samples are the same for any client
    memory.reset()
    moments, class_counts = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    if request.run.held_out:
        mean, variance = map(torch.from_numpy, mean_and_variance(share.train.images))
        moments = {"mean": mean, "variance": variance}
    if config.client_accuracy == "test-split":
        class_counts = {"class_counts": torch.from_numpy(federation.class_mixes[0])}
    return NodeInfo(
        number_of(node),
        share.input_shape,
        len(federation.order),
        masks.public_key(memory.secret),
        moments,
        class_counts,
        validation=len(federation.validation[0]) if federation.validation else 0,
        tested=len(share.test) if request.run.held_out else 0,
    )


def train(content: RecordDict, context: Context) -> Trained:
    """Train the received model on the node's samples. The new state stays on the node."""
    request, memory = Train.unpack(content), Memory(context.state)
    engine = _engine(request.run, context.node_config, request.client)
    state = memory.load(request.used)
    states = {} if state is None else {request.client: {name: engine.on_device(tree) for name, tree in state.items()}}
    received = {name: engine.on_device(tree) for name, tree in request.received.items()}
    model = _on_device(engine, request.model)
    trained = engine.train_from(model, received, np.array([request.client]), states, request.round)
    memory.store(request.round, trained.states[0])
    updates, counts = trained.updates, {}
    if request.count:
        counts = {"counts": _counts(engine, updates.model, engine.federation.worker_indices(request.client))}
    return Trained(
        model=Model(_only(updates.model.params), _only(updates.model.buffers)),
        uploads={name: _only(tree) for name, tree in updates.uploads.items()},
        steps=int(updates.steps[0]),
        samples=int(updates.sizes[0]),
        loss=float(trained.meters["loss"][0]),
        lost_state=state is None and request.used > 0,
        counts=counts,
    )


def evaluate_worker(content: RecordDict, context: Context) -> WorkerCounts:
    """Evaluate other clients' models as their worker."""
    request, memory = EvaluateWorker.unpack(content), Memory(context.state)
    engine = _engine(request.run, context.node_config, request.worker)
    held, reports = engine.federation.worker_indices(request.worker), dict[str, torch.Tensor]()
    for client, model in request.models.items():
        counts = _counts(engine, Model(expand(model.params, 1), expand(model.buffers, 1)), held)
        if peers := request.peers.get(client):
            purpose = f"{request.nonce}/{client}"
            hidden = masks.masked(counts.numpy(), request.worker, memory.secret, peers, purpose)
            counts = torch.from_numpy(hidden)
        reports[str(client)] = counts
    return WorkerCounts(reports)


def evaluate(content: RecordDict, context: Context) -> Evaluated:
    """Evaluate global models for this client."""
    request = Evaluate.unpack(content)
    engine = _engine(request.run, context.node_config, request.client)
    models = [_on_device(engine, model) for model in request.models]
    if request.how == "expected":
        mix = engine.federation.class_mixes[[request.client]]
        right = [expected_accuracy(recall, mix)[0] for recall in request.recalls["recalls"].numpy()]
        results = {"accuracy": torch.tensor(right, dtype=torch.float64)}
    elif request.how == "local":
        held = engine.federation.indices(request.client)
        counts = [_counts(engine, Model(expand(m.params, 1), expand(m.buffers, 1)), held) for m in models]
        right = [int(correct.sum()) / int(labels.sum()) for _, correct, labels in counts]
        results = {"accuracy": torch.tensor(right, dtype=torch.float64)}
    else:
        held_out = [engine.test(model) for model in models]
        results = {
            "accuracy": torch.tensor([one.accuracy for one in held_out], dtype=torch.float64),
            "confusion": torch.stack([torch.from_numpy(one.confusion) for one in held_out]),
            "loss": torch.tensor([one.loss for one in held_out], dtype=torch.float64),
        }
    return Evaluated(results)


HANDLERS: dict[str, Callable[[RecordDict, Context], Message]] = {
    Hello.kind: hello,
    Train.kind: train,
    EvaluateWorker.kind: evaluate_worker,
    Evaluate.kind: evaluate,
}


def _engine(run: RunSpec, node: NodeConfig, client: int) -> SequentialEngine:
    """Return the engine that trains and evaluates on this node's data."""
    return _cached_engine(run.text(), tuple(sorted(node.items())), client)


@functools.lru_cache(maxsize=4)  # reused where one process handles several messages, as in simulations
def _cached_engine(run_text: str, node_items: tuple[tuple[str, object], ...], client: int) -> SequentialEngine:
    run, node = RunSpec.of(run_text), dict(node_items)
    config = Config.of(run.settings)
    share = load_share(run, config, node)
    module = build_model(config.model, share.input_shape, share.classes, config.seed)
    engine = SequentialEngine(
        module,
        federation_of(share, client, config),
        config.algorithm,
        config.local_training,
        pick_device(str(node.get("device", config.device))),
        torch.float64 if config.precision == "float64" else torch.float32,
        half=config.precision == "bf16",
    )
    engine.mean_samples = run.mean_samples
    engine.protection = Protection(config.privacy, secure)
    return engine


def _counts(engine: SequentialEngine, model: Model, held: Indices) -> torch.Tensor:
    """Return Z, TP and T of a model (client axis of length one) on some of the node's samples, [3, m]."""
    confusion = engine.count_by_node(_on_device(engine, model), [held])[0]
    counts = ClassCounts.from_confusion(confusion)
    return torch.stack([counts.predicted, counts.correct, counts.labels]).cpu()


def _on_device(engine: SequentialEngine, model: Model) -> Model:
    return Model(engine.on_device(model.params), engine.on_device(model.buffers))


def _only(tree: Tree) -> Tree:
    return tree_map(lambda tensor: tensor[0], tree)
