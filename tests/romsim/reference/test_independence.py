from __future__ import annotations

import ast
from pathlib import Path


def test_the_reference_imports_nothing_that_it_is_compared_with(repository: Path) -> None:
    files = sorted((repository / "romsim" / "reference").glob("*.py"))
    assert len(files) >= 10
    others = {"romsim_compiler", "romsim_rtl", "numba", "amaranth"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                root = module.split(".")[0]
                assert root not in others, (file.name, module)
                if root == "romsim":
                    assert module.startswith("romsim.reference"), (file.name, module)
