"""Each test that docs/store.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_named_are_there() -> None:
    page = (ROOT / "docs/store.md").read_text(encoding="utf-8")
    named = re.findall(r"((?:tests/\w+/)?test_\w+\.py)|::(test_\w+)", page)
    assert len(named) > 10
    file = Path()
    for path, function in named:
        if path:
            file = ROOT / (path if "/" in path else f"tests/store/{path}")
            assert file.is_file(), path
        else:
            text = file.read_text(encoding="utf-8")
            assert re.search(rf"^def {function}\(", text, re.MULTILINE), function
