"""Rows that begin at whole 16 bytes, as the vendor's epilogues and the copy engine want them: made so, or why they cannot be."""

from rooftile.ops._shared.cuda import misaligned

VECTOR = 8  # elements of 16 bits in 16 bytes


def whole(x):
    """x, or a copy of it: rows of neighbours that begin at whole 16 bytes."""
    m, n = x.shape
    apart = x.stride(0) if m > 1 else n
    return x if x.stride(1) == 1 and apart >= n and apart % VECTOR == 0 and x.data_ptr() % 16 == 0 else x.contiguous()


def not_whole(call, names, rows, weight):
    """None, or why a product of these rows and this weight that reads `names` has nothing to read or begins elsewhere."""
    x, w = call[rows], call[weight]
    if x.numel() == 0 or w.numel() == 0:
        return f"there is nothing to compute: {rows} is {list(x.shape)}, {weight} {list(w.shape)}"
    for size in w.shape:
        if size % VECTOR:
            return f"{weight} is {list(w.shape)}: rows of {size} elements do not begin at whole 16 bytes, {size} is no multiple of {VECTOR}"
    return misaligned(16, {name: call[name] for name in names})
