from __future__ import annotations

import re
from pathlib import Path


def test_code_of_the_page_runs(repository: Path) -> None:
    text = (repository / "docs" / "area.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "docs/area.md", "exec"), names)
    assert {"area", "rates", "first", "where", "energy"} <= set(names)
