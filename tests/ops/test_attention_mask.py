"""What the grid cannot say of attention_mask: that attention under it is right, for repeated key heads too, and what is said of wrong calls."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftile.ops import attention_mask


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
