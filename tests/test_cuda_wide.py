"""16-byte rungs move 16 bytes an instruction: out of one assignment the compiler makes four where it no longer sees that they are neighbours."""

import re
import subprocess
from pathlib import Path

import pytest
from triton import knobs

from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source

OPS = Path(compiler.__file__).parents[1] / "ops"
KERNELS = [  # rung, instance, loads and stores of less than 16 bytes that it may have
    ("transpose/cuda/v5_vector.cu", "transpose<__half, 16, 16, 1>", 0),
    ("transpose/cuda/v5_vector.cu", "transpose<float, 16, 16, 2>", 0),
    ("reduce_sum/cuda/v5_vector.cu", "sum<__half, float, 512, 4>", 2),  # what is left after the last vector, and the block's sum
    ("reduce_sum/cuda/v5_vector.cu", "sum<double, double, 512, 4>", 2),
    ("gemv/cuda/v3_vector.cu", "gemv<__half, 2, 4>", 6),  # after the last vector each of two rows and x for it; two results
    ("gemv/cuda/v4_split.cu", "gemv<__half, __half, 256, 4, 2>", 9),
    ("gemv/cuda/v4_split.cu", "shares<__half>", 8),  # dout
    ("gemv/cuda/v5_kept.cu", "slices<__half>", 3),  # columns after the last vector; a slice's sum
    ("gemv/cuda/v4_split.cu", "product<__half>", 9),  # and what it adds up
    ("glu/cuda/v2_vector.cu", "gated<__half, Gelu, 2, 256>", 3),  # the last elements of an only row
    ("glu/cuda/v2_vector.cu", "gated_backward<__nv_bfloat16, Silu, false, 2, 256>", 5),
    ("glu/cuda/v2_vector.cu", "gated_backward<__nv_bfloat16, Silu, true, 2, 256>", 6),
    ("residual_add/cuda/v2_vector.cu", "add<__half, float, 2, 256>", 3),
    ("bias_mask_scale_add/cuda/v2_vector.cu", "forward<__half, float, 2>", 2),  # the mask: 8 bytes of two rows
    ("bias_mask_scale_add/cuda/v2_vector.cu", "backward<__half, 4>", 4),
    ("bias_mask_scale_add/cuda/v3_pipeline.cu", "backward<__half, 8>", 3),  # a block's sums
    (
        "_shared/cuda/sum_norm_v2_rows.cu",
        "forward<Dropped, __half, __half, __half, __half, true, true, true, 256, 2, 256>",
        3,
    ),  # seed, row's results
    ("_shared/cuda/sum_norm_v2_rows.cu", "backward<Dropped, __half, __half, __half, true, true, true, 256, 2, 256, 2>", 3),
    (
        "_shared/cuda/sum_norm_v2_rows.cu",
        "forward<Plain, __half, float, float, float, true, true, true, 64, 3, 64>",
        8,
    ),  # x and out: 8 bytes
    ("_shared/cuda/sum_norm_v2_rows.cu", "backward<Plain, __half, float, float, true, true, true, 64, 3, 64, 2>", 2),
    (
        "_shared/cuda/sum_norm_v3_pipeline.cu",
        "backward<Plain, __nv_bfloat16, __nv_bfloat16, float, true, true, true, true, 32, 3, 384, 2, 1, true>",
        9,
    ),  # two statistics of this row and the next; the sums of all warps
    (
        "softmax/cuda/v5_online.cu",
        "masked_softmax<__nv_bfloat16, true, true, 32, 0>",
        2,
    ),  # the mask, before a row is summed; of rows read again
    ("softmax/cuda/v6_pipeline.cu", "softmax_backward<__nv_bfloat16, SoftmaxGradient, true, 32, 4, 128, 1>", 0),
    ("embedding/cuda/v1_warp_row.cu", "gather<__nv_bfloat16, 8, 3, 2>", 2),  # the indices of two rows
    (
        "embedding/cuda/v2_balanced.cu",
        "sums<__nv_bfloat16, int, int, 8, 3, 4, true>",
        16,
    ),  # count, key, token and borders; borders of rows to clear, or what was dealt: where a part begins and ends, and 7 tokens
    (
        "adamw/cuda/v2_vector.cu",
        "adamw<float, float, float, float, false, false, 2, 256, false, true>",
        24,
    ),  # tables, rates; the last elements
    ("adamw/cuda/v5_norm_vector.cu", "squares<__nv_bfloat16, 4, 256>", 16),
    ("dropout/cuda/v2_vector.cu", "dropout<__nv_bfloat16, 1, 256>", 17),  # the seed; the last 8 one by one
    ("cross_entropy/cuda/v4_vector.cu", "cross_entropy_backward<__nv_bfloat16, 4, 128, 128, false>", 6),  # the row's numbers
    ("quantize/cuda/v2_vector.cu", "blocks<__nv_bfloat16, E4M3, 1, 128, 4, 4, 256>", 5),  # 8 bytes of values a vector; the scale
    ("quantize/cuda/v2_vector.cu", "blocks<__nv_bfloat16, E4M3, 128, 128, 256, 8, 256>", 9),
    ("quantize/cuda/v2_vector.cu", "extremes<__nv_bfloat16, false, 4, 1024>", 3),  # the last elements, two ends
    ("quantize/cuda/v2_vector.cu", "dequantize<E4M3, __nv_bfloat16, false, 4, 256>", 11),  # bytes, scales; the last
    ("quantize/cuda/v4_fused_rows.cu", "normed<__nv_bfloat16, __nv_bfloat16, E4M3, false, true, 0, true, true, 256, 4, 256>", 5),
    ("quantize/cuda/v4_fused_rows.cu", "gated<__nv_bfloat16, E4M3, 0, 512, 4, 512>", 5),
    ("segment_sum/cuda/v3_balanced.cu", "spread<float, long long, 4, 32>", 7),  # offsets
]


