"""Which names a piece of Python may read before it binds them again: plain backward liveness."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

Names = frozenset[str]
NONE: Names = frozenset()


# Loops within loops ask for the same pieces again and again; a node is its own key.
@functools.lru_cache(1 << 14)
def used(node: ast.AST | None) -> Names:
    """Return the names that an expression reads."""
    if node is None:
        return NONE
    return frozenset(
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )


@functools.lru_cache(1 << 14)
def bound(target: ast.AST | None) -> Names:
    """Return the names that an assignment to `target` binds."""
    if target is None:
        return NONE
    return frozenset(
        each.id
        for each in ast.walk(target)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )


def live_before(statements: Sequence[ast.stmt], after: Names) -> Names:
    """Return the names live before `statements`, where those of `after` are live behind them."""
    for statement in reversed(statements):
        after = _before(statement, after)
    return after


def _before(statement: ast.stmt, after: Names) -> Names:
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                after = (after - bound(target)) | used(target)
            return after | used(value)
        case ast.AnnAssign(target=target, value=value, annotation=annotation):
            return (after - bound(target)) | used(value) | used(annotation)
        case ast.AugAssign(target=target, value=value):
            return after | bound(target) | used(target) | used(value)
        case ast.Return(value=value):
            return used(value)
        case ast.If(test=test, body=body, orelse=orelse):
            return live_before(body, after) | live_before(orelse, after) | used(test)
        case ast.For(target=target, iter=iterable, body=body):
            inside = live_in_loop(statement, after)
            return after | (inside - bound(target)) | used(iterable)
        case ast.While(test=test):
            return after | live_in_loop(statement, after)
        case ast.With(items=items, body=body):
            after = live_before(body, after)
            for item in reversed(items):
                after = (after - bound(item.optional_vars)) | used(item.context_expr)
            return after
    return after | used(statement)


def live_in_loop(loop: ast.For | ast.While, after: Names) -> Names:
    """Return the names live at the head of a loop's body, where it may run again or end."""
    head = after | (used(loop.test) if isinstance(loop, ast.While) else NONE)
    first = live_before(loop.body, head)
    target = bound(loop.target) if isinstance(loop, ast.For) else NONE
    return live_before(loop.body, head | (first - target)) | head


def assigned(statements: Sequence[ast.stmt]) -> Names:
    """Return the names that the statements may bind, or update by subscript."""
    names: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                names |= used(node.value)
    return frozenset(names)
