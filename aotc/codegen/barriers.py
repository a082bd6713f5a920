"""Regions of code that a team runs, and the places where its threads wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aotc.codegen.sharing import Claim
from aotc.codegen.storage import Buffer


@dataclass(eq=False)
class Region:
    """Code without a barrier inside, and what its threads touch of the storage that they share.

    `position` is where it stands in the order of the generated code. A region that `leaves` may
    end the loop around it.
    """

    lines: list[str]
    reads: Mapping[Buffer, Claim | None]
    writes: Mapping[Buffer, Claim | None]
    position: int
    leaves: bool = False


@dataclass(eq=False)
class TeamBlock:
    """A loop, or a branch with its alternatives, that the whole team runs together."""

    arms: list[tuple[str, list[Item]]]  # the text before `{`, and what stands inside
    loops: bool


Item = Region | TeamBlock
# How a storage is named: buffers that share a place in the workspace have one name.
Storage = Callable[[Buffer], Hashable]
_Claims = dict[Hashable, frozenset[Claim | None]]


def barriers(items: Sequence[Item], storage: Storage) -> set[Region]:
    """Return the regions that must not begin before every thread has finished those before them.

    That is where two regions, at least one of which writes, touch the same storage, unless they
    claim the same part of it for each thread.
    """
    found: set[Region] = set()
    _Walk(storage).body(items, _Touched(), found)
    return found


def keep_apart(items: Sequence[Item], buffers: Sequence[Buffer]) -> None:
    """Lengthen the lives of `buffers`, so that no two that share a place need a barrier for it.

    A buffer then lives from the barrier before its first use to the one after its last.
    """
    before = {region.position for region in barriers(items, id)}
    loops = list(_loops(items))
    end = max((region.position for region in regions(items)), default=0)
    for buffer in buffers:
        assert buffer.first is not None
        last = min((each - 1 for each in before if each > buffer.last), default=end)
        for loop_first, loop_last in loops:
            if loop_first <= buffer.first and buffer.last <= loop_last <= last:
                # No barrier until the loop begins again.
                buffer.touch(loop_first)
        buffer.touch(last)


def regions(items: Sequence[Item]) -> Iterator[Region]:
    """Yield every region in order."""
    for item in items:
        if isinstance(item, Region):
            yield item
        else:
            for _, inner in item.arms:
                yield from regions(inner)


def _loops(items: Sequence[Item]) -> Iterator[tuple[int, int]]:
    """Yield the positions of the first and the last region of every loop."""
    for item in items:
        if isinstance(item, TeamBlock):
            inside = [region.position for region in regions([item])]
            if item.loops and inside:
                yield inside[0], inside[-1]
            for _, inner in item.arms:
                yield from _loops(inner)


@dataclass
class _Touched:
    """What may have been touched since the last barrier."""

    read: _Claims = field(default_factory=dict)
    written: _Claims = field(default_factory=dict)

    def copy(self) -> _Touched:
        return _Touched(dict(self.read), dict(self.written))

    def add(self, other: _Touched) -> None:
        for mine, theirs in ((self.read, other.read), (self.written, other.written)):
            for name, found in theirs.items():
                mine[name] = mine.get(name, frozenset()) | found

    def covers(self, other: _Touched) -> bool:
        pairs = ((self.read, other.read), (self.written, other.written))
        return all(
            found <= mine.get(name, frozenset())
            for mine, theirs in pairs
            for name, found in theirs.items()
        )

    def in_next_iteration(self) -> _Touched:
        """Return the same, said where loop variables have other values."""

        def said(claims: _Claims) -> _Claims:
            return {
                name: frozenset(None if each is None or each.varies else each for each in found)
                for name, found in claims.items()
            }

        return _Touched(said(self.read), said(self.written))


class _Walk:
    """Follows all paths through the code; every path into a region has what `touched` has."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.exits = _Touched()  # of the innermost loop, where regions inside leave it

    def body(self, items: Sequence[Item], touched: _Touched, found: set[Region]) -> None:
        """Add to `found` the regions that need a barrier, and bring `touched` to the end."""
        for item in items:
            if isinstance(item, Region):
                self._region(item, touched, found)
            elif item.loops:
                self._loop(item.arms[0][1], touched, found)
            else:
                self._branch(item, touched, found)

    def _region(self, region: Region, touched: _Touched, found: set[Region]) -> None:
        now = _Touched(self._named(region.reads), self._named(region.writes))
        if (
            _meet(now.written, touched.written)
            or _meet(now.written, touched.read)
            or _meet(now.read, touched.written)
        ):
            found.add(region)
            touched.read, touched.written = {}, {}
        touched.add(now)
        if region.leaves:
            self.exits.add(touched)

    def _named(self, claims: Mapping[Buffer, Claim | None]) -> _Claims:
        named: _Claims = {}
        for buffer, claim in claims.items():
            name = self.storage(buffer)
            named[name] = named.get(name, frozenset()) | {claim}
        return named

    def _loop(self, items: Sequence[Item], touched: _Touched, found: set[Region]) -> None:
        outer, entry = self.exits, touched.copy()
        while True:
            # An iteration follows the code before the loop or another iteration.
            self.exits, inside, end = _Touched(), set[Region](), entry.copy()
            self.body(items, end, inside)
            end = end.in_next_iteration()
            if entry.covers(end):
                break
            entry.add(end)
        found |= inside
        touched.add(end)  # beside what was before the loop, which may not run at all
        touched.add(self.exits.in_next_iteration())
        self.exits = outer

    def _branch(self, branch: TeamBlock, touched: _Touched, found: set[Region]) -> None:
        entry = touched.copy()
        if len(branch.arms) > 1:
            touched.read, touched.written = {}, {}
        for _, items in branch.arms:
            end = entry.copy()
            self.body(items, end, found)
            touched.add(end)


def _meet(some: _Claims, others: _Claims) -> bool:
    """Whether a thread may touch in `some` what another thread touches in `others`."""
    for name, claims in some.items():
        together = claims | others.get(name, claims)
        if name in others and (len(together) > 1 or None in together):
            return True
    return False
