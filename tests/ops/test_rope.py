"""What the grid cannot say of rope: layouts, queries alone, in place, the models' own formulas, what is said of wrong calls."""

import pytest
import torch

from rooftile.ops import attention, rope, rope_table, rotary_attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(device="cpu", b=2, h=4, g=2, t=7, d=16, length=32):
    q, k = torch.randn(b, h, t, d, device=device), torch.randn(b, g, t, d, device=device)
    return q, k, *rope_table(length, d, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_agree_and_keep_a_tokens_heads_together(device):
    q, k, cos, sin = drawn(device)
    out = rope(q, k, cos, sin)
    other = rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, layout="BTHD")
    for x, y in zip(out, other):
        assert torch.equal(x, y.transpose(1, 2)) and y.is_contiguous()
    assert torch.equal(rope(q, None, cos, sin), out[0])


@pytest.mark.parametrize("device", DEVICES)
def test_in_place_is_the_same_and_copies_nothing(device):
    q, k, cos, sin = drawn(device)
    packed = torch.cat([q, k], 1).transpose(1, 2)  # one projection, heads of q and k side by side
    views = packed[:, :, :4], packed[:, :, 4:]
    want = rope(q, k, cos, sin)
    out = rope(*views, cos, sin, layout="BTHD", inplace=True)
    for made, view, right in zip(out, views, want):
        assert made.data_ptr() == view.data_ptr() and torch.equal(view.transpose(1, 2), right)
    with pytest.raises(ValueError, match="inplace keeps nothing to go back to, but k requires"):
        rope(q, k.requires_grad_(), cos, sin, inplace=True)
    with torch.no_grad():
        rope(q, k, cos, sin, inplace=True)


def test_half_rotation_is_hugging_faces():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, cos, sin = drawn()
    at = torch.randint(0, 32, (2, 7))
    want = apply_rotary_pos_emb(q, k, *(torch.cat([t[at], t[at]], -1) for t in (cos, sin)))
    for x, y in zip(rope(q, k, cos, sin, at), want):
        torch.testing.assert_close(x, y)


def test_turning_back_is_the_gradient_and_the_inverse():
    q, k, cos, sin = (x.double() if x.dim() == 4 else x for x in drawn())
    q, k = q.float().requires_grad_(), k.float().requires_grad_()
    for interleaved in (False, True):
        out = rope(q, k, cos, sin, interleaved=interleaved)
        dq, dk = torch.autograd.grad(out, (q, k), [x.detach() for x in out])
        torch.testing.assert_close(dq, q.detach())
        torch.testing.assert_close(dk, k.detach())


def test_the_score_depends_on_the_distance_alone():
    q, k, cos, sin = drawn(h=1, g=1, t=1)
    for interleaved in (False, True):
        scores = [
            (rope(q, None, cos, sin, torch.tensor([a]), interleaved=interleaved) * rope(k, None, cos, sin, torch.tensor([a + 5]), interleaved=interleaved)).sum(-1)
            for a in (0, 9, 26)
        ]  # fmt: skip
        torch.testing.assert_close(scores[0], scores[1])
        torch.testing.assert_close(scores[0], scores[2])


def test_tables_of_far_positions_are_right():
    """A float32 angle of 10^6 radians would be wrong in its second digit."""
    cos, _ = rope_table(10**6 + 1, 2)
    assert abs(float(cos[10**6, 0]) - 0.9367521275331447) < 1e-7


@pytest.mark.gpu
def test_a_position_outside_the_table_is_nan_on_a_gpu():
    q, k, cos, sin = drawn("cuda")
    out, _ = rope(q, k, cos, sin, torch.tensor([0, 1, -1, 32, 4, 5, 31], device="cuda"))
    assert out.isnan().all((0, 1, 3)).tolist() == [False, False, True, True, False, False, False]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda a: a | {"positions": torch.tensor([[0, 1, 2, 3, 4, 5, 32]] * 2)}, "a position is 32, but the table has 32 rows"),
        (lambda a: a | {"positions": torch.tensor([-1] * 7)}, "a position is -1, but the table has 32 rows"),
        (lambda a: a | {"positions": torch.zeros(7, dtype=torch.int32)}, "positions is int32, takes int64"),
        (lambda a: a | {"cos": a["cos"][:5], "sin": a["sin"][:5]}, "there are 7 tokens, but the table has 5 rows"),
        (lambda a: a | {"cos": torch.ones(32, 9), "sin": torch.ones(32, 9)}, "the table turns 9 pairs, but D=16 has 8"),
        (lambda a: a | {"sin": a["sin"][:, :4]}, "N is 4 in sin, but 8 in cos"),
        (lambda a: a | {"k": a["k"][:, :, :5]}, "T is 5 in k, but 7 in q"),
        (lambda a: a | {"k": a["k"].bfloat16()}, "dtype is bfloat16 in k, but float32 in q"),
        (lambda a: a | {"q": a["q"][0]}, "q has 3 axes"),
        (lambda a: a | {"layout": "TBHD"}, "layout is 'TBHD', it takes BHTD or BTHD"),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    call = dict(zip(("q", "k", "cos", "sin"), drawn()))
    with pytest.raises(ValueError, match=said):
        rope(**change(call))


@pytest.mark.parametrize(
    "words, said", [((4, 3), "rotary_dim is 3"), ((-1, 2), "length is -1"), ((4, 0), "rotary_dim is 0"), ((4, 2, 0.0), "base is 0.0")]
)
def test_a_wrong_table_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        rope_table(*words)


