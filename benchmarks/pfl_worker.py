"""A process of pfl's simulation: one thread, clients' samples as tensors, no evaluation except ours."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from local import BATCH_SIZE, CLIENTS, EPOCHS, LR, Work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from turns import Turns


class Learner(nn.Module):
    """The model with the interface that pfl needs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a training batch."""
        return functional.cross_entropy(self.module.train()(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the metrics of a batch, which pfl requests only in the first round."""
        return {"loss": Weighted(float(functional.cross_entropy(self.module.eval()(x), y)) * len(y), len(y))}


class Timed(TrainingProcessCallback):
    """Runs a round on request and reports its time."""

    def __init__(self, turns: Turns, work: Work, module: nn.Module) -> None:
        self._turns, self._work, self._module = turns, work, module

    def on_train_begin(self, **_: Any) -> Metrics:
        """Begin the first round."""
        self._turns.wait()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """End a round and begin the next."""
        self._turns.done()
        self._turns.report(self._work.test_loss(self._module))
        self._turns.wait()
        return False, Metrics()


def main() -> None:
    """Run rounds until no more are requested."""
    torch.set_num_threads(1)
    work = Work.load(Path(sys.argv[1]))
    learner = Learner(work.new_model())
    users = FederatedDataset(
        lambda client: PyTorchTensorDataset(work.samples(client)),
        get_user_sampler("minimize_reuse", list(range(CLIENTS))),
    )
    first = os.environ["PFL_WORKER_RANK"] == "0"
    with suppress(EOFError):
        FederatedAveraging().run(
            NNAlgorithmParams(10**6, 10**6, work.per_round, None),
            SimulatedBackend(users, None),
            PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0)),
            NNTrainHyperParams(local_batch_size=BATCH_SIZE, local_num_epochs=EPOCHS, local_learning_rate=LR),
            NNEvalHyperParams(local_batch_size=None),
            [Timed(Turns(f"pfl {version('pfl')}"), work, learner.module)] if first else [],
            send_metrics_to_platform=False,
        )


if __name__ == "__main__":
    main()
