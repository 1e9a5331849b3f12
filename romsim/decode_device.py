"""The device on which PyTorch decodes: whether it is there, and what a record says of it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from romsim.decode_record import Device
from romsim.nvml import Nvml, NvmlError
from romsim_models.errors import SpecError

__all__ = ["check_device", "describe_device"]


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises
    ------
    SpecError
        If it is neither ``cpu`` nor ``cuda``, or there is no CUDA device.
    """
    if device not in ("cpu", "cuda"):
        raise SpecError(f"Device must be cpu or cuda, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError(
            f"Device cuda must be there, but this PyTorch ({torch.__version__}) finds none; use "
            f"--device cpu, or a build of PyTorch for CUDA on a machine with a GPU"
        )


def describe_device(device: str) -> Device:
    """Return what a record says of a device: name, memory, driver, versions."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if device == "cpu":
        return Device(
            kind="cpu",
            name=_cpu_name(),
            n_threads=torch.get_num_threads(),
            memory_gb=None,
            driver=None,
            versions=versions,
        )
    properties = torch.cuda.get_device_properties(0)
    try:
        with Nvml() as nvml:
            driver = nvml.driver()
    except NvmlError:
        driver = None
    return Device(
        kind="cuda",
        name=properties.name,
        n_threads=None,
        memory_gb=properties.total_memory / 1e9,
        driver=driver,
        versions={**versions, "cuda": str(torch.version.cuda)},
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine() or "CPU"