def machine_code(source, instance, tmp_path, arch="sm_90a") -> str:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiler.compiled(Source(OPS / source), instance, arch).cubin)
    return subprocess.run([knobs.nvidia.cuobjdump.path, "-sass", str(file)], capture_output=True, text=True, check=True).stdout


def instructions(source, instance, tmp_path) -> list[str]:
    return re.findall(r"\b(?:LDG|STG)\.[\w.]+", machine_code(source, instance, tmp_path))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("source, instance, narrow", KERNELS)
def test_accesses_of_16_bytes_stay_whole(source, instance, narrow, tmp_path):
    found = instructions(source, instance, tmp_path)
    assert [i for i in found if ".128" in i]
    assert len([i for i in found if ".128" not in i]) <= narrow, found


COPIES = [  # rungs whose copies into shared memory go with a policy, and instances that are launched; of the last three the address had to be masked
    ("scan/cuda/v5_pipeline.cu", "tiles<__nv_bfloat16, float, 4, 8, 6, 3, 2, false, true>", "sm_90a"),
    ("scan/cuda/v5_pipeline.cu", "tiles<float, float, 8, 8, 3, 2, 2, false, false>", "sm_90a"),
    ("cross_entropy/cuda/v7_cluster.cu", "cross_entropy_ahead<__nv_bfloat16, false, false, 8, 256>", "sm_90a"),
    ("cross_entropy/cuda/v7_cluster.cu", "cross_entropy_ahead<float, true, false, 8, 512>", "sm_100a"),
    ("cross_entropy/cuda/v6_ahead.cu", "cross_entropy_ahead<__nv_bfloat16, false, false>", "sm_90a"),
    ("cross_entropy/cuda/v6_ahead.cu", "cross_entropy_ahead<float, true, false>", "sm_100a"),
    ("rmsnorm/cuda/v6_pipeline.cu", "rmsnorm_backward<__nv_bfloat16, __nv_bfloat16, true, 1024, 1, 1024, 3>", "sm_100a"),
    ("layernorm/cuda/v6_pipeline.cu", "layernorm_backward<__nv_bfloat16, __nv_bfloat16, true, true, 32, 4, 256, 2, true>", "sm_100a"),
    ("layernorm/cuda/v6_pipeline.cu", "layernorm_backward<__nv_bfloat16, __nv_bfloat16, true, true, 512, 4, 512, 2, true>", "sm_120a"),
]


def astray(code: str) -> list[str]:
    """Copies into shared memory whose policy is in an odd register, where two are one policy: ptxas 13.0 makes such, and of their address the uniform half is
    another's, where a loop that asks for them is unrolled in part. The kernel ends with an illegal instruction."""
    return re.findall(r"LDGSTS[^;]*desc\[UR\d*[13579]\][^;]*;", code)


@pytest.mark.parametrize("source, instance, arch", COPIES)
def test_copies_into_shared_memory_go_where_they_are_told(source, instance, arch, tmp_path):
    code = machine_code(source, instance, tmp_path, arch)
    assert "LDGSTS" in code
    assert astray(code) == []


@pytest.mark.parametrize("dtype, read", [("float", 0), ("__half", 8)])
def test_the_gradients_of_gemv_stand_by_where_they_say(dtype, read, tmp_path):
    """Shares of dx are read after the wait, which a compiler may not know to order reads that it takes for constant. The writer comes before the first
    of the eight rows is read in float32, which has no room for it, and after the last in 16 bits."""
    words = re.findall(r"ACQBULK|PREEXIT|LDG\.E\.128[.\w]*", machine_code("gemv/cuda/v4_split.cu", f"product<{dtype}>", tmp_path))
    assert words[:3] == ["LDG.E.128.CONSTANT", "ACQBULK", "LDG.E.128.STRONG.SM"], words  # x, for who writes
    words = re.findall(r"PREEXIT|LDG\.E\.128", machine_code("gemv/cuda/v4_split.cu", f"shares<{dtype}>", tmp_path))
    assert words.index("PREEXIT") == read and len(words) == 9, words


