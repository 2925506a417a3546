from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.attention.cuda_kernels import BACKWARD as CUDA_BACKWARD
from rooftile.ops.attention.cudnn_kernels import CUDNN, CUDNN_BACKWARD
from rooftile.ops.attention.gluon_kernels import KERNELS as GLUON
from rooftile.ops.attention.spec import SPEC
from rooftile.ops.attention.triton_kernels import KERNELS, KERNELS_BACKWARD

_attention = Op(
    SPEC,
    *GLUON,
    CUDNN,
    *KERNELS,
    backward=ranked((CUDNN_BACKWARD, *KERNELS_BACKWARD, *CUDA_BACKWARD), "cuda.v5_hopper", "cuda.v5_hopper_ordered"),
)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """out_i = sum_j p_ij v_j with p_i = softmax_j(scale q_i k_j), for every batch and head; the [T, S] matrix is never stored.

    Args:
        q: [B, T, H, D] float32, bfloat16 or float16. Strides are free where the last axis is dense; else it is copied.
        k, v: [B, S, H, D] of the same dtype.
        causal: query i sees keys j <= i + S - T, so that the last query sees every key.
        scale: 1/sqrt(D) if None.

    Returns:
        [B, T, H, D], dense, of q's dtype; scores, maxima and sums are float32. A query that sees no key gives zeros, and gets
        and gives no gradient. Where cuDNN or cuda.v5_hopper is chosen dq is summed by atomics; under
        torch.use_deterministic_algorithms(True), and where others are chosen, the backward repeats to the last bit.

    Raises:
        ValueError: shapes, dtypes or devices disagree; the message names both.

    Source: Dao, FlashAttention-2, 2023; the running softmax is Milakov and Gimelshein's, 2018.

    Example:
        >>> x = torch.ones(1, 2, 1, 16)
        >>> torch.equal(attention(x, x, x, causal=True), x)
        True
    """
    return _attention(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)[0]
