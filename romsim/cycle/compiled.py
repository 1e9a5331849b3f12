"""Compilation of the kernels: one decorator, with a cache on disk that is never stale.

Numba keys a cached kernel by its own source and not by the functions that it calls, so a change of
a primitive would leave old machine code in use. Here the cache's folder is named after the SHA-256
of every kernel source of this package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba

__all__ = ["inlined", "kernel", "shared_kernel", "source_fingerprint"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FOLDER = Path(__file__).resolve().parent


@lru_cache(maxsize=1)
def source_fingerprint() -> str:
    """Return a digest of every kernel source of this package, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("kernels_*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def _cache_folder() -> str | None:
    """Return a folder that can be written, or ``None``: kernels are then compiled in each run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    configured = numba.config.CACHE_DIR
    for base in [configured] if configured else [_FOLDER / "__pycache__", Path(home) / "romsim"]:
        folder = Path(base) / f"kernels-{source_fingerprint()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    return None


def _compile(function: _Function, **options: Any) -> _Function:
    folder = _cache_folder()
    if folder is None:
        return numba.njit(**options)(function)  # type: ignore[no-any-return]  # numba is untyped
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder  # read when the decorator runs, and only then
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]  # untyped
    finally:
        numba.config.CACHE_DIR = before


def kernel(function: _Function) -> _Function:
    """Compile a kernel that one thread runs."""
    return _compile(function, error_model="numpy")


def shared_kernel(function: _Function) -> _Function:
    """Compile a kernel that several threads may run at once (see `romsim.cycle.workers`)."""
    return _compile(function, nogil=True, error_model="numpy")


def inlined(function: _Function) -> _Function:
    """Compile a primitive that kernels call; it has no cache of its own."""
    return numba.njit(error_model="numpy")(function)  # type: ignore[no-any-return]  # untyped
