import importlib
import math

import pytest
import torch

import processes
from rooftile import attention


def qkv(b=1, t=9, s=9, h=2):
    gen = torch.Generator().manual_seed(0)
    return tuple(torch.randn(b, n, h, 16, generator=gen, dtype=torch.float64).float() for n in (t, s, s))


def test_the_order_of_keys_is_no_matter_without_a_mask():
    q, k, v = qkv(s=13)
    order = torch.randperm(13)
    torch.testing.assert_close(attention(q, k[:, order], v[:, order]), attention(q, k, v))


def test_causal_ignores_the_future_bitwise():
    q, k, v = qkv()
    before = attention(q, k, v, causal=True)
    k[:, 5:], v[:, 5:] = 3.0, -7.0
    assert torch.equal(attention(q, k, v, causal=True)[:, :5], before[:, :5])


def test_the_last_query_sees_every_key():
    q, k, v = qkv(t=4, s=11)
    torch.testing.assert_close(attention(q, k, v, causal=True)[:, -1:], attention(q[:, -1:], k, v))


def test_a_query_that_sees_nothing_is_zero_and_takes_no_gradient():
    q, k, v = (x.requires_grad_() for x in qkv(t=7, s=3))
    out = attention(q, k, v, causal=True)
    assert not out[:, :4].any() and out[:, 4:].all()
    out.sum().backward()
    assert not q.grad[:, :4].any() and all(x.grad.isfinite().all() for x in (q, k, v))


def test_one_key_gives_its_value():
    q, k, v = qkv(s=1)
    torch.testing.assert_close(attention(q, k, v), v.expand(q.shape))


def test_the_default_scale():
    q, k, v = qkv()
    assert torch.equal(attention(q, k, v), attention(q, k, v, scale=1 / math.sqrt(16)))


@pytest.mark.parametrize("b, t, s, h", [(0, 3, 3, 1), (1, 0, 3, 1), (1, 3, 0, 1), (1, 3, 3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_empty(b, t, s, h, causal):
    q, k, v = (x.requires_grad_() for x in qkv(b, t, s, h))
    out = attention(q, k, v, causal=causal)
    assert out.shape == q.shape and not out.any()
    out.sum().backward()
    assert not any(x.grad.any() for x in (q, k, v))


def test_heads_that_share_keys_are_heads_on_keys_repeated():
    """And values of another width than keys."""
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, h, d, generator=gen).requires_grad_() for n, h, d in ((7, 6, 16), (9, 2, 16), (9, 2, 24)))
    shared = attention(q, k, v, causal=True)
    repeated = attention(q, *(x.repeat_interleave(3, 2) for x in (k, v)), causal=True)
    torch.testing.assert_close(shared, repeated)
    upstream = torch.randn(shared.shape, generator=gen)
    for ours, theirs in zip(*(torch.autograd.grad(out, (q, k, v), upstream) for out in (shared, repeated))):
        torch.testing.assert_close(ours, theirs)


def test_scores_that_overflow_exp():
    q, k, v = qkv()
    out = attention(q * 100, k * 100, v)
    assert torch.isfinite(out).all() and out.abs().max() <= v.abs().max()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda q, k, v: (q, k, v[:, :-1]), "S is 8 in v, but 9 in k"),
        (lambda q, k, v: (q, k[:, :, :1], v), "G is 2 in v, but 1 in k"),
        (lambda q, k, v: (q[:, :, :1], k, v), "H is 1 in q, which is no multiple of G = 2 in k"),
        (lambda q, k, v: (q, k.bfloat16(), v), "dtype is bfloat16 in k, but float32 in q"),
        (lambda q, k, v: (q[0], k, v), "needs 4"),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    with pytest.raises(ValueError, match=said):
        attention(*change(*qkv()))


INTERPRETED = """
import importlib, torch
from rooftile.workbench import interpreter
kernels = importlib.import_module("rooftile.ops.attention.triton_kernels")
reference = importlib.import_module("rooftile.ops.attention.reference")
f, b = {"BLOCK_M": 32, "BLOCK_N": 32}, kernels.BACKWARD_32[0]
def both(q, k, v, causal, scale=0.25, tol=2e-5):
    out, lse = kernels.attention(q, k, v, causal, scale, config=f)
    want, want_lse = reference.attention(q, k, v, causal, scale)
    torch.testing.assert_close(out, want, atol=tol, rtol=tol)
    torch.testing.assert_close(lse, want_lse)
    g = torch.ones_like(out)
    for x, y in zip(kernels.attention_backward(g, q, k, v, out, lse, causal, scale, config=b), reference.attention_backward(g, q, k, v, out, lse, causal, scale)):
        torch.testing.assert_close(x, y, atol=tol, rtol=tol)
torch.manual_seed(0)
draw = lambda t, s: tuple(torch.randn(1, n, 1, 16) for n in (t, s, s))
both(*draw(40, 7), True)      # most queries see nothing
both(*draw(5, 0), False)      # no keys at all
both(*draw(0, 5), True)       # no queries: zero gradients of k and v must still be written
q, k, v = draw(3, 33)
# lse near -400: the keys past the end score 0, and exp(0 - lse) is infinite. A score of 400 is known to 3e-5 in float32, its exp no better
both(q.abs() * 9, -k.abs() * 9, v, False, tol=2e-4)
q, k, v = draw(33, 33)
both(q * 60, k, v, True, tol=2e-3)   # scores beyond 88
"""


