"""NVML as a shared library: a small one, compiled here, answers in place of the driver's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from romsim.nvml import Nvml, NvmlError

SOURCE = r"""
#include <string.h>
static unsigned long long millijoules = 5000;
static int started = 0;
extern "C" {
int nvmlInit_v2(void) { return started++ ? 0 : START; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
  if (length < 9) return 7;
  strcpy(text, "580.12.3");
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  if (strcmp(uuid, "GPU-one") && strcmp(uuid, "GPU-old")) return 6;
  *handle = (void *)(strcmp(uuid, "GPU-old") ? 1 : 2);
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy) {
  if (handle == (void *)2) return 3;
  *energy = millijoules;
  millijoules += 2500;
  return 0;
}
}
"""


def build(folder: Path, start: int) -> str:
    source, library = folder / "nvml.cpp", folder / f"libnvml{start}.so"
    source.write_text(SOURCE)
    subprocess.run(
        ["g++", "-shared", "-fPIC", f"-DSTART={start}", "-o", str(library), str(source)], check=True
    )
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("nvml"), 0)


def test_driver_and_joules_are_read(library: str) -> None:
    with Nvml(library) as nvml:
        assert nvml.driver() == "580.12.3"
        before = nvml.joules("GPU-one")
        assert nvml.joules("GPU-one") - before == pytest.approx(2.5)


def test_device_that_counts_no_energy_is_told(library: str) -> None:
    message = (
        r"^NVML must answer nvmlDeviceGetTotalEnergyConsumption, not refuse with 3 "
        r"\(Not Supported\)$"
    )
    with Nvml(library) as nvml, pytest.raises(NvmlError, match=message):
        nvml.joules("GPU-old")


def test_unknown_device_is_told(library: str) -> None:
    message = r"^NVML must answer nvmlDeviceGetHandleByUUID, not refuse with 6 \(Unknown Error\)$"
    with Nvml(library) as nvml, pytest.raises(NvmlError, match=message):
        nvml.joules("GPU-two")


def test_library_that_does_not_start_is_told(tmp_path: Path) -> None:
    message = r"^NVML must answer nvmlInit_v2, not refuse with 9 \(Unknown Error\)$"
    with pytest.raises(NvmlError, match=message):
        Nvml(build(tmp_path, 9))


def test_machine_without_the_driver_is_told() -> None:
    message = (
        r"^NVML \(libnone\.so\.1\) must be there to measure energy, but it cannot be loaded; it "
        r"comes with NVIDIA's driver$"
    )
    with pytest.raises(NvmlError, match=message):
        Nvml("libnone.so.1")
