"""`python -m aotc.toolchain.pypto`: one task in, its answer out (`aotc.child`)."""

from __future__ import annotations

from aotc import child
from aotc.toolchain.pypto.task import Task
from aotc.toolchain.pypto.worker import answer

child.serve(Task, answer)
