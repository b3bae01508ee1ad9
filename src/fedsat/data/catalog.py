"""The datasets with a name: contents, licence and checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsat.data.schema import Columns
from fedsat.entry_points import offers, package_of
from fedsat.errors import DataError, UsageError, unknown


class Arrays(NamedTuple):
    """A dataset as published: images [N, C, H, W] and labels [N], all uint8."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a dataset."""

    summary: str
    train_size: int
    test_size: int
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    origin: str
    licence: str
    sha256: tuple[str, ...]
    """Checksums of the decoded arrays in the order of `Arrays`, in C order, with channels last; of a table's file."""
    builtin: bool = False
    columns: Columns | None = None
    """The roles of a table's columns."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def verify(self, arrays: Arrays, where: str) -> Arrays:
        """Return `arrays` if their checksums are right, otherwise raise a `DataError` about `where`."""
        for name, array, expected in zip(Arrays._fields, arrays, self.sha256, strict=True):
            size = self.train_size if name.startswith("train") else self.test_size
            shape = (size, *self.input_shape) if name.endswith("images") else (size,)
            if array.shape != shape or array.dtype != np.uint8:
                raise DataError(f"{where}: {name} is {array.dtype} {list(array.shape)}; expected uint8 {list(shape)}")
            found = digest(array)
            if found != expected:
                raise DataError(f"{where}: {name} has sha256 {found[:12]}…; expected {expected[:12]}…")
        return arrays

    def verify_file(self, path: Path) -> None:
        """Check the file of a built-in table."""
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); install fedsat again") from error
        if found != self.sha256[0]:
            raise DataError(f"{path} is damaged; install fedsat again")


def digest(array: NDArray[np.uint8]) -> str:
    """Return the sha256 of an array, images with channels last, as in the published checksums."""
    if array.ndim == 4:
        array = array.transpose(0, 2, 3, 1)
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def info(name: str) -> DatasetInfo:
    """Return the description of a dataset, or raise an error with the nearest name."""
    if name in DATASETS:
        return DATASETS[name]
    if has_name(name):
        package = package_of(offers("datasets")[name])
        raise UsageError(f"the dataset {name} is made by the package {package}; fedsat neither downloads nor stores it")
    raise unknown("dataset", name, [*DATASETS, *offers("datasets")])


def has_name(name: str) -> bool:
    """Return whether a dataset has this name, here or in another package."""
    return name in DATASETS or name in offers("datasets")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MNIST_LICENCE = "Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0"
_CIFAR_LICENCE = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; to be cited when used"

DATASETS: dict[str, DatasetInfo] = {
    "mnist-mini": DatasetInfo(
        summary="handwritten digits, a tenth of MNIST",
        train_size=6000,
        test_size=1000,
        input_shape=(1, 28, 28),
        class_names=_names("0 1 2 3 4 5 6 7 8 9"),
        origin="drawn from MNIST by fedsat.data.builtin.make",
        licence=_MNIST_LICENCE,
        sha256=(
            "94cdb81a99b7b733782842952899aa28afb2811968d7abac7764b23ff28b3610",
            "965121c37afe2820a4a5b6b0ed0988628f16d38a3039915bb82ac2cdc9cd32f1",
            "0b285e3b4685d1f19058ede4f1bd1d04af81c3de2459bd54b2ed07ef623e0d75",
            "0e2dfc5487a0be4093f575761f584b0413c9b95f39b69036c8319c35e5c9777e",
        ),
        builtin=True,
    ),
    "clinics-synthetic": DatasetInfo(
        summary="invented patients of eight clinics with a rare outcome; a table",
        train_size=4006,
        test_size=994,
        input_shape=(35,),
        class_names=("event", "no event"),
        origin="drawn at random by fedsat.data.builtin.make_clinics",
        licence="the authors of fedsat; CC0 1.0",
        sha256=("8413f0def0251c2fe24cbfb1b6d9f2ea91af49afa90582912a27ad947cc7b3b1",),
        builtin=True,
        columns=Columns("outcome", "clinic", "split"),
    ),
    "mnist": DatasetInfo(
        summary="handwritten digits",
        train_size=60000,
        test_size=10000,
        input_shape=(1, 28, 28),
        class_names=_names("0 1 2 3 4 5 6 7 8 9"),
        origin="http://yann.lecun.com/exdb/mnist/",
        licence=_MNIST_LICENCE,
        sha256=(
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
    ),
    "fashion-mnist": DatasetInfo(
        summary="images of clothes",
        train_size=60000,
        test_size=10000,
        input_shape=(1, 28, 28),
        class_names=_names("t-shirt trouser pullover dress coat sandal shirt sneaker bag boot"),
        origin="https://github.com/zalandoresearch/fashion-mnist",
        licence="Zalando SE; MIT",
        sha256=(
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
    ),
    "cifar10": DatasetInfo(
        summary="photographs of animals and vehicles",
        train_size=50000,
        test_size=10000,
        input_shape=(3, 32, 32),
        class_names=_names("airplane automobile bird cat deer dog frog horse ship truck"),
        origin="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence=_CIFAR_LICENCE,
        sha256=(
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    "cifar100": DatasetInfo(
        summary="photographs in a hundred classes",
        train_size=50000,
        test_size=10000,
        input_shape=(3, 32, 32),
        class_names=_names(
            "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
            "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
            "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
            "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain "
            "mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain "
            "plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
            "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
            "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
        ),
        origin="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence=_CIFAR_LICENCE,
        sha256=(
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
        ),
    ),
}
"""All datasets with a name, the built-in one first."""