def test_attention_turns_them_itself():
    """One operator from a layer's product on is rope and attention of its three parts, gradient and all; by positions too, and where no gradient is wanted."""
    gen = torch.Generator().manual_seed(0)
    qkv, dout = torch.randn(2, 7, 8, 16, generator=gen), torch.randn(2, 7, 4, 16, generator=gen)
    cos, sin = rope_table(9, 12)
    for positions in (None, torch.tensor([8, 0, 3, 3, 5, 1, 2])):
        ours, theirs = (qkv.clone().requires_grad_() for _ in range(2))
        out = rotary_attention(ours, cos, sin, positions, kv_heads=2, causal=True)
        q, k, v = theirs.split([4, 2, 2], 2)
        wanted = attention(*rope(q, k, cos, sin, positions, layout="BTHD"), v, causal=True)
        (dqkv,), (wanted_dqkv,) = (torch.autograd.grad(o, x, dout) for o, x in ((out, ours), (wanted, theirs)))
        torch.testing.assert_close(out, wanted, rtol=0, atol=0)
        torch.testing.assert_close(dqkv, wanted_dqkv)
        with torch.no_grad():
            assert torch.equal(rotary_attention(ours, cos, sin, positions, kv_heads=2, causal=True), out)


@pytest.mark.parametrize(
    "heads, words, said",
    [
        (8, {}, "qkv has 8 heads in all, no multiple of 3"),
        (8, {"kv_heads": 4}, "qkv has 8 heads in all, kv_heads is 4"),
        (8, {"kv_heads": 0}, "qkv has 8 heads in all, kv_heads is 0"),
        (9, {"kv_heads": 2}, "H is 5 in q, which is no multiple of G = 2 in k"),
        (8, {"kv_heads": 2, "rows": 6}, "there are 7 tokens, but the table has 6 rows"),
    ],
)
def test_heads_that_do_not_divide_are_refused(heads, words, said):
    kv_heads = {n: x for n, x in words.items() if n == "kv_heads"}
    with pytest.raises(ValueError, match=said):
        rotary_attention(torch.ones(1, 7, heads, 16), *rope_table(words.get("rows", 9), 16), **kv_heads)


@pytest.mark.parametrize(
    "shape, said", [((3, 7), "B is 3 in positions, but 2 in qkv"), ((2, 6), "T is 6 in positions, but 7 in qkv"), ((1, 2, 7), "positions")]
)
def test_positions_of_another_shape_are_refused(shape, said):
    with pytest.raises(ValueError, match=said):
        rotary_attention(torch.ones(2, 7, 6, 16), *rope_table(9, 16), torch.zeros(shape, dtype=torch.int64))


def test_few_axes_and_positions_of_another_batch_are_told():
    q, (cos, sin) = torch.zeros(2, 4, 5, 16), rope_table(8, 16)
    with pytest.raises(ValueError, match=r"q has 1 axes \[16\], needs 4 \[B H T D\]"):
        rope(q[0, 0, 0], None, cos, sin)
    with pytest.raises(ValueError, match="B is 3 in positions, but 2 in q"):
        rope(q, None, cos, sin, torch.zeros(3, 5, dtype=torch.int64))


TABLES = {
    "rope": lambda q, k, cos, sin: rope(q, k, cos, sin),
    "rotary_attention": lambda q, k, cos, sin: rotary_attention(torch.cat([q, q, q], 1).transpose(1, 2), cos, sin),
    "torch.ops": lambda q, k, cos, sin: torch.ops.rooftile.rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, None, False),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_trained_is_refused(name):
    """It was given None for a gradient, without a word. Where nobody asks for gradients it may require one."""
    *heads, cos, sin = drawn()
    call, trained = TABLES[name], sin.clone().requires_grad_()
    said = r"(rope|rotary_attention) has no gradient of sin, and sin requires one: call it under torch.no_grad\(\), or detach sin$"
    wanted = call(*heads, cos, sin)
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), pytest.raises(ValueError, match=said):
            call(*heads, cos, trained)
    with pytest.raises(ValueError, match=said):
        torch.vmap(lambda table: call(*heads, cos, table))(trained[None])
    with torch.no_grad():
        made = call(*heads, cos, trained)
    for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (made, wanted))):
        assert torch.equal(x, y) and not x.requires_grad


def test_a_table_as_long_as_a_compiled_function_is_told():
    table = torch.compile(lambda x: rope_table(x.shape[0], 4)[0], backend="eager", dynamic=True, fullgraph=True)
    assert all(torch.equal(table(torch.zeros(n, 2)), rope_table(n, 4)[0]) for n in (5, 7))


@pytest.mark.parametrize("heads", [2, 3])
def test_one_graph_for_any_number_of_sequences(heads):
    """`len` is a number, and made the batch one of the program's."""

    class Module(torch.nn.Module):
        def forward(self, x, positions):
            return rotary_attention(x, cos, sin, positions) if heads == 3 else rope(x, None, cos, sin, positions, layout="BTHD")

    cos, sin = rope_table(16, 8)
    first, other = ((torch.randn(b, t, heads, 8), torch.arange(t).expand(b, t).contiguous()) for b, t in ((4, 5), (7, 6)))
    dynamic = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    program = torch.export.export(Module(), first, dynamic_shapes=(dynamic, dynamic))
    assert torch.equal(program.module()(*other), Module()(*other))
