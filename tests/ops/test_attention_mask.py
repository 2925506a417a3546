"""What the grid cannot say of attention_mask: that attention under it is right, for repeated key heads too, and what is said of wrong calls."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import attention_mask
from rooftile.ops.attention_mask import cuda_kernels, reference


def by_hand(q, k, v, lengths, causal, repeats):
    """Every query head in its own loop, keys and values repeated and cut to their length."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                end = int(lengths[b, h // repeats])
                if causal:
                    end = min(end, t + k.shape[2] - q.shape[2] + 1)
                if end > 0:
                    out[b, h, t] = F.softmax(k[b, h // repeats, :end] @ q[b, h, t] / q.shape[-1] ** 0.5, 0) @ v[b, h // repeats, :end]
    return out


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.data())
def test_attention_under_it_is_attention_over_what_is_there(b, g, repeats, t, s, causal, data):
    lengths = torch.tensor(data.draw(st.lists(st.lists(st.integers(0, s), min_size=g, max_size=g), min_size=b, max_size=b)))
    q, k, v = torch.randn(b, g * repeats, t, 8), torch.randn(b, g, s, 8), torch.randn(b, g, s, 8)
    want = by_hand(q, k, v, lengths, causal, repeats)
    kr, vr = (x.repeat_interleave(repeats, 1) for x in (k, v))
    for to in (torch.bool, torch.float32):
        mask = attention_mask(lengths, t, s, causal=causal, repeats=repeats, to=to)
        out = F.scaled_dot_product_attention(q, kr, vr, attn_mask=mask).nan_to_num(0.0)
        torch.testing.assert_close(out, want)
    repeated = attention_mask(lengths.repeat_interleave(repeats, 1), t, s, causal=causal)
    assert torch.equal(repeated, attention_mask(lengths, t, s, causal=causal, repeats=repeats))


@pytest.mark.parametrize("queries, keys, causal, repeats, to", [
    (37, 64, True, 1, "bool"), (150, 32, True, 2, "bool"), (70, 16, True, 1, "bool"), (3, 4112, True, 1, "bool"), (9, 4128, False, 1, "bool"),
    (37, 24, True, 3, "bfloat16"), (5, 2056, True, 1, "float16"), (37, 20, True, 1, "float32"), (2, 0, True, 1, "bool"), (0, 16, False, 1, "bool"),
])  # fmt: skip
def test_rows_of_whole_vectors_and_lengths_that_there_are_not(queries, keys, causal, repeats, to, monkeypatch):
    """As on a GPU, where nobody looks: a length is taken for the nearest that there is. Of v3_rows every config, on both sides of a block's rows and lanes."""
    for module in (cuda_kernels, reference):
        monkeypatch.setattr(module, "check_lengths", lambda *a: None)
    lengths = torch.tensor([[-5, -(2**33) + 7], [keys // 2 + 1, 2**32 + 3], [1, keys + 1], [max(0, keys - 1), -(2**31) + keys]])
    call = (lengths, queries, keys, causal, repeats, to)
    want = reference.attention_mask(*call)
    for kernel in cuda_kernels.FORWARD:
        for config in kernel.configs or ({},):
            with simulator.active():
                assert kernel.refuse(dict(zip(OPS["attention_mask"].spec.signature.parameters, call))) is None
                assert torch.equal(kernel.bound(config)(*call), want), (kernel.name, config)


def test_who_takes_blocks_of_rows():
    """Few vectors of a head, or of all, Triton writes sooner; rows that end inside 16 bytes are not for it."""
    rows, names = OPS["attention_mask"].kernel("cuda.v3_rows"), OPS["attention_mask"].spec.signature.parameters

    def call(b, queries, keys, to="bool"):
        return dict(zip(names, (torch.zeros(b, 1, dtype=torch.int64), queries, keys, True, 1, to)))

    assert OPS["attention_mask"].kernels[0] is rows
    with simulator.active():
        assert rows.objection(call(8, 64, 1032)) == "a row ends 8 bytes past a multiple of 16, and it writes 16 bytes at a time"
        assert rows.objection(call(8, 64, 1032, "bfloat16")) is None
    assert rows.decline(call(64, 64, 1024)) is None
    assert "pay from" in rows.decline(call(63, 64, 1024)) and "a head has 255 vectors" in rows.decline(call(2**16, 255, 16))
    assert [rows.heuristic(call(8, *size))["rows"] for size in ((4096, 4096), (64, 64), (128, 64), (127, 64), (1, 4096))] == [2, 1, 2, 1, 1]
    long = (4096, "bfloat16"), (2048, "float32"), (2044, "float32")
    assert [rows.heuristic(call(8, 512, *how))["rows"] for how in long] == [2, 1, 2]


def test_one_length_a_sequence_makes_one_head():
    mask = attention_mask(torch.tensor([1, 3], dtype=torch.int32), 3)
    assert mask.shape == (2, 1, 3, 3) and mask.sum((1, 2, 3)).tolist() == [3, 9]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"lengths": torch.tensor([5])}, "a length is 5, but there are 4 keys"),
        ({"lengths": torch.tensor([-1])}, "a length is -1, but there are 4 keys"),
        ({"lengths": torch.tensor([1.0])}, "lengths is float32, takes int64, int32"),
        ({"lengths": torch.tensor(1)}, "lengths has 0 axes"),
        ({"lengths": [4]}, "lengths must be a tensor, got list"),
        ({"keys": -1}, "keys is -1, it must be 0 at least"),
        ({"repeats": 0}, "repeats is 0, it must be 1 at least"),
        ({"to": torch.int8}, "to is torch.int8, it takes torch.bool, torch.float32, torch.bfloat16, torch.float16"),
        ({"to": "bool"}, "to is 'bool', it takes torch.bool, "),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    with pytest.raises(ValueError, match=said):
        attention_mask(**{"lengths": torch.tensor([4]), "queries": 4, "keys": 4, **change})
