"""One product by the vendor, for operators that have products in them."""

import torch

from rooftile.cuda import cublaslt
from rooftile.ops._shared.reference import wide


def product(left, right, bias=None, *, dtype=None, out=None, add=None):
    """left right + bias, made in `out` or a new tensor of `dtype`; or left right + `add`, which is `out` itself, or a tensor of left's dtype. float32
    of 16-bit factors is not rounded on the way.

    PyTorch takes the first algorithm of cuBLASLt's heuristic; where another is known to be faster, it is asked for here. And PyTorch copies first what
    is added to, unless that is `out`: so that is asked for here as well.
    """
    bias = None if bias is None else bias.contiguous()  # beside one that is not dense PyTorch rounds the product first
    (m, k), n, kind = left.shape, right.shape[1], (dtype or left.dtype) if out is None else out.dtype
    ours = (add is not None and add is not out) or cublaslt.preferred(left.device, m, n, k)
    if ours and _read_as_they_lie(left, right, bias, kind) and all(t is None or cublaslt.rows_or_columns(t) for t in (out, add)):
        made = left.new_empty(m, n, dtype=kind) if out is None else out
        cublaslt.product(made, left, right, bias=bias, add=add)
        return made
    if bias is not None:
        return torch.addmm(bias, left, right) if out is None else torch.addmm(bias, left, right, out=out)
    low = left.dtype == kind
    if out is None:
        if add is not None:
            return torch.addmm(add, left, right)
        if low or left.is_cuda:
            return torch.mm(left, right) if low else torch.mm(left, right, out_dtype=dtype)
        return torch.mm(wide(left), wide(right))
    beta = int(add is not None)
    if low or left.is_cuda:
        more = {} if low else {"out_dtype": out.dtype}
        return torch.addmm(out, left, right, beta=beta, out=out, **more) if beta or more else torch.mm(left, right, out=out)
    return torch.addmm(out, wide(left), wide(right), beta=beta, out=out)


def _read_as_they_lie(left, right, bias, kind):
    """Whether cuBLASLt can."""
    if left.dtype == torch.float32 or right.shape[1] % 8 or cublaslt.off_gpu(left) is not None:
        return False
    if bias is not None and (kind != left.dtype or bias.data_ptr() % 16):
        return False
    return cublaslt.rows_or_columns(left) and cublaslt.rows_or_columns(right)
