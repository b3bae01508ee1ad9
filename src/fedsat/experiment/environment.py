"""The machine that trains a run."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fedsat.errors import UsageError
from fedsat.version import __version__

DEVICES = "auto, cpu, cuda, cuda:N, cuda:all, or a list such as cuda:0,cuda:1"


def pick_devices(names: str) -> list[torch.device]:
    """Return the devices to train on: one, those of a list such as `cuda:0,cuda:2`, or all GPUs with `cuda:all`."""
    if names == "cuda:all":
        names = ",".join(f"cuda:{index}" for index in range(torch.cuda.device_count())) or "cuda"
    devices = [pick_device(name.strip()) for name in names.split(",")]
    on_gpus = [device.index or 0 for device in devices if device.type == "cuda"]
    if len(set(on_gpus)) < len(on_gpus) or 0 < len(on_gpus) < len(devices):
        raise UsageError(f"device is {names!r}; several devices must be different GPUs, or all be cpu")
    return devices


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device is {name!r}; it must be {DEVICES}") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UsageError(f"device is {name!r}; it must be {DEVICES}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device is {name!r}, but torch finds {torch.cuda.device_count()} CUDA devices here")
    return device


def processor() -> str:
    """Return the processor's name, which Linux provides only in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _command(program: Path, arguments: list[str]) -> str | None:
    """Return the command line of this process, if it is a command of fedsat."""
    if program.name == "__main__.py" and program.parent.name in ("fedsat", "reproduction"):
        return shlex.join(["python", "-m", program.parent.name, *arguments])
    return shlex.join(["fedsat", *arguments]) if program.name == "fedsat" else None


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware and command, which readers need to interpret the numbers."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "fedsat": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {hardware}",
        "threads": torch.get_num_threads(),
        "command": _command(Path(sys.argv[0]), sys.argv[1:]),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
