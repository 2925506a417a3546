"""The tiles of queries of a call, listed on the device in the order in which programs that stay are to take them: how long ragged sequences are is
known nowhere else, and nobody waits to be told.

Longest sequence first, its last tiles first, in groups of heads whose keys lie in the L2 together: so a causal call ends with its shortest tiles.
Who takes which is decided by a counter in the list's first row; what a tile holds does not hang on it.
"""

import triton
import triton.language as tl

from rooftile.ops.attention.options_kernels import _span

FIELDS = 8  # of a row of the list


@triton.jit
def _lengths(gCu, i, N, total, RAGGED: tl.constexpr):
    """Of several sequences, what `_span` says of one."""
    lengths = N + i * 0
    if RAGGED:
        first = tl.minimum(tl.maximum(tl.load(gCu + i).to(tl.int32), 0), total)
        lengths = tl.minimum(tl.maximum(tl.load(gCu + i + 1).to(tl.int32), first), total) - first
    return lengths


@triton.jit(do_not_specialize=("B", "H", "T_", "S_", "total_q", "total_k", "most", "reach", "near", "taken"))
def list_tiles(gTiles, gCuQ, gCuK, B, H, T_, S_, total_q, total_k, most, reach, near, taken, RAGGED: tl.constexpr, BLOCK_M: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """Row 0: the next tile to take, of which `taken` are the programs' first, and how many there are. Row 1 + i, tile i: its first query, how many
    queries and keys its sequence has, where they begin in their tensors, batch, head. `reach`: keys that tiles worked on at a time meet; `near`:
    keys that the L2 holds. Program (i, j) writes pieces of sequence i, in 64-bit places: wrong offsets may add up to anything, and end at `most`."""
    i_b = tl.program_id(0)
    at_q, T = _span(gCuQ, i_b, T_, total_q, RAGGED)
    at_k, S = _span(gCuK, i_b, S_, total_k, RAGGED)
    before = tl.zeros([], tl.int64)
    everyone = tl.zeros([], tl.int64)
    for start in range(0, B, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = tl.minimum(i, B - 1)
        tiles = tl.where(i < B, tl.cdiv(_lengths(gCuQ, there, T_, total_q, RAGGED), BLOCK_M), 0).to(tl.int64)
        keys = _lengths(gCuK, there, S_, total_k, RAGGED)
        before += tl.sum(tl.where((keys > S) | ((keys == S) & (i < i_b)), tiles, 0))
        everyone += tl.sum(tiles)
    if i_b + tl.program_id(1) == 0:
        tl.store(gTiles, taken)
        tl.store(gTiles + 1, tl.minimum(everyone * H, most).to(tl.int32))
    together = 1  # heads
    while (H % (2 * together) == 0) & (2 * together * tl.minimum(S, reach).to(tl.int64) <= near):
        together *= 2
    tiles = tl.cdiv(T, BLOCK_M)
    for start in range(tl.program_id(1) * BLOCK, tiles * H, tl.num_programs(1) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = before * H + i
        at = gTiles + (place + 1) * 8
        mask = (i < tiles * H) & (place < most)
        tl.store(at, (tiles - 1 - i // together % tiles) * BLOCK_M, mask=mask)
        tl.store(at + 1, T + i * 0, mask=mask)
        tl.store(at + 2, S + i * 0, mask=mask)
        tl.store(at + 3, at_q + i * 0, mask=mask)
        tl.store(at + 4, at_k + i * 0, mask=mask)
        tl.store(at + 5, (i_b * 0 if RAGGED else i_b) + i * 0, mask=mask)
        tl.store(at + 6, i // (tiles * together) * together + i % together, mask=mask)
