"""Who takes some calls that were timed, and how it deals them out, asked of tensors without memory: a choice that drifts is seen here."""

import pytest
import torch

from rooftile.workbench.explain import blank, imagined, operator

DEALT = (  # operator, part of the case's name, kernel, what its config says
    ("layernorm_backward", "M1_N1024-", "triton", {"rows": 1, "warps": 8, "per_sm": 1, "stages": 1}),
    ("layernorm", "M2048_N65536-", "cuda.v9_ahead", {"vecs": 8, "ahead": 8, "per": 5}),
    ("rmsnorm_backward", "M64_N8192-", "triton", {"rows": 1, "warps": 16, "per_sm": 1, "stages": 1}),
    ("geglu", "M1_N8192_", "triton", {"block": 256, "warps": 4}),
    ("geglu", "M64_N14336_", "triton", {"block": 1024, "warps": 4}),
    ("geglu", "M16384_N14336_K14336-bfloat16-approximate=tanh", "cuda.v2_vector", {"vecs": 2, "threads": 256}),
    ("cross_entropy_backward", "M32768_V256-", "triton", {"block": 1024, "warps": 4}),
    ("masked_softmax_backward", "causal=True", "cuda.v6_pipeline", {"per": 32}),
    ("masked_softmax_backward", "causal=False", "triton", {}),
    ("gemv", "M16_K4194304-", "cuda.v5_kept", {}),
    ("gemv_backward", "M4096_K4096-float16", "cuda.v4_split", {"per_sm": 2, "apart": 1}),
    ("gemv_backward", "M14336_K4096-float32", "cuda.v4_split", {"per_sm": 3, "apart": 1}),
    ("gemv_backward", "M16_K4194304-", "cuda.v4_split", {"per_sm": 3, "apart": 0}),
    ("grad_norm", "-bfloat16", "cuda.v5_norm_vector", {"vecs": 4, "threads": 256, "per": 6}),
    ("embedding_accumulate", "_N2048-bfloat16", "cuda.v5_dealt", {"tokens": 1, "span": 16}),
    ("embedding_accumulate", "_N768-bfloat16", "cuda.v5_dealt", {"tokens": 2, "span": 16}),
    ("bias_mask_scale_add", "M64_N4096-", "triton.dense", {"block": 1024, "warps": 4}),
    ("bias_mask_scale_add_backward", "M32768_N768-", "cuda.v3_pipeline", {"lanes": 128, "threads": 768, "stages": 8}),
    ("attention_mask", "to=bool", "cuda.v3_rows", {"rows": 2}),
    ("attention_mask", "to=bfloat16", "cuda.v3_rows", {"rows": 2}),
    ("concat_kv", "B4_T4096_", "cuda.v3_tokens", {"each": 1, "threads": 128}),
    ("concat_kv", "B64_T1_G8_D128_N64_S2048", "triton", {"tokens": 1, "heads": 8}),
    ("concat_kv", "B4_T512_", "cuda.v3_tokens", {"each": 1, "threads": 128}),
    ("concat_kv_e4m3", "B4_T512_", "cuda.v3_tokens", {"each": 1, "threads": 128}),
    ("segment_sum", "_N1-", "cuda.v7_warps", {"block": 256, "per_sm": 72}),
    ("segment_sum_backward", "_N1-", "cuda.v8_spread", {"block": 256, "tiles": 3}),
    ("segment_sum", "_N128-float32", "cuda.v6_runs", {"rows": 8, "runs": 2048}),
    ("segment_sum", "_N128-bfloat16", "cuda.v6_runs", {"rows": 4, "runs": 1024}),
    ("attention_decode", "B16_T1_H32_G8_D128_S8192_", "cuda.v2_fragments", {"warps": 16}),
    ("attention_decode_e4m3", "B64_T1_", "cuda.v2_fragments", {"warps": 4}),
    ("attention_decode", "B16_T8_", "triton", {"BLOCK_N": 128, "programs": 1, "num_warps": 4}),
)


@pytest.mark.parametrize("name, part, kernel, config", DEALT, ids=[f"{n}-{p}" for n, p, *_ in DEALT])
def test_as_it_was_timed(name, part, kernel, config):
    op = operator(name)
    case = next(c for c in op.spec.cases if "bench" in c.use and part in c.id and not c.id.startswith("host"))
    with imagined("cuda"):
        choice = op.choose(blank(op.spec, case, "cuda"))
    assert choice.kernel.name == kernel, choice.refused
    assert config.items() <= dict(choice.config).items()


def test_a_narrow_tile_has_no_more_warps_than_work():
    from rooftile.ops._shared.pointwise import warps

    wide, fine = {"block": 4096, "warps": 8}, {"block": 256, "warps": 4}
    assert [warps(block, wide) for block in (4096, 1024, 256, 64)] == [8, 4, 1, 1]
    assert [warps(block, fine) for block in (256, 128, 16)] == [4, 2, 1]


def test_why_gated_units_leave_few_elements_to_triton():
    op = operator("geglu")
    with imagined("cuda"):
        x = torch.empty(64, 128, dtype=torch.bfloat16, device="cuda")
        why = op.kernel("cuda.v2_vector").declines({"gate": x, "up": x, "approximate": "tanh"})
        assert why == "a result of 16384 bytes is a few small programs, of which Triton's are sooner through"
        x = torch.empty(4096, 2048, dtype=torch.bfloat16, device="cuda")
        assert op.kernel("cuda.v2_vector").declines({"gate": x, "up": x, "approximate": "tanh"}) is None
