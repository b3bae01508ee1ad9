"""The ClientApp: a node with its own data, where the sequential engine trains and evaluates one client.

Flower starts a process for every message, so the node's memory is kept outside (see `fedsat.flower.memory`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.data.arrays import mean_and_variance
from fedsat.engine import SequentialEngine
from fedsat.errors import FedsatError, in_a_line
from fedsat.experiment.config import Config
from fedsat.flower import masks
from fedsat.flower.agreement import Agreement, AgreementError
from fedsat.flower.checks import RefusedError
from fedsat.flower.evaluation_messages import Evaluate, Evaluated, EvaluateWorker, WorkerCounts
from fedsat.flower.memory import Memory
from fedsat.flower.messages import Hello, NodeInfo, Refused, Train, Trained
from fedsat.flower.node_data import NodeConfig, federation_of, load_share, number_of
from fedsat.flower.node_engine import check_received, engine_of, received_model
from fedsat.flower.records import Message, MessageError, Stamp, clean, size
from fedsat.flower.reporting import charge, refuse_exact, report
from fedsat.flower.run_spec import run_of
from fedsat.flower.secure_messages import Introduce, Reveal, Share
from fedsat.flower.secure_node import introduce, masked, refuse_count, reveal, share
from fedsat.metrics import ClassCounts, Detail, accuracy_by_client, expected_accuracy
from fedsat.rounds.secure import weighs_alone
from fedsat.tree import KeptStates, Tree, expand, tree_map

log = logging.getLogger("flwr")

app = ClientApp()


@app.query("hello")
@app.query("introduce")
@app.query("share")
@app.query("reveal")
@app.train()
@app.evaluate("worker")
@app.evaluate()
def reply(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Handle any message of the server."""
    return FlowerMessage(answer(message.metadata.message_type, message.content, context), reply_to=message)


def answer(kind: str, content: RecordDict, context: Context) -> RecordDict:
    """Return the content of the reply to a request of the given kind (Flower's message type).

    Errors stay on the node, in its log. The server receives a `Refused` with the class of the error. It receives the
    text as well if the node's agreement refuses the request or the message itself is invalid.
    """
    try:
        reply = handle(kind, content, context)
    except Exception as error:
        log.error("cannot handle %r: %s", clean(kind), in_a_line(error), exc_info=not isinstance(error, FedsatError))
        reply = Refused(type(error).__name__, _told(error, context.node_config))
    records, stamp = reply.pack(), Stamp.of(content)
    if stamp is not None:
        stamp.put(records)
    return records


def _told(error: Exception, node: NodeConfig) -> str:
    """Return what the server is told about an error."""
    if isinstance(error, AgreementError | MessageError | RefusedError):
        return clean(str(error))
    with suppress(FedsatError):
        if Agreement.of_node(node).errors == "text":
            return clean(in_a_line(error))
    return f"{type(error).__name__} on the node, whose log has the details"


def handle(kind: str, content: RecordDict, context: Context) -> Message:
    """Check a request by the node's agreement, handle it, and return the reply."""
    if kind not in HANDLERS:
        raise MessageError(f"unknown message type {clean(kind)!r}")
    agreement = Agreement.of_node(context.node_config)
    agreement.check_message(size(content))
    run = run_of(content)
    agreement.check_classes(len(run.class_names))
    agreement.config_of(run.settings)
    with agreement.limited():
        return HANDLERS[kind](content, context)


def hello(content: RecordDict, context: Context) -> NodeInfo:
    """Introduce this node; one that has taken part in the run before says as which client."""
    request, node = Hello.unpack(content), context.node_config
    config = Config.of(request.run.settings)
    share = load_share(request.run, config, node)
    federation = federation_of(share, 0, config, node)  # the numbers of samples are the same for any client
    agreement = Agreement.of_node(node)
    agreement.check_samples(federation.class_mixes[0])
    if request.run.held_out:
        agreement.check_histogram("test = 'nodes'")
    with Memory.of(context, request.run.id) as memory:
        memory.reset()
        secret, known, lasting = memory.secret, memory.client, memory.lasts
    if request.run.held_out:
        refuse_exact(config, "the test on held-out samples")
    if config.client_accuracy == "test-split":
        refuse_exact(config, "the class counts")
    moments, class_counts = dict[str, Tensor](), dict[str, Tensor]()
    if request.run.held_out:
        mean, variance = map(torch.from_numpy, mean_and_variance(share.train.images))
        moments = {"mean": mean, "variance": variance}
    if config.client_accuracy == "test-split":
        class_counts = {"class_counts": torch.from_numpy(federation.reported_mixes[0])}
    number = number_of(node)
    return NodeInfo(
        known if number < 0 else number,
        share.input_shape,
        len(federation.order),
        masks.public_key(secret),
        moments,
        class_counts,
        validation=len(federation.validation[0]) if federation.validation else 0,
        tested=len(share.test) if request.run.held_out else 0,
        judged=len(config.privacy.judged(federation.judging_indices(0), config.seed, 0)),
        lasting=lasting,
    )


def train(content: RecordDict, context: Context) -> Trained:
    """Train the received model on the node's samples. The new state stays on the node."""
    request = Train.unpack(content)
    with Memory.of(context, request.run.id) as memory:
        return _train(request, memory, context)


