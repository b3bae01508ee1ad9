"""Compile `native.c` for this machine and load it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_double, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from platformdirs import user_cache_path

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
LIBRARIES = ("-lm",)
TYPES = {torch.float32: "float", torch.float64: "double"}

POINTERS = ("weight", "bias", "weight_slope", "bias_slope", "weight_pull", "bias_pull")
"""What a layer in C points to: the first client's tensor; a `step` is the distance to the next client's."""


LAYER = np.dtype(
    [
        *((name, np.int64) for name in ("channels", "height", "width", "outputs", "rows", "columns")),
        *((name, np.int64) for name in ("kernel_h", "kernel_w", "pad_h", "pad_w", "activation", "pool")),
        *((name, np.float64) for name in ("alpha", "rate")),
        *((kind, np.int64) for kind in POINTERS),
        *((f"{kind}_step", np.int64) for kind in POINTERS),
    ]
)
"""`Layer` in layers.h."""


class CJob(Structure):
    """`Job` in layers.h."""

    _fields_ = [
        ("layers", c_void_p),
        *((name, c_long) for name in ("depth", "clients", "batch")),
        ("x", c_void_p),
        *((name, c_long) for name in ("x_step", "sample_step")),
        ("kept", c_void_p),
        ("kept_step", c_long),
        ("logits", c_void_p),
        ("logits_step", c_long),
        ("scratch", c_void_p),
        ("next", c_long),
    ]


class CSensitive(Structure):
    """`Sensitive` in loss.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("logits", "labels", "counted", "shift", "mistakes", "losses", "slopes")),
        *((name, c_long) for name in ("clients", "batch", "classes")),
        *((name, c_long) for name in ("label_step", "label_sample", "counted_step", "counted_sample")),
        *((name, c_double) for name in ("least", "most")),
        *((name, c_long) for name in ("errors", "counting", "next")),
    ]


_JOB = [POINTER(CJob), c_long, c_void_p, c_void_p]
ARGUMENTS = {
    "kept_size": [c_void_p, *[c_long] * 3],
    "evaluation_scratch": [c_void_p, c_long],
    "backward_scratch": [c_void_p, *[c_long] * 2],
    "gather": [*[c_void_p] * 5, *[c_long] * 4, c_void_p, c_void_p],
    "sensitive": [POINTER(CSensitive), c_long, c_void_p, c_void_p],
    "forward": _JOB,
    "backward": _JOB,
}


@dataclass(frozen=True)
class Library:
    """The compiled functions, and torch's OpenMP library, whose threads run them."""

    functions: ctypes.CDLL
    openmp: ctypes.CDLL
    compiler: str
    """The compiler and its version."""

    def size(self, name: str, *given: object) -> int:
        """Return how many numbers the memory for a call takes, from one of the functions that say so."""
        return int(getattr(self.functions, name)(*given))

    def run(self, name: str, *given: object) -> None:
        """Run a function on torch's threads."""
        threads = torch.get_num_threads(), self.openmp.GOMP_parallel, self.openmp.omp_get_thread_num
        getattr(self.functions, name)(*given, *threads)


@cache
def library(dtype: torch.dtype) -> Library | None:
    """Return the functions for numbers of this type, or None if they cannot be compiled here."""
    try:
        command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, f"-DREAL={TYPES[dtype]}"]
        compiler = _output([command[0], "--version"]).partition("\n")[0]
        openmp = ctypes.CDLL(_loaded("libgomp"))
        functions = ctypes.CDLL(str(_compiled(command, compiler)))
    except (OSError, KeyError, ValueError, subprocess.CalledProcessError) as error:
        logger.debug("networks are not compiled: %s", error)
        return None
    for name, arguments in ARGUMENTS.items():
        getattr(functions, name).argtypes = arguments
        getattr(functions, name).restype = c_long
    return Library(functions, openmp, compiler)


def _compiled(command: list[str], compiler: str) -> Path:
    """Return the path of the compiled source, which is kept in the user's cache."""
    files = sorted(path for path in SOURCE.parent.iterdir() if path.suffix in (".c", ".h"))
    about = (*command, *LIBRARIES, compiler, _processor(), *(path.read_text(encoding="utf-8") for path in files))
    folder = user_cache_path("fedsat", appauthor=False) / "compiled"
    target = folder / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.so"
    if not target.is_file():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            made = Path(partial) / target.name
            _output([*command, str(SOURCE), *LIBRARIES, "-o", str(made)])
            made.chmod(0o700)
            made.replace(target)
    for path in (folder, target):
        found = path.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path} belongs to another user, or others may write to it")
    return target


def _output(command: list[str]) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    """Return what `-march=native` depends on: the processor's name and what it can do."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))))


def _loaded(name: str) -> str:
    """Return the path of a library that this process has loaded, torch's own if there are several."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = [path for line in lines if name in (path := line.rpartition(" ")[2])]
    site = str(Path(torch.__file__).parents[1])
    return min(paths, key=lambda path: not path.startswith(site))
