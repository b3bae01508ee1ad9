"""A dataset with feature shift: the images of each client are rotated and made noisy in its own way.

fedsat run --dataset feature_shift:load --partition natural --clients 20 --per-round 5

All clients have the same classes. The test set has the same shifts, so it shows how well one model serves all clients.
In Python: `fedsat.run(dataset=feature_shift.make(clients=20, most_degrees=45, most_noise=40))`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsat import Dataset, data
from fedsat.seeding import generator

Pixels = NDArray[np.uint8]


def load() -> Dataset:
    """Return the built-in digits, shifted for 20 clients."""
    return make(clients=20)


def make(
    source: str = "mnist-mini", *, clients: int = 20, most_degrees: float = 45, most_noise: float = 40, seed: int = 0
) -> Dataset:
    """Divide a dataset of images at random, and shift the images of each client.

    Angles are uniform in ±`most_degrees`; standard deviations of the noise are uniform up to `most_noise`, of 255.
    """
    whole = data.load(source)
    rng = generator(seed, "feature shift")
    angles = rng.uniform(-most_degrees, most_degrees, clients)
    noise = rng.uniform(0, most_noise, clients)
    owners, tested = (rng.permutation(np.arange(len(split)) % clients) for split in (whole.train, whole.test))
    x, x_test = (
        np.stack([shift(image, angles[k], noise[k], rng) for image, k in zip(split.images, who, strict=True)])
        for split, who in ((whole.train, owners), (whole.test, tested))
    )
    return Dataset.from_arrays(
        x,
        whole.train.labels,
        test=(x_test, whole.test.labels),
        clients=owners,
        class_names=whole.class_names,
        name=f"{source}, shifted",
    )


def shift(image: Pixels, degrees: float, noise: float, rng: np.random.Generator) -> Pixels:
    """Return an image [C, H, W] rotated counter-clockwise, with noise added."""
    turned = [np.asarray(Image.fromarray(channel).rotate(degrees, Image.Resampling.BILINEAR)) for channel in image]
    noisy: Pixels = np.clip(np.rint(turned + rng.normal(0, noise, image.shape)), 0, 255).astype(np.uint8)
    return noisy