def _train(request: Train, memory: Memory, context: Context) -> Trained:
    engine = engine_of(request.run, context.node_config, request.client)
    agreement, config = Agreement.of_node(context.node_config), Config.of(request.run.settings)
    if request.count:
        refuse_count(config)
        agreement.check_histogram("train")
    check_received(engine, request.received)
    state = memory.load(request.used)
    states: KeptStates = (
        {} if state is None else {request.client: {name: engine.on_device(tree) for name, tree in state.items()}}
    )
    received = {name: engine.on_device(tree) for name, tree in request.received.items()}
    model = received_model(engine, request.model)
    charge(config, agreement, memory, updates=1, reports=int(request.count))
    trained = engine.train_from(model, received, np.array([request.client]), states, request.round)
    memory.store(request.client, request.round, trained.states[0])
    updates, counts = trained.updates, {}
    sent, hidden = Model(_only(updates.model.params), _only(updates.model.buffers)), Tree()
    if config.secure_aggregation:
        own = None
        if weighs_alone(config.algorithm.weighting):
            own = ClassCounts(*report(engine, memory, request.client, {"": updates.model})[""][:, None, None])
        sent, hidden = Model({}, {}), masked(request, model, sent, int(updates.sizes[0]), memory, own)
    if request.count:
        counted = report(engine, memory, request.client, {"": updates.model})[""]
        counts = {"counts": counted[:2]} | ({"labels": counted[2]} if request.labels else {})
    return Trained(
        model=sent,
        uploads={name: _only(tree) for name, tree in updates.uploads.items()},
        steps=int(updates.steps[0]),
        samples=int(updates.sizes[0]),
        loss=0.0 if engine.protection.hides_losses else float(trained.meters["loss"][0]),
        lost_state=state is None and request.used > 0,
        counts=counts,
        masked=hidden,
    )


def evaluate_worker(content: RecordDict, context: Context) -> WorkerCounts:
    """Evaluate other clients' models as their worker."""
    request = EvaluateWorker.unpack(content)
    engine = engine_of(request.run, context.node_config, request.worker)
    agreement, config = Agreement.of_node(context.node_config), Config.of(request.run.settings)
    if request.labels or not all(request.peers.get(name) for name in request.models):
        agreement.check_histogram("evaluate_worker")
    models = {name: _stacked(received_model(engine, model)) for name, model in request.models.items()}
    with Memory.of(context, request.run.id) as memory:
        charge(config, agreement, memory, reports=len(models))
        counted, secret = report(engine, memory, request.worker, models), memory.secret
    reports = {name: counts[:2] for name, counts in counted.items()}
    for name, peers in request.peers.items():
        hidden = masks.masked(counted[name].numpy(), secret, peers, request.nonce)
        reports[name] = torch.from_numpy(hidden)
    return WorkerCounts(reports, {"labels": next(iter(counted.values()))[2]} if request.labels else {})


def evaluate(content: RecordDict, context: Context) -> Evaluated:
    """Evaluate global models for this client."""
    request = Evaluate.unpack(content)
    refuse_exact(Config.of(request.run.settings), "this node's accuracy")
    engine = engine_of(request.run, context.node_config, request.client)
    models = [received_model(engine, model) for model in request.models]
    if request.how == "expected":
        mix = engine.class_mixes[[request.client]]
        right = [expected_accuracy(recall, mix)[0] for recall in request.recalls["recalls"].numpy()]
        results = {"accuracy": torch.tensor(right, dtype=torch.float64)}
    else:
        results = _evaluated(engine, request, models, Agreement.of_node(context.node_config))
    return Evaluated(results)


def _evaluated(engine: SequentialEngine, request: Evaluate, models: list[Model], agreement: Agreement) -> Tree:
    """Return the results of models on this node's samples: what the request asks for."""
    if request.how == "validation" or request.counts or request.scores:
        agreement.check_histogram(f"evaluation on {request.how} samples")
    evaluate = {"local": engine.evaluate_local, "validation": engine.validate}.get(request.how, engine.test)
    found = [evaluate(model, Detail(scores=request.scores)) for model in models]
    confusion = np.stack([one.confusion for one in found])
    results = {"accuracy": torch.from_numpy(accuracy_by_client(confusion))}
    if request.how != "local":
        results["loss"] = torch.tensor([one.loss for one in found], dtype=torch.float64)
    if request.counts or request.how != "local":
        results["confusion"] = torch.from_numpy(confusion)
    if request.scores:
        results["histograms"] = torch.stack([torch.from_numpy(one.histograms) for one in found])
    return results


HANDLERS: dict[str, Callable[[RecordDict, Context], Message]] = {
    Hello.kind: hello,
    Introduce.kind: introduce,
    Share.kind: share,
    Reveal.kind: reveal,
    Train.kind: train,
    EvaluateWorker.kind: evaluate_worker,
    Evaluate.kind: evaluate,
}


def _stacked(model: Model) -> Model:
    return Model(expand(model.params, 1), expand(model.buffers, 1))


def _only(tree: Tree) -> Tree:
    return tree_map(lambda tensor: tensor[0], tree)
