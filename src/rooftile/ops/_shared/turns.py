"""How many blocks take rows in turns."""

from rooftile.ops._shared.launch import cdiv


def evenly(groups: int, fit: int) -> int:
    """How many of the `fit` blocks that persist share the groups of rows, so that the last turn is not a few blocks' alone: fewer blocks are done as soon, and
    leave fewer partial rows."""
    return cdiv(groups, max(1, cdiv(groups, fit)))
