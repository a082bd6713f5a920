"""Where threads must wait, and where they need not: on regions made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.codegen.barriers import Item, Region, TeamBlock, barriers, keep_apart
from aotc.codegen.sharing import Claim, Columns, First, Rows, Touch, claims
from aotc.codegen.storage import Access, Arena, Buffer
from aotc.dtypes import FP32, INDEX
from aotc.ir.scalar import Scalar, ScalarVar, Symbol, index

X, Y = Buffer("x", FP32, None), Buffer("y", FP32, None)
START, WIDTH = index(0), index(64)
COLUMNS = Columns(WIDTH)


def window(buffer: Buffer, offset: Scalar = START) -> Access:
    return Access(buffer, offset, (index(64), index(1)))


def own(buffer: Buffer, offset: Scalar = START, extent: Scalar = WIDTH) -> Claim:
    return Claim(Columns(extent), window(buffer, offset), "j")


class Code:
    """Makes regions, in order."""

    def __init__(self) -> None:
        self.position = 0

    def region(
        self,
        reads: dict[Buffer, Claim | None] | None = None,
        writes: dict[Buffer, Claim | None] | None = None,
        leaves: bool = False,
    ) -> Region:
        self.position += 1
        for buffer in {**(reads or {}), **(writes or {})}:
            buffer.touch(self.position)
        return Region([], reads or {}, writes or {}, self.position, leaves)


def waits(items: Sequence[Item]) -> list[int]:
    """Return the positions of the regions that need a barrier."""
    return sorted(region.position for region in barriers(items, lambda buffer: buffer.name))


def loop(*items: Item) -> TeamBlock:
    return TeamBlock([("for (;;)", list(items))], loops=True)


def test_what_anyone_may_touch_is_waited_for() -> None:
    code = Code()
    write, read = code.region(writes={X: own(X)}), code.region(reads={X: None})
    assert waits([write, read]) == [2]
    assert waits([read, write]) == [1]
    assert waits([write, write]) == []
    assert waits([read, read]) == []
    anywhere = code.region(writes={X: None})
    assert waits([anywhere, anywhere]) == [3]


def test_a_thread_does_not_wait_for_what_it_has_itself() -> None:
    code = Code()
    write = code.region(writes={X: own(X)})
    same = code.region(reads={X: own(X)}, writes={Y: own(Y)})
    assert waits([write, same]) == []
    for other in (
        own(X, offset=index(64)),
        own(X, extent=index(48)),
        Claim(COLUMNS, window(X), "j / 16"),
        Claim(Rows((index(64),)), window(X)),
        Claim(First(), None),
    ):
        assert waits([write, code.region(reads={X: other})]) == [code.position]


def test_thread_0_needs_no_window() -> None:
    code = Code()
    first = Claim(First(), None)
    assert waits([code.region(writes={X: first}), code.region(reads={X: first})]) == []


def test_claims_of_several_touches() -> None:
    mine, all_rows = Touch(window(X), ("i0", "j")), Touch(window(X), ("r", "j"))
    assert claims(COLUMNS, [mine, all_rows]) == {X: own(X)}
    assert claims(COLUMNS, [mine, Touch(window(X), ("i0", "0"))]) == {X: None}
    assert claims(COLUMNS, [mine, Touch(window(X, index(1)), ("i0", "j"))]) == {X: None}
    assert claims(COLUMNS, [Touch(window(X), ("i0", "(j - 4)")), mine, mine]) == {X: None}
    rows = Rows((Symbol("M"),))
    assert claims(rows, [mine, Touch(window(X), ("i0", "3"))]) == {X: Claim(rows, window(X))}
    assert claims(rows, [mine, all_rows]) == {X: None}


def test_an_iteration_follows_another() -> None:
    code = Code()
    read, write = code.region(reads={X: None}), code.region(writes={X: own(X)})
    # Each waits for the other, the first one from the second iteration on.
    assert waits([loop(read, write)]) == [1, 2]
    assert waits([loop(write, write)]) == []


def test_a_window_that_moves_with_the_loop_is_another_one_in_the_next_iteration() -> None:
    code = Code()
    moving = own(X, offset=ScalarVar("i", INDEX))
    still = own(X, offset=Symbol("N"))
    both = code.region(reads={X: moving}, writes={X: moving})
    again = code.region(reads={X: moving})
    assert waits([both, again]) == []
    assert waits([loop(both, again)]) == [1]
    growing = own(X, extent=ScalarVar("n", INDEX))
    assert waits([loop(code.region(writes={X: growing}))]) == [3]
    assert waits([loop(code.region(writes={X: still}))]) == []


def test_a_loop_may_not_run_at_all() -> None:
    code = Code()
    write = code.region(writes={X: None})
    inside = [code.region(writes={Y: None}), code.region(reads={Y: None})]
    after = code.region(reads={X: None})
    assert waits([write, loop(*inside), after]) == [2, 3, 4]


def test_a_loop_may_be_left_in_the_middle() -> None:
    code = Code()
    write = code.region(writes={X: None})
    leave = code.region(leaves=True)
    inside = [code.region(writes={Y: None}), code.region(reads={Y: None})]
    after = code.region(reads={X: None})
    assert 5 in waits([loop(write, leave, *inside), after])


def test_branches_meet() -> None:
    code = Code()
    write = code.region(writes={X: None})
    waiting = code.region(reads={X: None})
    nothing = code.region(reads={Y: None})
    after = code.region(reads={X: None})
    both = TeamBlock([("if", [waiting]), ("else", [nothing])], loops=False)
    assert waits([write, both, after]) == [2, 4]
    alone = TeamBlock([("if", [waiting])], loops=False)
    assert waits([write, alone, after]) == [2, 4]


def test_storage_is_not_shared_where_that_needs_a_barrier() -> None:
    """`a` is dead when `c` begins, but no barrier is between them; `d` begins after one."""
    a, b, c, d = (Buffer(name, FP32, index(64)) for name in "abcd")
    code = Code()
    items = [
        code.region(writes={a: own(a)}),
        code.region(reads={a: own(a)}, writes={b: own(b)}),
        code.region(reads={b: own(b)}, writes={c: own(c)}),
        code.region(reads={c: None}, writes={d: own(d)}),
        code.region(reads={d: own(d)}),
    ]
    keep_apart(items, [a, b, c, d])
    Arena().place([a, b, c, d])
    assert len({a.slot, b.slot, c.slot}) == 3
    assert d.slot in (a.slot, b.slot)
    assert len(barriers(items, lambda buffer: buffer.slot)) == 1


def test_storage_of_the_end_of_a_loop_is_not_that_of_its_begin() -> None:
    a, b, c = (Buffer(name, FP32, index(64)) for name in "abc")
    code = Code()
    items = [
        loop(
            code.region(writes={a: own(a)}),
            code.region(reads={a: None}, writes={b: own(b)}),
            code.region(reads={b: None}, writes={c: own(c)}),
            code.region(reads={c: own(c)}),
        )
    ]
    keep_apart(items, [a, b, c])
    Arena().place([a, b, c])
    assert a.slot != c.slot
    assert len(barriers(items, lambda buffer: buffer.slot)) == 2