@pytest.mark.parametrize(
    "source, instance",
    [
        ("embedding/cuda/v2_balanced.cu", "join<__nv_bfloat16, int, 4, false>"),
        ("cross_entropy/cuda/total.cu", "total"),
        ("segment_sum/cuda/v6_runs.cu", "join<float, int, 4>"),
        ("segment_sum/cuda/v7_warps.cu", "join<float, int>"),
    ],
)
def test_who_adds_up_asks_for_eight_before_one_is_added(source, instance, tmp_path):
    """Seen red: a loop of a load and an addition, unrolled, had a branch after each, and a trip to the L2."""
    steps = "".join(step[0] for step in re.findall(r"\b(?:LDG|FADD)\b", machine_code(source, instance, tmp_path)))
    assert "L" * 8 + "F" in steps and not re.search("(LF+){3}", steps), steps


# Kernels that stand by, an instance each, and how many loads of theirs may come before the wait: of what is older than the launch before.
STANDING_BY = [
    ("_shared/cuda/add_rows.cu", "add_rows<float, float, float, 4, 8>", 0),
    ("_shared/cuda/add_rows.cu", "add_rows<float, float, float, 1, 8>", 0),
    ("adamw/cuda/root.cu", "root", 0),
    ("attention/cuda/v5_hopper_backward.cu", "finish<__half, 64>", 0),
    ("attention_decode/cuda/v2_fragments.cu", "combine<__half, __half, 128>", 0),
    ("cross_entropy/cuda/total.cu", "total", 8),  # targets
    ("embedding/cuda/v2_balanced.cu", "join<__nv_bfloat16, int, 4, true>", 4),  # keys and borders
    ("embedding/cuda/v2_balanced.cu", "sums<float, int, int, 4, 4, 1, true, true>", 0),
    ("embedding/cuda/v5_dealt.cu", "sort<8>", 0),
    ("gemm/cuda/v2_sums.cu", "add_parts<__half>", 0),
    ("gemv/cuda/v4_split.cu", "join<float>", 0),
    ("gemv/cuda/v5_kept.cu", "join<__half>", 0),
    ("reduce_sum/cuda/v5_vector.cu", "join<float, float, 256>", 0),
    ("segment_sum/cuda/v4_numbers.cu", "join<float, long long, 16>", 0),
    ("segment_sum/cuda/v5_laid.cu", "join<float, long long, 16>", 0),
    ("segment_sum/cuda/v6_runs.cu", "join<float, long long, 4>", 2),  # offsets
    ("segment_sum/cuda/v6_runs.cu", "join<__nv_bfloat16, int, 1>", 2),
    ("segment_sum/cuda/v7_warps.cu", "join<float, int>", 0),
]
ELSEWHERE = {("v4_split", "product")}  # by a test of its own, which says where
OFTEN = {("v5_hopper_backward", "finish_ragged")} | {  # wait where they first read, in one branch of several
    (stem, name)
    for stem in ("v5_hopper_backward", "v7_hopper_latent_backward")
    for name in ("attention_backward", "attention_backward_windowed", "attention_backward_ragged")
}


@pytest.mark.parametrize("source, instance, older", STANDING_BY)
def test_who_stands_by_reads_what_was_written_for_it_after_the_wait(source, instance, older, tmp_path):
    """Seen red: what is open was loaded as what never changes, before the wait, and on a GPU the join read wherever the last call's bytes said."""
    before = re.split("ACQBULK", machine_code(source, instance, tmp_path), maxsplit=1)
    assert len(before) == 2 and len(re.findall(r"\bLDG[.\w]*", before[0])) <= older, re.findall(r"\bLDG.*", before[0])


def test_everybody_who_stands_by_is_looked_at():
    known = {(Path(source).stem, instance.split("<")[0]) for source, instance, _ in STANDING_BY} | ELSEWHERE | OFTEN
    early = {(path.stem, f.name) for path in OPS.rglob("*.cu") for f in Source(path).functions.values() if f.early}
    assert early - known == set() and known - early <= OFTEN


@pytest.mark.parametrize("causal", ["true", "false"])
def test_between_two_steps_of_80_queries_little_is_done(causal, tmp_path):
    """Where nothing multiplies, from the wait for a step's last product to the next one's first. Seen red: causal, 50 instructions, as the walk's end was brought
    to a uniform register and the places of keys and queries were made anew: a step took three hundredths longer."""
    code = machine_code(
        "attention/cuda/v5_hopper_backward.cu", f"attention_backward<__nv_bfloat16, 128, {causal}, false, false, 80>", tmp_path
    )
    lines = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", code)
    at = {int(address, 16): i for i, (address, _) in enumerate(lines)}
    words = [text for _, text in lines]
    loops = [
        (at[int(to[1], 16)], i)
        for i, text in enumerate(words)
        if (to := re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", text)) and int(to[1], 16) in at
    ]
    begin, end = min(((b, e) for b, e in loops if b < e and sum("HGMMA" in w for w in words[b:e]) > 10), key=lambda loop: loop[1] - loop[0])
    wait = max(i for i in range(begin, end) if "WARPGROUP.DEPBAR.LE gsb0, 0x0" in words[i])
    first = next(i for i in range(begin, end) if "HGMMA" in words[i])
    assert (end - wait) + (first - begin) < 42 and not [w for w in words[wait:end] if "R2UR" in w]
