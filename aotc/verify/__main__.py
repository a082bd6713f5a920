"""The fresh processes that levels run in: one task on stdin, its answers on stdout."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aotc import child
from aotc.verify import numerics, recompile


def _answer(task: recompile.Task | numerics.Task) -> Iterator[msgspec.Struct]:
    match task:
        case recompile.Task():
            yield from recompile.answer(task)
        case numerics.Task():
            yield from numerics.answer(task)


if __name__ == "__main__":
    child.serve(recompile.Task | numerics.Task, _answer)
