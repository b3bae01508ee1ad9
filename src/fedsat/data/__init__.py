"""Datasets, where they come from, and how they are divided among clients."""

from fedsat.data.cache import cache_folder, is_cached
from fedsat.data.catalog import DATASETS, DatasetInfo
from fedsat.data.datasets import Dataset, Split
from fedsat.data.download import Reporter
from fedsat.data.federation import Federation, Range, Summary
from fedsat.data.label_skew import LabelQuantitySkewMissingClasses, LabelSkew, LabelSkewMissingClasses
from fedsat.data.loading import load
from fedsat.data.partition import FromFile, Iid, Natural, Partition, Quantity, make_partition, partitions
from fedsat.data.picture import draw
from fedsat.data.schema import Column, Columns, Schema
from fedsat.data.sources import get

__all__ = [
    "DATASETS",
    "Column",
    "Columns",
    "Dataset",
    "DatasetInfo",
    "Federation",
    "FromFile",
    "Iid",
    "LabelQuantitySkewMissingClasses",
    "LabelSkew",
    "LabelSkewMissingClasses",
    "Natural",
    "Partition",
    "Quantity",
    "Range",
    "Reporter",
    "Schema",
    "Split",
    "Summary",
    "cache_folder",
    "draw",
    "get",
    "is_cached",
    "load",
    "make_partition",
    "partitions",
]
