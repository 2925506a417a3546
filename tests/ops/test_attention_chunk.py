"""What the grid cannot say of attention_decode's many queries: whose attention a prompt in chunks is, who takes it, wrong kernels of its own kind."""

import json

import pytest
import torch

import processes
from rooftile.core.kernel import OPS
from rooftile.ops import attention, attention_decode
from rooftile.ops.attention_decode.spec import QUERIES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [16, 64])
def test_a_prompt_in_chunks_over_pages_is_attention(page, device):
    """Each chunk's keys go into the pages that the table names, then its queries ask; what no page holds yet is NaN."""
    b, s, chunk, h, g, d = 2, 215, 48, 6, 2, 32
    q, k, v = (torch.randn(b, s, n, d, device=device) for n in (h, g, g))
    want, want_lse = attention(q, k, v, causal=True, return_lse=True)
    each = -(-s // page)
    pages = [torch.full((b * each, page, g, d), torch.nan, device=device) for _ in "kv"]
    table = torch.randperm(b * each, device=device).int().view(b, each)
    made = []
    for first in range(0, s, chunk):
        place = torch.arange(first, min(first + chunk, s), device=device)
        for cache, new in zip(pages, (k, v)):
            cache[table[:, place // page].long(), place % page] = new[:, place]
        lengths = torch.full((b,), first + len(place), dtype=torch.int32, device=device)
        made.append(attention_decode(q[:, place], *pages, lengths, block_table=table, return_lse=True))
    assert [x.shape[1] for x, _ in made] == [48, 48, 48, 48, 23]
    torch.testing.assert_close(torch.cat([x for x, _ in made], 1), want)
    torch.testing.assert_close(torch.cat([x for _, x in made], 2), want_lse)


@pytest.mark.parametrize("bits", [16, 8])
def test_who_takes_how_many(bits):
    """Everybody says so of more, or of fewer, than it is for; what walks all keys for each query is never asked for a chunk."""
    op = OPS["attention_decode" + "_e4m3" * (bits == 8)]
    cache = torch.zeros(1, 64, 2, 128, dtype=torch.uint8 if bits == 8 else torch.bfloat16)
    for t in (QUERIES, QUERIES + 1):
        rest = dict.fromkeys(op.names) | {"scale": 1.0, "window": 0, "softcap": 0.0}
        call = rest | {"q": torch.zeros(1, t, 2, 128, dtype=torch.bfloat16), "k_cache": cache, "v_cache": cache}
        call["lengths"] = torch.full((1,), 64, dtype=torch.int32)
        for kernel in op.kernels[:-1]:
            said, many = kernel.refuse(call) or "", "chunk" in kernel.name
            told = said.startswith(f"{t} queries a sequence")
            assert told == (many == (t <= QUERIES)), (kernel.name, said)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, d, who", [("bfloat16", 128, "chunk"), ("float16", 256, "chunk_wide"), ("float32", 64, "chunk_float32")])
def test_who_is_chosen(dtype, d, who):
    q, cache = (torch.zeros(1, n, 2, d, dtype=getattr(torch, dtype), device="cuda") for n in (QUERIES + 1, 64))
    lengths = torch.full((1,), 64, dtype=torch.int32, device="cuda")
    choice = OPS["attention_decode"].choose(q, cache, cache, lengths, None, None, 1.0, 0, 0.0)
    assert choice.kernel.name == f"triton.{who}"


EDGES = """
import torch
from rooftile.workbench import inputs, interpreter
from rooftile.core.kernel import OPS
import rooftile.ops
op = OPS["attention_decode"]
torch.manual_seed(0)
int32 = lambda *x: torch.tensor(x, dtype=torch.int32)
def both(b, t, h, g, d, lengths, cache, table=None, sinks=None, scale=0.25, window=0, config=None):
    q, (k, v) = torch.randn(b, t, h, d), (torch.randn(*cache, g, d) for _ in range(2))
    kernel, rest = op.kernel("triton.chunk_float32"), (q, k, v, lengths, table, sinks, scale, window, 0.0)
    assert kernel.refuse(dict(zip(op.names, rest))) is None
    return kernel.run(*rest, config=config or kernel.configs[0]), lambda: op.spec.reference(*rest)
def same(*args, off=1e-5, **more):
    made, want = both(*args, **more)
    torch.testing.assert_close(made, want(), rtol=off, atol=off)
same(1, 17, 1, 1, 16, int32(40), (1, 40), scale=-3.0, sinks=torch.tensor([-torch.inf]))  # a negative scale, a sink of nothing
same(1, 50, 1, 1, 16, int32(50), (1, 50), scale=400.0, off=1e-3)                         # scores of 2^12, rounded at 2^-12
same(3, 40, 3, 1, 16, int32(7, 0, 40), (3, 40))                                          # queries before the first key
same(2, 70, 2, 1, 16, int32(96, 81), (9, 16), int32(*range(8, -4, -1))[:12].clamp(0).view(2, 6), window=1)
same(1, 64, 2, 2, 16, int32(190), (5, 48), int32(4, 0, 2, 1).view(1, 4), window=33)
for first in (30, 60, 90):                                                               # a tile's window begins between and on its steps
    same(1, 20, 4, 1, 16, int32(128), (1, 128), window=first, config={"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1})
# what nobody looks at on a GPU: a page or a length that does not exist is NaN for who sees it, and for no other sequence
for table, lengths in ((int32(0, 9, 1, 2), int32(17, 17)), (int32(0, -1, 1, 2), int32(32, 17)), (int32(0, 2, 1, 2), int32(33, 32)),
                       (int32(0, 2, 1, 2), int32(-1, 3))):
    for config in op.kernel("triton.chunk_float32").configs:
        (out, lse), _ = both(2, 18, 2, 1, 16, lengths, (3, 16), table.view(2, 2), config=config)
        assert out[0, -1].isnan().all() and lse[0, :, -1].isnan().all(), (table, lengths, config)
        assert out[1].isfinite().all() and not lse[1].isnan().any()
# entries behind the last page are anything; pages before every window are anybody's, and so is what lies behind the length
q, k, v = torch.randn(1, 20, 4, 16), *(torch.randn(6, 16, 2, 16) for _ in range(2))
ask = lambda table: op.kernel("triton.chunk_float32").run(q, k, v, int32(75), table, None, 0.25, 9, 0.0, config=op.kernel("triton.chunk_float32").configs[0])
want = ask(int32(2, 0, 3, 5, 1, 4).view(1, 6))
for x in (k, v):
    x[[2, 0]], x[3, :15], x[1, 11:], x[4] = torch.nan, torch.nan, torch.nan, torch.nan
assert all(map(torch.equal, ask(int32(-1, 99, 3, 5, 1, 2**30).view(1, 6)), want))
# queries so far apart that the last begins where 31 bits do not reach; the gate's layout has heads and batches so
q, far = q[:, :1].repeat(1, 40, 1, 1), lambda x: inputs._promised(x, 39 * 2**26 + 64).as_strided(x.shape, (1, 2**26, 16, 1)).copy_(x)
tell = lambda q: op.kernel("triton.chunk_float32").run(q, k, v, int32(96), table, None, 0.25, 9, 0.0, config=op.kernel("triton.chunk_float32").configs[0])
k, v, table = *(torch.randn(6, 16, 2, 16) for _ in range(2)), int32(2, 0, 3, 5, 1, 4).view(1, 6)
assert op.kernel("triton.chunk_float32").refuse(dict(zip(op.names, (far(q), k, v, int32(96), table, None, 0.25, 9, 0.0)))) is None
assert all(map(torch.equal, tell(far(q)), tell(q)))
# weights of 8 bits far below float16's smallest count where they are many, and a bfloat16 query of any size is itself
eight, narrow = OPS["attention_decode_e4m3"].kernel("triton.chunk"), lambda x: x.to(torch.float8_e4m3fn).view(torch.uint8)
run = lambda q, k, v, scale: eight.run(q, narrow(k), narrow(v), int32(k.shape[1]), None, None, None, None, scale, 0, 0.0, config=eight.configs[0])
k, v = torch.zeros(1, 4112, 1, 16), torch.full((1, 4112, 1, 16), 448.0)
k[:, 0], v[:, 0] = 1.0, 0.0
(out, _), tail = run(torch.ones(1, 17, 1, 16).bfloat16(), k, v, 26 * 0.6931471805599453 / 16), 4111 * 2.0**-26
assert (out[0, -1].float() / (448 * tail / (1 + tail)) - 1).abs().max() < 1e-2, out
q, (k, v) = torch.randn(1, 17, 2, 16).bfloat16(), (torch.randn(1, 40, 1, 16) for _ in range(2))
for power in (2.0**126, 2.0**-100):
    assert all(map(torch.equal, run(q * power, k, v, 8.0 / power), run(q, k, v, 8.0))), power
"""


def test_the_kernels_at_their_edges():
    """Through the interpreter, in a child: what the grid's cases do not reach."""
    done = processes.run(code=EDGES, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


FAULTS = {  # in chunk_kernels.py, as it stands and wrong
    "end = tl.maximum(latest + 1, 0)": "end = tl.maximum(latest, 0)",
    "tl.maximum(earliest + 1, 0)) // BLOCK_N * BLOCK_N, first)": "tl.maximum(latest + 1, 0)) // BLOCK_N * BLOCK_N, first)",
    "tl.maximum(earliest - window + 1, 0), end)": "tl.maximum(earliest - window + 1 + BLOCK_N, 0), end)",
    "tl.maximum(latest - window + 1, 0), BLOCK_N)": "tl.maximum(earliest - window + 1, 0), BLOCK_N)",
    "earliest = length - T + i_tile * BLOCK_M // GROUP": "earliest = length - T + i_tile * BLOCK_M",
    "i_g * GROUP + i_m % GROUP": "i_m % GROUP * G + i_g",
    "i_p = length - T + i_t": "i_p = room - T + i_t",
    "first = begin + i_s * share": "first = begin",
    "last = tl.minimum(first + share, end)": "last = tl.minimum(first + share - BLOCK_N, end)",
    "gTable += i_b * stride_row": "gTable += 0",
    "gTable + first // PAGE * stride_page": "gTable",
    "gV += i_b * v_m": "gV += i_b * k_m + v_s",
    "scale_in = scale_in * rPower": "scale_in = scale_in * 1.0",
    "rMax - LIFT, gSinks": "rMax, gSinks",
    "rAcc *= tl.load(gVs + i_g * stride_vs)": "rAcc *= tl.load(gVs)",
    "there = in_m[:, None] & (i_d < D)[None, :]": "there = (i_t < T)[:, None] | (i_d < D)[None, :]",
}
FAULTS |= {  # where 8 bits are widened
    "i_n > length - T - window)": "i_n > length - T - window + BLOCK_N)",
    "slot % PAGE, (row >= 0)": "slot * 0, (row >= 0)",
    "row * v_m + slot * v_s + i_g * v_g": "row * v_m + slot * v_s",
    "(i_b * room + i_n) * G + i_g": "(i_b * room + i_n) * G",
    "seen = i_n < length": "seen = i_n < length - 1",
}
LEAVING = {  # in triton_kernels.py: how decode's kernels and these end
    "rAcc *= shrink[:, None]": "rAcc *= 1.0",
    "row += i_s.to(tl.int64) * B * T * H": "row += 0",
    "tl.store(gPartMax + row, rMax, mask=in_m)": "tl.store(gPartMax + row, rMax * 0.0, mask=in_m)",
    "* (1.0 / UNIT)\n            rMax, rSum, shrink": "* 1.0\n            rMax, rSum, shrink",
    "row = (i_b * T + i_t) * H + i_h\n    there": "row = (i_b * H + i_h) * T + i_t\n    there",
}
PLANTED = """
import importlib, importlib.util, json, pathlib, sys, tempfile
from rooftile.workbench import interpreter
from rooftile.core.kernel import OPS
from rooftile.workbench.check import Problem
text = pathlib.Path(importlib.import_module("rooftile.ops.attention_decode." + sys.argv[1]).__file__).read_text()
faults, unseen = json.loads(sys.argv[2]), []
points = [(name, [Problem(spec, c, "normal", "cpu") for c in spec.cases if "smoke" in c.use and (c.dims["T"] > 16) == (sys.argv[1] == "chunk_kernels")])
          for name, spec in ((n, OPS["attention_decode" + n].spec) for n in ("", "_e4m3"))]
with tempfile.TemporaryDirectory() as folder:
    for i, (stands, instead) in enumerate([("", ""), *faults.items()]):
        assert i == 0 or text.count(stands) == 1, stands
        file = pathlib.Path(folder) / f"changed_{i}.py"
        file.write_text(text.replace(stands, instead) if i else text)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        changed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(changed)
        wrong = any(p.judge(k).status != "passed" for name, problems in points for p in problems
                    for k in (changed.KERNELS_E4M3 if name else changed.KERNELS) if k.refuse(p.call) is None)
        if wrong == (i == 0):
            unseen.append(stands)
print(json.dumps(unseen))
"""


@pytest.mark.parametrize("module, faults", [("chunk_kernels", FAULTS), ("triton_kernels", LEAVING)], ids=["chunks", "decode"])
def test_faults_are_seen(module, faults):
    """Each by one of the smoke cases, and the kernels as they stand by none."""
    done = processes.run(module, json.dumps(faults), code=PLANTED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
