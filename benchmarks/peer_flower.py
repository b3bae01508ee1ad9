"""FedAvg in Flower's simulation: one Ray actor per core, one thread each, no evaluation by clients.

Started by `peers.py`. An actor keeps the data between rounds. A round is timed at the server, from the sampling of
clients to the aggregated model.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from local import CLIENTS, Work
from turns import Turns

FILE = Path(sys.argv[1])
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Trains a client for a round."""
    torch.set_num_threads(1)
    work, client = Work.load(FILE), int(context.node_config["partition-id"])
    model = work.new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    work.train(model, client, message.content["config"]["server-round"])
    metrics = MetricRecord({"num-examples": len(work.held[client])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """FedAvg that runs a round on request and reports its time."""

    def __init__(self, turns: Turns, share: float) -> None:
        super().__init__(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        self._turns = turns

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a round."""
        self._turns.wait()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
        """End the round."""
        arrays, metrics = super().aggregate_train(*args, **kwargs)
        self._turns.done()
        work = Work.load(FILE)
        model = work.new_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        self._turns.report(work.test_loss(model))
        return arrays, metrics


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run rounds until no more are requested."""
    del context
    work = Work.load(FILE)
    initial, timed = (
        ArrayRecord(work.new_model().state_dict()),
        Timed(Turns(f"Flower {flwr.__version__}"), work.per_round / CLIENTS),
    )
    with suppress(EOFError):
        timed.start(grid=grid, initial_arrays=initial, num_rounds=10**6)


if __name__ == "__main__":
    cores = os.cpu_count() or 1
    settings = {"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=settings)
