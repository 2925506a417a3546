"""The operators: one folder each, one line here."""

from triton import OutOfResources

from rooftile.core.kernel import too_large
from rooftile.core.replay import shorter
from rooftile.ops._shared.straight import straight
from rooftile.ops.adamw.api import AdamW, adamw, grad_norm
from rooftile.ops.array_increment.api import array_increment
from rooftile.ops.attention.api import attention, attention_qkvpacked, attention_varlen
from rooftile.ops.attention.huggingface import register_attention
from rooftile.ops.attention.rotary_api import rotary_attention
from rooftile.ops.attention.torch_api import MultiheadAttention, scaled_dot_product_attention
from rooftile.ops.attention_decode.api import attention_decode
from rooftile.ops.attention_mask.api import attention_mask
from rooftile.ops.bias_mask_scale_add.api import bias_mask_scale_add
from rooftile.ops.concat_kv.api import concat_kv
from rooftile.ops.cross_entropy.api import CrossEntropyLoss, cross_entropy
from rooftile.ops.dropout.api import Dropout, dropout
from rooftile.ops.dropout_add_norm.api import dropout_add_norm
from rooftile.ops.embedding.api import Embedding, embedding, tied_embedding
from rooftile.ops.gelu.api import GELU, gelu
from rooftile.ops.gemm.api import Linear, gemm, linear
from rooftile.ops.gemv.api import gemv
from rooftile.ops.glu.api import geglu, geglu_again, reglu, reglu_again, swiglu, swiglu_again
from rooftile.ops.layernorm.api import LayerNorm, add_layernorm, layernorm, stream_layernorm
from rooftile.ops.linear_add.api import linear_add
from rooftile.ops.linear_cross_entropy.api import LinearCrossEntropyLoss, linear_cross_entropy
from rooftile.ops.mlp.api import MLP, GatedMLP, gated_mlp, mlp
from rooftile.ops.quantize.api import (
    add_rmsnorm_quantize,
    dequantize,
    quantize,
    quantize_affine,
    rmsnorm_quantize,
    swiglu_quantize,
)
from rooftile.ops.reduce_sum.api import reduce_sum
from rooftile.ops.residual_add.api import residual_add
from rooftile.ops.rmsnorm.api import RMSNorm, add_rmsnorm, rmsnorm, stream_rmsnorm
from rooftile.ops.rope.api import rope, rope_table
from rooftile.ops.scan.api import scan
from rooftile.ops.segment_sum.api import segment_sum
from rooftile.ops.softmax.api import LogSoftmax, Softmax, log_softmax, softmax
from rooftile.ops.transpose.api import transpose
from rooftile.ops.vector_add.api import vector_add

too_large.append(OutOfResources)
shorter.append(straight)

__all__ = [
    "GELU",
    "MLP",
    "AdamW",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "MultiheadAttention",
    "RMSNorm",
    "Softmax",
    "adamw",
    "add_layernorm",
    "add_rmsnorm",
    "add_rmsnorm_quantize",
    "array_increment",
    "attention",
    "attention_decode",
    "attention_mask",
    "attention_qkvpacked",
    "attention_varlen",
    "bias_mask_scale_add",
    "concat_kv",
    "cross_entropy",
    "dequantize",
    "dropout",
    "dropout_add_norm",
    "embedding",
    "gated_mlp",
    "geglu",
    "geglu_again",
    "gelu",
    "gemm",
    "gemv",
    "grad_norm",
    "layernorm",
    "linear",
    "linear_add",
    "linear_cross_entropy",
    "log_softmax",
    "mlp",
    "quantize",
    "quantize_affine",
    "reduce_sum",
    "register_attention",
    "reglu",
    "reglu_again",
    "residual_add",
    "rmsnorm",
    "rmsnorm_quantize",
    "rope",
    "rope_table",
    "rotary_attention",
    "scaled_dot_product_attention",
    "scan",
    "segment_sum",
    "softmax",
    "stream_layernorm",
    "stream_rmsnorm",
    "swiglu",
    "swiglu_again",
    "swiglu_quantize",
    "tied_embedding",
    "transpose",
    "vector_add",
]
