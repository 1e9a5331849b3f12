"""The example report: LLaMA-3-8B at 2 bits on ROMA's published chip, from its shape alone.

``python reports/example_report.py`` writes it anew into ``reports/examples``; a test holds it
current.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import romsim
from romsim.report.markdown import render_markdown
from romsim.report.output import render_json

OUT = Path(__file__).resolve().parent / "examples"


def examples() -> dict[str, str]:
    """Return the contents of the example's files by name."""
    with tempfile.TemporaryDirectory() as folder:
        description = romsim.compile(
            "llama-3-8b", Path(folder) / "chip", target="roma-7nm", weights="sym2g128"
        )
        report = romsim.build_report(description)
    name = "llama-3-8b-roma-7nm"
    return {f"{name}.md": render_markdown(report), f"{name}.json": render_json(report)}


def main() -> int:
    """Write the files."""
    OUT.mkdir(exist_ok=True)
    for name, text in examples().items():
        (OUT / name).write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
