"""Tests of real nodes run where Flower is installed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.federations import tiny_dataset

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny dataset of the engines' tests."""
    folder, dataset = tmp_path_factory.mktemp("clouds"), tiny_dataset(120)
    np.save(folder / "images.npy", dataset.train.images)
    np.save(folder / "labels.npy", dataset.train.labels)
    np.save(folder / "test_images.npy", dataset.test.images)
    np.save(folder / "test_labels.npy", dataset.test.labels)
    return folder
