"""Several devices: the clients of a round are shared among them.

Every device except the first has its own process and engine, because the current device, CUDA graphs and torch's
settings belong to a process. What the engines exchange passes through the memory of the CPU.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Algorithm, Model, Server, Updates
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.stacked import StackedEngine
from fedsat.errors import FedsatError, in_a_line
from fedsat.metrics import NO_DETAIL, ClassCounts, ClientAccuracy, Detail, Evaluation
from fedsat.rounds.local import TrainedRound
from fedsat.rounds.privacy import Protection
from fedsat.rounds.round import Traffic
from fedsat.seeding import Indices
from fedsat.tree import KeptStates

LocalEngine = SequentialEngine | StackedEngine


class SharedEngine:
    """Trains clients, and evaluates their models, on several devices. The first also evaluates global models."""

    def __init__(self, own: LocalEngine, peers: Sequence[Peer]) -> None:
        self.own, self.peers = own, list(peers)
        self.algorithm: Algorithm = own.algorithm
        self.device: torch.device = own.device
        self.initial_model: Model = own.initial_model
        self.protection: Protection = own.protection
        for peer in self.peers:
            result_of(peer.receive(self.device))  # the peer is ready, or reports why not

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return self.own.clients

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.own.class_names

    def train(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients; all devices get about the same number of steps."""
        training, sizes = self.own.training, self.own.federation.sizes
        shares = shared_out(
            [training.work_of(client, round_number, int(sizes[client]))[1] for client in clients.tolist()],
            1 + len(self.peers),
        )

        def request(places: list[int]) -> tuple[Any, ...]:
            own = {client: dict(states[client]) for client in clients[places].tolist() if client in states}
            return server, clients[places], own, round_number

        parts = self._on_all("train", [request(places) for places in shares])
        return TrainedRound.of(parts).take(np.argsort(np.concatenate(shares)).tolist())

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' samples; all devices get about the same number of models."""
        shares = shared_out([1] * len(workers), 1 + len(self.peers))
        parts = self._on_all("evaluate_workers", [(updates.take(places), workers[places]) for places in shares])
        return ClassCounts.of(parts).take(np.argsort(np.concatenate(shares)).tolist())

    def _on_all(self, function: str, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function of the first engines at once, each with its own arguments, and return the results."""
        asked = self.peers[: len(requests) - 1]
        for peer, request in zip(asked, requests[1:], strict=True):
            peer.send((function, request))
        try:
            own = getattr(self.own, function)(*requests[0])
        finally:  # even after an error, so that the next reply of a peer is to the next request
            replies = [peer.receive(self.device) for peer in asked]
        return [own, *map(result_of, replies)]

    def evaluate(
        self, models: Sequence[Model], client_accuracy: ClientAccuracy, detail: Detail = NO_DETAIL
    ) -> list[Evaluation]:
        """Evaluate global models on the test set and compute every client's accuracy with each."""
        return self.own.evaluate(models, client_accuracy, detail)

    def validate(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation:
        """Evaluate the global model on the clients' validation samples."""
        return self.own.validate(model, detail)

    def traffic(
        self, server: Server, sampled: int, responded: int, updates: Updates, counts: ClassCounts | None
    ) -> Traffic:
        """Return the bytes that a real federation would send."""
        return self.own.traffic(server, sampled, responded, updates, counts)

    def notes(self) -> dict[str, Any]:
        """Return further entries for the record of the current round."""
        return self.own.notes()

    def remembered(self) -> dict[str, Any]:
        """Return what a checkpoint must store of the engine."""
        return self.own.remembered()


def shared_out(work: Sequence[int], devices: int) -> list[list[int]]:
    """Divide places among devices, the largest piece of work first, each to the device with the least so far.

    The result has no empty parts, and the first is never empty.
    """
    parts: list[list[int]] = [[] for _ in range(devices)]
    loads = [0] * devices
    for place in sorted(range(len(work)), key=lambda place: -work[place]):
        device = loads.index(min(loads))
        parts[device].append(place)
        loads[device] += work[place]
    return [sorted(part) for part in parts if part]


class Peer:
    """The engine of another device, in a separate process, which ends with this one."""

    def __init__(self, make: Callable[[], LocalEngine], name: str, threads: int) -> None:
        self._name, self._requests = name, 0
        context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, make, threads), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, request: tuple[str, tuple[Any, ...]]) -> None:
        """Ask for a call of one of the engine's functions."""
        self._requests += 1
        try:
            self._connection.send_bytes(packed((self._requests, *request)))
        except OSError as error:
            raise self._lost() from error

    def receive(self, device: torch.device) -> Any:
        """Wait for the reply to the last request, a result or an error; GPU tensors come to this process's `device`.

        Replies to earlier requests are dropped: nobody waits for them any more after Ctrl-C.
        """
        try:
            while True:
                number, reply = unpacked(self._connection.recv_bytes(), device)
                if number == self._requests:
                    return reply
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> FedsatError:
        return FedsatError(f"the process of {self._name} was killed, perhaps for lack of memory")


def result_of(reply: Any) -> Any:
    """Return a peer's result, or raise its error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def serve(connection: Connection, make: Callable[[], LocalEngine], threads: int) -> None:
    """Make an engine and call its functions as the other process requests, until that process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the first one handles it
    torch.set_num_threads(threads)
    try:
        engine = make()
    except Exception as error:
        connection.send_bytes(packed((0, _told(error))))
        return
    connection.send_bytes(packed((0, None)))
    while True:
        try:
            number, function, arguments = unpacked(connection.recv_bytes(), engine.device)
        except (EOFError, OSError):
            return
        try:
            reply: Any = getattr(engine, function)(*arguments)
        except Exception as error:
            reply = _told(error)
        connection.send_bytes(packed((number, reply)))


def _told(error: Exception) -> FedsatError:
    return error if isinstance(error, FedsatError) else FedsatError(in_a_line(error))


class _Pickler(pickle.Pickler):
    """Stores tensors as arrays, and whether they were on a GPU."""

    def persistent_id(self, value: Any) -> tuple[np.ndarray[Any, Any], bool] | None:
        return (value.detach().cpu().numpy(), value.is_cuda) if isinstance(value, Tensor) else None


class _Unpickler(pickle.Unpickler):
    """Places the tensors that were on a GPU on this process's device."""

    def __init__(self, data: bytes, device: torch.device) -> None:
        super().__init__(io.BytesIO(data))
        self._device = device

    def persistent_load(self, stored: tuple[np.ndarray[Any, Any], bool]) -> Tensor:
        array, was_on_gpu = stored
        tensor = torch.from_numpy(array)
        return tensor.to(self._device) if was_on_gpu else tensor


def packed(value: Any) -> bytes:
    """Return an object with tensors as bytes."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes, device: torch.device) -> Any:
    """Return the object, with its tensors on the CPU or on this device."""
    return _Unpickler(data, device).load()