def test_the_kernels_at_their_edges():
    """Through the interpreter, in a child: what the grid's cases do not reach."""
    done = processes.run(code=INTERPRETED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


BY_TMA = """
import importlib, torch
from rooftile.workbench import check, interpreter
kernels = importlib.import_module("rooftile.ops.attention.triton_kernels")
reference = importlib.import_module("rooftile.ops.attention.reference")
torch.manual_seed(0)
pointers = kernels.by_tma
for t, s, h, g, causal in ((64, 64, 2, 1, True), (70, 100, 2, 2, True), (100, 40, 2, 1, True), (70, 70, 1, 1, False), (33, 64, 3, 3, False)):
    q, k, v = (torch.randn(2, n, heads, 128).bfloat16() for n, heads in ((t, h), (s, g), (s, g)))
    k = torch.cat([k, k], 2)[:, :, g:]  # a view: its rows lie further apart
    made = []
    for kernels.by_tma in (pointers, lambda *call: True):
        for told in check.before_run:
            told([k, v])  # a descriptor is no argument that it sees an address in
        made.append(kernels.attention(q, k, v, causal, 0.1, config={"BLOCK_M": 32, "BLOCK_N": 32}))
    (out, lse), (described, its) = made
    assert torch.equal(lse, its), (t, s, h, g, causal)
    torch.testing.assert_close(described, out, atol=0, rtol=2**-7)  # divided by the sum, or multiplied by one over it
    want, _ = reference.attention(q, k, v, causal, 0.1)
    torch.testing.assert_close(described, want, atol=8e-3, rtol=1e-2)
"""


def test_keys_by_descriptors_are_keys_by_pointers():
    """In one loop with its mask behind a branch, lse to the bit: also ragged, with queries that see nothing, heads that share keys, and keys in a view."""
    done = processes.run(code=BY_TMA, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


def test_where_keys_come_by_tma(monkeypatch):
    kernels = importlib.import_module("rooftile.ops.attention.triton_kernels")
    arch = 90
    monkeypatch.setattr(kernels, "architecture", lambda x: arch)

    def by_tma(t=4096, h=16, d=128, dv=128, dtype=torch.bfloat16, causal=True, past=0):
        q, k, v = (torch.empty(1, t, h, w, dtype=dtype, device="meta") for w in (d, d, dv))
        if past:
            k = torch.empty(k.numel() + past, dtype=dtype)[past:].view(k.shape)  # not where the engine can read
        return kernels.by_tma(q, k, v, causal)

    assert by_tma() and by_tma(t=2048, causal=False) and by_tma(dtype=torch.float16)
    assert not by_tma(t=2048)  # over before its descriptors are made
    assert not by_tma(d=96, dv=96) and not by_tma(dv=64) and not by_tma(dtype=torch.float32) and not by_tma(past=1)
    arch = 100
    assert not by_tma()


TURNS = """
import torch, triton, triton.language as tl
from rooftile.workbench import interpreter
from rooftile.ops.attention.one_pass_kernels import _turn

@triton.jit
def turns(gTile, gHead, tiles, BASE, LARGER):
    i = tl.program_id(0)
    i_tile, i_bh = _turn(i, tiles, BASE, LARGER)
    tl.store(gTile + i, i_tile)
    tl.store(gHead + i, i_bh)

for heads, groups, tiles in ((7, 3, 4), (6, 3, 2), (5, 1, 3), (4, 4, 5), (9, 4, 1)):
    tile, head = torch.empty(2, heads * tiles, dtype=torch.int32)
    turns[(heads * tiles,)](tile, head, tiles, *divmod(heads, groups))
    wanted, first = [], 0
    for group in range(groups):
        size = heads // groups + (group < heads % groups)
        wanted += [(t, first + h) for t in range(tiles) for h in range(size)]
        first += size
    assert list(zip(tile.tolist(), head.tolist())) == wanted, (heads, groups, tiles)
"""


def test_one_pass_goes_through_even_groups_of_heads_by_tiles():
    done = processes.run(code=TURNS, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


COMPILED = """
import importlib, re, subprocess, tempfile, torch, triton
from pathlib import Path
from triton.runtime import driver
from rooftile.workbench import dry

stand_in = dry.StandIn(90)
driver.set_active(stand_in)
load = stand_in.utils.load_binary
code = {}
def keep(name, cubin, shared, device):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        code[name] = subprocess.run([str(tool), "-sass", file.name], capture_output=True, text=True, check=True).stdout
    return load(name, cubin, shared, device)
stand_in.utils.load_binary = keep
x, lse = torch.empty(1, 1024, 16, 128, dtype=torch.bfloat16, device="meta"), torch.empty(1, 16, 1024, device="meta")
one_pass = importlib.import_module("rooftile.ops.attention.one_pass_kernels")
for causal in (False, True):
    one_pass.attention_backward(x, x, x, x, x, lse, causal, 0.1, config=one_pass.CONFIGS[0])
    went = re.findall("HGMMA[.]64x[0-9]*|UTMAREDG|WARPGROUP[.]DEPBAR|LDGDEPBAR|DEPBAR|STG", code["_pass"])
    before, behind = went[went.index("HGMMA.64x64") : went.index("UTMAREDG")], went[went.index("UTMAREDG") :]
    assert before.count("DEPBAR") == 1, before  # a step waits for the dq before its own: all it loads came before its first product
    behind = behind[: behind.index("WARPGROUP.DEPBAR")]
    assert behind.count("HGMMA.64x128") == 4 and "LDGDEPBAR" in behind, behind  # dk of 64 queries, and the next tiles are asked for, before anything is waited for
"""


def test_one_pass_makes_dk_while_dq_goes_out():
    """In the machine code for Hopper: dq's addition has begun, dk's products run, and none of them is waited for before the next tiles are asked for.
    What a step loads is waited for once."""
    done = processes.run(code=COMPILED, ROOFTILE_DRY_GPU="1")
    assert done.returncode == 0, done.stderr[-3000:]
