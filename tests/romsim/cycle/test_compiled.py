"""The kernel cache: named after the sources, optional, and out of the way of other Numba code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba

import romsim.cycle
from romsim.cycle.compiled import source_fingerprint
from romsim.cycle.kernels_matvec import matvec_exact

PACKAGE = Path(romsim.cycle.__file__).parent


def copy_package(folder: Path) -> Path:
    """A `romsim.cycle` of its own with the modules that kernels need."""
    target = folder / "romsim" / "cycle"
    target.mkdir(parents=True)
    (folder / "romsim" / "__init__.py").write_text("")
    (target / "__init__.py").write_text("")
    for name in ("compiled.py", "kernels_primitives.py", "kernels_dot.py", "kernels_vector.py"):
        shutil.copy(PACKAGE / name, target / name)
    return target


def run(folder: Path, code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


SCALE = (
    "import numpy as np\n"
    "from romsim.cycle.kernels_vector import scale_query\n"
    "x = np.array([3 << 19], np.int32)\n"
    "scale_query(x, 1)\n"
    "print(x[0], sum(scale_query.stats.cache_hits.values()))\n"
)


def test_a_changed_primitive_is_compiled_anew_in_every_kernel_that_calls_it(
    tmp_path: Path,
) -> None:
    package = copy_package(tmp_path)
    assert run(tmp_path, SCALE) == "2 0"  # 1.5, rounded to even
    assert run(tmp_path, SCALE) == "2 1"  # from the cache
    primitives = package / "kernels_primitives.py"
    text = primitives.read_text()
    changed = text.replace("return quotient + np.int64(rest", "return 9 + quotient + np.int64(rest")
    assert changed != text
    primitives.write_text(changed)
    assert run(tmp_path, SCALE) == "11 0"


def test_kernels_run_without_a_place_for_a_cache(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    (package / "__pycache__").write_text("not a folder")
    (tmp_path / "cache").write_text("not a folder")
    output = run(
        tmp_path, SCALE, XDG_CACHE_HOME=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1"
    )
    assert output == "2 0"


def test_the_cache_can_be_put_elsewhere(tmp_path: Path) -> None:
    copy_package(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    assert run(tmp_path, SCALE, NUMBA_CACHE_DIR=str(elsewhere)) == "2 0"
    (folder,) = elsewhere.iterdir()
    assert folder.name.startswith("kernels-")
    assert any(folder.rglob("*.nbi"))


def test_other_numba_code_keeps_its_own_cache() -> None:
    assert not numba.config.CACHE_DIR.endswith(source_fingerprint())
    assert source_fingerprint() in str(matvec_exact.stats.cache_path)  # type: ignore[attr-defined]  # a dispatcher
