"""From PyPTO source to a program of the IR and its call contract."""

from aotc.frontend.lower import Lowered, lower

__all__ = ["Lowered", "lower"]
