"""Partial rows added up in one order, in CUDA C++: the last step of a parameter's gradient without atomics."""

from torch import Tensor

from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, power_of_2

ADD_ROWS = Source.beside(__file__, "add_rows.cu")


def add_rows(partial: Tensor, *sums: Tensor) -> None:
    """Of up to three `sums` each [N] = the sum over the rows of its part of partial [parts, P, N], float32, in one fixed order; of two an empty one is
    left out. A row is split among a thousand blocks at most, of 8 lanes across it at least: as many lanes more work on further rows."""
    p, n, wanted = partial.shape[:-1].numel() // len(sums), partial.shape[-1], [i for i, s in enumerate(sums) if s.numel()]
    if not wanted:
        return
    columns = 4 if n % 4 == 0 else 1
    across = min(32, max(8, power_of_2(cdiv(n * len(wanted), 1024 * columns))))
    to = (*sums, sums[-1], sums[-1])[:3]
    instance = f"add_rows<{', '.join(CTYPE[t.dtype] for t in to)}, {columns}, {across}>"
    launch(ADD_ROWS, instance, (cdiv(n, across * columns), len(wanted)), 256, *to, partial, p, n, wanted[0])
