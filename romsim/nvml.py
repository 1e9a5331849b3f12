"""Energy and driver of an NVIDIA device, read through the driver's own library (NVML)."""

from __future__ import annotations

import ctypes
from types import TracebackType

from romsim_models.errors import RomsimError

__all__ = ["LIBRARY", "Nvml", "NvmlError"]

LIBRARY = "libnvidia-ml.so.1"

# Every call takes its arguments in these types and returns an int; nvmlReturn_t 0 is success.
_HANDLE = ctypes.c_void_p
_SIGNATURES = {
    "nvmlInit_v2": (),
    "nvmlShutdown": (),
    "nvmlSystemGetDriverVersion": (ctypes.c_char_p, ctypes.c_uint),
    "nvmlDeviceGetHandleByUUID": (ctypes.c_char_p, ctypes.POINTER(_HANDLE)),
    "nvmlDeviceGetTotalEnergyConsumption": (_HANDLE, ctypes.POINTER(ctypes.c_ulonglong)),
}


class NvmlError(RomsimError):
    """NVML is not there, or cannot tell what was asked."""


class Nvml:
    """The library, open: a context manager.

    Parameters
    ----------
    library
        Name or path of the shared library.

    Raises
    ------
    NvmlError
        If it cannot be loaded or does not start.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, types in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes = types
                function.restype = ctypes.c_int
            self._library.nvmlErrorString.argtypes = (ctypes.c_int,)
            self._library.nvmlErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError):
            raise NvmlError(
                f"NVML ({library}) must be there to measure energy, but it cannot be loaded; it "
                f"comes with NVIDIA's driver"
            ) from None
        self._call("nvmlInit_v2")

    def __enter__(self) -> Nvml:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._library.nvmlShutdown()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = self._library.nvmlErrorString(code)
            reason = text.decode(errors="replace") if text else "no reason"
            raise NvmlError(f"NVML must answer {name}, not refuse with {code} ({reason})")

    def driver(self) -> str:
        """Return the driver's version."""
        buffer = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def joules(self, uuid: str) -> float:
        """Return the energy that a device has taken since its driver was loaded, in J.

        Parameters
        ----------
        uuid
            As the driver writes it: ``GPU-`` and five groups of digits.

        Raises
        ------
        NvmlError
            If there is no such device, or it does not count energy (older parts and slices of a
            device do not).
        """
        handle = _HANDLE()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        return 1e-3 * millijoules.value
