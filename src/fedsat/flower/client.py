"""The ClientApp: a node with its own data, on which the sequential engine plays one client's part of a run.

Flower starts a process for every message, so all that lasts is in the node's context (see `fedsat.flower.memory`).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from fedsat.algorithms import Model
from fedsat.data.datasets import mean_and_variance
from fedsat.engine import SequentialEngine
from fedsat.experiment.config import Config
from fedsat.experiment.environment import pick_device
from fedsat.flower import masks
from fedsat.flower.memory import Memory
from fedsat.flower.messages import (
    Card,
    Evaluate,
    Evaluated,
    Hello,
    Measure,
    Measured,
    RunSpec,
    Train,
    Trained,
)
from fedsat.flower.node_data import NodeConfig, federation_of, load_share, number_of
from fedsat.flower.records import Message
from fedsat.metrics import ClassCounts, expected_accuracy
from fedsat.models import build_model
from fedsat.rounds import LocalTraining
from fedsat.tree import Tree, expand, tree_map

app = ClientApp()


@app.query("hello")
def hello(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Say who this node is, and begin the run with an empty memory."""
    asked, memory, node = Hello.unpack(message.content), Memory(context.state), context.node_config
    share = load_share(asked.run, Config.of(asked.run.settings), node)
    memory.forget()
    moments: Tree = {}
    if asked.run.held_out:
        mean, variance = map(torch.from_numpy, mean_and_variance(share.train.images))
        moments = {"samples": torch.tensor(len(share.train)), "mean": mean, "variance": variance}
    card = Card(number_of(node), share.input_shape, masks.public_key(memory.secret), moments)
    return _reply(card, message)


@app.train()
def train(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Train the received model on the node's samples; the new state stays here."""
    asked, memory = Train.unpack(message.content), Memory(context.state)
    engine = _engine(asked.run, context.node_config, asked.client)
    state = memory.settle(asked.used)
    states = {} if state is None else {asked.client: {name: engine.on_device(tree) for name, tree in state.items()}}
    received = {name: engine.on_device(tree) for name, tree in asked.received.items()}
    model = _on_device(engine, asked.model)
    trained = engine.train_from(model, received, np.array([asked.client]), states, asked.round)
    memory.keep(asked.round, trained.states[0])
    updates, counts = trained.updates, {}
    if asked.count_own:
        counts = {"counts": _counts(engine, updates.model, asked.client)}
    own = Trained(
        model=Model(_only(updates.model.params), _only(updates.model.buffers)),
        uploads={name: _only(tree) for name, tree in updates.uploads.items()},
        steps=int(updates.steps[0]),
        samples=int(updates.sizes[0]),
        loss=float(trained.meters["loss"][0]),
        forgot=state is None and asked.used > 0,
        counts=counts,
    )
    return _reply(own, message)


@app.evaluate("measure")
def measure(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Evaluate other clients' models as their worker."""
    asked, memory = Measure.unpack(message.content), Memory(context.state)
    engine = _engine(asked.run, context.node_config, asked.worker)
    reports: Tree = {}
    for client, model in asked.models.items():
        counts = _counts(engine, Model(expand(model.params, 1), expand(model.buffers, 1)), asked.worker)
        if peers := asked.peers.get(client):
            purpose = f"{asked.nonce}/{client}"
            hidden = masks.masked(counts.numpy(), asked.worker, memory.secret, peers, purpose)
            counts = torch.from_numpy(hidden)
        reports[str(client)] = counts
    return _reply(Measured(reports), message)


@app.evaluate()
def evaluate(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Tell what global models are worth to this client."""
    asked = Evaluate.unpack(message.content)
    engine = _engine(asked.run, context.node_config, asked.client)
    models = [_on_device(engine, model) for model in asked.models]
    if asked.how == "expected":
        held = engine.federation.class_counts[[asked.client]]
        right = [expected_accuracy(recall, held)[0] for recall in asked.recalls["recalls"].numpy()]
        results = {"accuracy": torch.tensor(right, dtype=torch.float64)}
    elif asked.how == "local":
        counts = [_counts(engine, Model(expand(m.params, 1), expand(m.buffers, 1)), asked.client) for m in models]
        right = [int(correct.sum()) / int(labels.sum()) for _, correct, labels in counts]
        results = {"accuracy": torch.tensor(right, dtype=torch.float64)}
    else:
        held_out = [engine.test(model) for model in models]
        results = {
            "accuracy": torch.tensor([one.accuracy for one in held_out], dtype=torch.float64),
            "confusion": torch.stack([torch.from_numpy(one.confusion) for one in held_out]),
            "loss": torch.tensor([one.loss for one in held_out], dtype=torch.float64),
        }
    return _reply(Evaluated(results), message)


def _engine(run: RunSpec, node: NodeConfig, client: int) -> SequentialEngine:
    """The engine that trains and evaluates on this node's data."""
    return _cached_engine(run.text(), tuple(sorted(node.items())), client)


@functools.lru_cache(maxsize=4)  # where processes last, as in simulations, the next message finds it ready
def _cached_engine(run_text: str, node_items: tuple[tuple[str, object], ...], client: int) -> SequentialEngine:
    run, node = RunSpec.of(run_text), dict(node_items)
    config = Config.of(run.settings)
    share = load_share(run, config, node)
    module = build_model(config.model, share.input_shape, share.classes, config.seed)
    training = LocalTraining(config.epochs, config.batch_size, config.lr, config.augment == "crop-flip", config.seed)
    return SequentialEngine(
        module,
        federation_of(share, client, config.clients),
        config.algorithm,
        training,
        pick_device(str(node.get("device", config.device))),
        torch.float64 if config.precision == "float64" else torch.float32,
        half=config.precision == "bf16",
    )


def _counts(engine: SequentialEngine, model: Model, node: int) -> torch.Tensor:
    """Z, TP and T of a model (client axis of length one) on the node's samples, [3, m]."""
    confusion = engine.count_by_node(_on_device(engine, model), np.array([node]))[0]
    counts = ClassCounts.from_confusion(confusion)
    return torch.stack([counts.predicted, counts.correct, counts.labels]).cpu()


def _on_device(engine: SequentialEngine, model: Model) -> Model:
    return Model(engine.on_device(model.params), engine.on_device(model.buffers))


def _only(tree: Tree) -> Tree:
    return tree_map(lambda tensor: tensor[0], tree)


def _reply(answer: Message, to: FlowerMessage) -> FlowerMessage:
    return FlowerMessage(answer.pack(), reply_to=to)
