"""A window's sides: how many keys a query sees on one."""

from numbers import Integral
from typing import Any

FARTHEST = 2**30  # beyond any sequence: 2**31 - 1 and sys.maxsize, by which some say all keys, go round where a kernel adds them to a place


def nearer(side: Any) -> Any:
    """So many keys, or as many as say all. Of what is no number, or stands for one in a trace, nothing is said."""
    return min(int(side), FARTHEST) if isinstance(side, Integral) else side
