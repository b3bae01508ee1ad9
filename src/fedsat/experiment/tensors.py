"""Nested tensors in one safetensors file, written tensor by tensor with a checksum. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Union
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from fedsat.errors import FedsatError

Nested = dict[str, Union[Tensor, "Nested"]]
"""Tensors in nested dictionaries."""

KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
"""Names of dtypes in the format."""

METADATA = "__metadata__"
"""The place of texts in a file's header."""


def flatten(nested: Mapping[str, Any], path: str = "") -> tuple[dict[str, Tensor], list[str]]:
    """Return tensors by path, such as `clients/12/direction/0.weight`, and the paths of empty dictionaries."""
    flat: dict[str, Tensor] = {}
    empty: list[str] = []
    for name, inner in nested.items():
        place = f"{path}/{quote(name, safe='')}".lstrip("/")
        if isinstance(inner, Tensor):
            flat[place] = inner
        elif inner:
            tensors, nothing = flatten(inner, place)
            flat |= tensors
            empty += nothing
        else:
            empty.append(place)
    return flat, empty


def nest(flat: Mapping[str, Tensor], empty: Iterable[str]) -> Nested:
    """Invert `flatten`."""
    nested: Any = {}
    for place, leaf in [*flat.items(), *((place, {}) for place in empty)]:
        *path, last = map(unquote, place.split("/"))
        inner = nested
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = leaf
    return dict(nested)


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file and return its sha256.

    The library's own writer needs a second copy of everything in memory, and refuses tensors that share memory.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in KINDS:
            raise FedsatError(f"a file of tensors cannot hold {name}: its dtype is {tensor.dtype}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # alignment
    digest = hashlib.sha256()
    for piece in (len(text).to_bytes(8, "little"), text):
        file.write(piece)
        digest.update(piece)
    for tensor in tensors.values():
        if not tensor.numel():
            continue  # NumPy gives empty arrays a stride of 0, which `view` refuses
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        file.write(content)
        digest.update(content)
    return digest.hexdigest()


def read_tensors(path: Path, device: torch.device, under: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file on `device`, in the order written, each in its own memory.

    `under` selects those whose paths begin with a name, such as the trees of one client.

    Both matter for the last bits: sums over a model's tensors follow their order, and kernels depend on alignment.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 (not needed to train)

    names = [name for name in _header(path) if name != METADATA]
    if under:
        names = [name for name in names if name.startswith(f"{quote(under, safe='')}/")]
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name).to(device, copy=True) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def read_metadata(path: Path) -> dict[str, str]:
    """Return the texts in a file's header."""
    return dict(_header(path).get(METADATA, {}))


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header
