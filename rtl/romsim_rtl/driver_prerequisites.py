"""What a simulation needs of the system, asked before anything is written."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from romsim_rtl.toolchain import ToolError, find_verilator

__all__ = ["check_tools", "has_zlib"]


def check_tools() -> None:
    """Refuse a machine on which no simulation can be built.

    Raises
    ------
    ToolError
        With the missing tool and what to install.
    """
    find_verilator()
    for name in ("g++", "make", "perl"):
        if shutil.which(name) is None:
            raise ToolError(
                f"{name} must be installed, not missing from PATH; apt-get install {name}"
            )


@cache
def has_zlib() -> bool:
    """Return whether a program that uses zlib can be built: FST waveforms are packed with it."""
    program = "#include <zlib.h>\nint main() { return zlibVersion()[0] == 0; }\n"
    command = ["g++", "-x", "c++", "-", "-o", "/dev/null", "-lz"]
    done = subprocess.run(command, input=program.encode(), capture_output=True, check=False)
    return done.returncode == 0
