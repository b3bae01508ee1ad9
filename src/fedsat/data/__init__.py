"""Datasets, where they come from, and how they are divided among clients."""

from fedsat.data.cache import cache_folder, is_cached
from fedsat.data.catalog import DATASETS, DatasetInfo
from fedsat.data.datasets import Dataset, Split
from fedsat.data.download import Reporter
from fedsat.data.federation import Federation
from fedsat.data.hsu import Hsu
from fedsat.data.inputs import Inputs
from fedsat.data.label_skew import LabelQuantitySkewMissingClasses, LabelSkew, LabelSkewMissingClasses
from fedsat.data.loading import load
from fedsat.data.objects import as_dataset
from fedsat.data.partition import FromFile, Iid, Natural, Partition, Quantity, make_partition, partitions
from fedsat.data.picture import draw
from fedsat.data.schema import Column, Columns, Schema
from fedsat.data.shards import Shards
from fedsat.data.sources import get
from fedsat.data.subsets import long_tailed, with_holdout
from fedsat.data.summary import Range, Summary

__all__ = [
    "DATASETS",
    "Column",
    "Columns",
    "Dataset",
    "DatasetInfo",
    "Federation",
    "FromFile",
    "Hsu",
    "Iid",
    "Inputs",
    "LabelQuantitySkewMissingClasses",
    "LabelSkew",
    "LabelSkewMissingClasses",
    "Natural",
    "Partition",
    "Quantity",
    "Range",
    "Reporter",
    "Schema",
    "Shards",
    "Split",
    "Summary",
    "as_dataset",
    "cache_folder",
    "draw",
    "get",
    "is_cached",
    "load",
    "long_tailed",
    "make_partition",
    "partitions",
    "with_holdout",
]
