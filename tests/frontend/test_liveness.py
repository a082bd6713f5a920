"""Names that a piece of Python may read before it binds them again."""

from __future__ import annotations

import ast

import pytest

from aotc.frontend import liveness


@pytest.mark.parametrize(
    ("text", "after", "before"),
    [
        ("", "a", "a"),
        ("a = b", "a c", "b c"),
        ("a = a + 1", "a", "a"),
        ("a += b", "", "a b"),
        ("a[i] = b", "a", "a b i"),
        ("a, (b, c) = d", "a b c", "d"),
        ("a: T = b", "a", "T b"),
        ("return a\nb", "c", "a"),
        ("if a:\n    b = c\nelse:\n    b = d", "b", "a c d"),
        ("if a:\n    b = c", "b", "a b c"),
        ("for i in n:\n    a = b", "a", "a b n"),
        ("for i in n:\n    a = a + i", "", "a n"),
        ("for i in n:\n    a = b\n    b = c", "", "b c n"),
        ("while a < n:\n    a = a + b", "c", "a b c n"),
        ("with f(x) as t:\n    a = t", "a", "f x"),
        ("f(a)", "", "a f"),
    ],
)
def test_live_before(text: str, after: str, before: str) -> None:
    found = liveness.live_before(ast.parse(text).body, frozenset(after.split()))
    assert found == frozenset(before.split())


def test_assigned_are_names_and_updated_names() -> None:
    tree = ast.parse("a, b = 1, 2\nc[d] = 3\nfor e in x:\n    f += 1\nwith y as g:\n    pass")
    assert liveness.assigned(tree.body) == frozenset("a b c e f g".split())
