from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.segment_sum import cuda_kernels, runs_kernels, spread_kernels, triton_kernels, warps_kernels
from rooftile.ops.segment_sum.spec import SPEC

# rows of one number are v7's, v5's and v4's alone
_segment_sum = Op(
    SPEC,
    *ranked(
        (*triton_kernels.FORWARD, *runs_kernels.FORWARD, *warps_kernels.FORWARD, *cuda_kernels.FORWARD),
        "cuda.v7_warps",
        "cuda.v5_laid",
        "cuda.v4_numbers",
        "cuda.v6_runs",
        "cuda.v3_balanced",
    ),
    backward=ranked(
        (*triton_kernels.BACKWARD, *spread_kernels.BACKWARD, *cuda_kernels.BACKWARD),
        "cuda.v8_spread",
        "cuda.v4_numbers",
        "cuda.v3_balanced",
    ),
)


def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
    """out[e] = sum of x[i] over offsets[e] <= i < offsets[e + 1].

    Args:
        x: [M, ...] float32, bfloat16 or float16, any strides; rows of one segment lie together.
        offsets: [E + 1] int32 or int64, not decreasing, between 0 and M. Rows before the first and from the last on are in no segment.

    Returns:
        [E, ...] in x's dtype; an empty segment is zeros. Sums are float32, in one fixed order without atomics: two runs give the same bits.
        The gradient of a row is its segment's, and zero for a row in none.

    Raises:
        ValueError: an offset outside x or a segment that ends before it begins, with both numbers (on a CPU; on a GPU, where looking would
        mean waiting, such a segment is NaN, and while offsets decrease anywhere the others are not defined); no offsets at all; x without
        axes; another dtype.

    Example:
        >>> segment_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 2, 3]))
        tensor([3., 0., 3.])
    """
    if not isinstance(x, Tensor) or x.dim() == 2:
        return _segment_sum(x, offsets)
    if x.dim() == 0:
        raise ValueError("segment_sum: x has 0 axes, needs 1 or more [M, ...]")
    shape = x.shape[1:]
    return _segment_sum(x.reshape(x.shape[0], shape.numel()), offsets).reshape(-1 if shape.numel() else offsets.numel() - 1, *shape)
