"""What the grid cannot say of Gluon's forward with options and of ragged sequences: which calls are its own, and the list of tiles it walks."""

import json
from itertools import pairwise

import pytest

import processes

CHOSEN = """
import json, sys, torch
from triton.runtime import driver
from rooftile.core.kernel import OPS
from rooftile.workbench.dry import StandIn

driver.set_active(StandIn(90))

def call(op, d=128, t=8192, dtype=torch.bfloat16, **more):
    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device="meta")
    numbers = {"scale": 1.0, "left": 999, "right": 0, "softcap": 0.0, "p": 0.0}
    if op == "attention_options":
        made = {n: empty(1, t, 8, d) for n in "qkv"} | dict.fromkeys(("sinks", "bias", "constant_bias", "mask", "seed")) | numbers
    else:
        made = {n: empty(t, 8, d) for n in "qkv"} | dict.fromkeys(("sinks", "seed")) | numbers | {"max_seqlen_q": t, "max_seqlen_k": t}
    return made | {n: empty(*x) if isinstance(x, list) else x for n, x in more.items()}

answers = []
for op, more in json.loads(sys.argv[1]):
    choice = OPS[op].choose(call(op, **more))
    name, groups = choice.kernel.name, choice.config.get("groups")
    answers.append([f"{name} of {groups}" if name == "gluon" else name, dict(choice.refused)])
print(json.dumps(answers))
"""
BOTH = ("attention_options", "attention_varlen")
WIDE = "gluon.wide"
SAID = (
    ({}, WIDE, None),
    ({"d": 64, "left": -1}, "gluon of 3", None),
    ({"d": 64, "left": -1, "t": 3000}, "gluon of 2", None),
    ({"d": 64}, "gluon of 2", None),
    ({"d": 64, "left": -1, "softcap": 2.0}, "gluon of 2", None),
    ({"right": -1}, WIDE, None),
    ({"t": 1024}, "triton", "operations are done before its host code is; it pays from 4e9"),
    ({"d": 96}, "triton", "D=96, it is written for 128"),
    ({"sinks": [8]}, WIDE, None),
    ({"sinks": [8], "d": 64, "left": -1}, "gluon of 3", None),
    ({"softcap": 2.0}, WIDE, None),
    ({"d": 256, "softcap": 2.0, "sinks": [8]}, "gluon.widest", None),
    ({"softcap": 300.0}, "triton", "a soft cap of 300: it knows scores of caps up to 256"),
    ({"seed": [], "p": 0.5}, "triton", "it takes a window, a mask, a soft cap and sinks alone, and the call has seed"),
    ({"scale": -1.0}, "triton", "scale=-1.0 is not positive"),
)
MASKED = (
    ({"mask": [1, 8, 8192, 8192], "left": -1}, WIDE, None),
    ({"mask": [1, 8, 8192, 8192], "left": -1, "d": 64}, "gluon of 2", None),
    ({"mask": [1, 8, 8192, 8192], "left": -1, "d": 256}, "triton", None),
    ({"mask": [1, 8, 8192, 8192]}, "triton", "a mask and a window of 999 keys to the left"),
)


@pytest.mark.parametrize("op", BOTH)
def test_which_calls_are_its_own(op):
    packed = op == "attention_varlen"
    said = [(more, "triton" if packed and chosen == "gluon.widest" else chosen, why) for more, chosen, why in SAID + MASKED * (not packed)]
    asked = [[op, more] for more, _, _ in said]
    done = processes.run(json.dumps(asked), code=CHOSEN, ROOFTILE_DRY_GPU="1")
    assert done.returncode == 0, done.stderr[-2000:]
    for (more, chosen, why), (kernel, refused) in zip(said, json.loads(done.stdout), strict=True):
        assert kernel == chosen, more
        assert why is None or why in refused[WIDE], more


ASSEMBLED = """
import subprocess, tempfile, torch, triton
from pathlib import Path
from triton.runtime import driver
from rooftile.core.kernel import OPS
from rooftile.workbench import dry

driver.set_active(dry.StandIn(90))
loaded, tool = dry._Utilities.load_binary, Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

def load_binary(self, name, cubin, *rest):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(tool), "-sass", file.name], capture_output=True, text=True, check=True).stdout
    print(text.count(" HGMMA."), text.count(" PRMT "))
    return loaded(self, name, cubin, *rest)

dry._Utilities.load_binary = load_binary
x, kernel = torch.empty(1, 16384, 2, 64, dtype=torch.bfloat16, device="meta"), OPS["attention"].kernel("gluon")
call = {"q": x, "k": x, "v": x, "causal": True, "scale": 0.125}
kernel.bound(kernel.heuristic(call))(*call.values())
"""


def test_weights_go_from_step_to_step_as_pairs():
    """Two of 16 bits in a register, as the product reads them. Carried one by one, the compiler turned each pair around at a step's end and again at
    the next one's beginning: 64 instructions in 489 of a step of three groups (seen red: 128 in all)."""
    done = processes.run(code=ASSEMBLED, ROOFTILE_DRY_GPU="1")
    assert done.returncode == 0, done.stderr[-2000:]
    products, permuted = map(int, done.stdout.split())
    assert products > 0 and permuted <= 16


PACKED = """
import json, sys, torch
from rooftile.ops.attention.gluon_options_launchers import packed_bits
from rooftile.workbench import check, interpreter

shape, heads, turned, documents, hidden, rows = json.loads(sys.argv[1])
(b, h, t, s), gen = shape, torch.Generator().manual_seed(3)
mask = torch.rand(shape, generator=gen) < 0.5
if documents:
    mask &= torch.arange(t)[:, None] * documents // t == torch.arange(s) * documents // s
mask[:, :, :hidden] = False
if turned:
    mask = mask.transpose(2, 3).contiguous().transpose(2, 3)
mask = mask.expand(b, heads, t, s)
for watch in check.before_run:
    watch([mask])
words, spans, of_batch, of_head = packed_bits(mask, rows)
print(json.dumps([mask[:, :h].tolist(), words.tolist(), spans.tolist(), of_batch, of_head]))
"""


@pytest.mark.parametrize("shape, heads, turned, documents, hidden, rows_of_tile", [
    ((2, 1, 70, 130), 3, False, 0, 0, 128), ((1, 2, 200, 300), 2, True, 0, 0, 128), ((1, 1, 300, 700), 2, False, 3, 0, 128),
    ((1, 1, 130, 40), 1, False, 0, 0, 128), ((1, 1, 300, 40), 1, False, 0, 140, 128), ((2, 1, 200, 300), 2, False, 0, 0, 192),
])  # fmt: skip
def test_a_mask_is_packed_where_the_kernel_holds_scores(shape, heads, turned, documents, hidden, rows_of_tile):
    done = processes.run(json.dumps([shape, heads, turned, documents, hidden, rows_of_tile]), code=PACKED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]
    mask, words, spans, of_batch, of_head = json.loads(done.stdout)
    (b, h), tiles = shape[:2], -(-shape[2] // rows_of_tile)
    assert (of_batch, of_head) == (h * (b > 1), int(h > 1)) and len(words) == len(spans) == b * h * tiles
    found = set()
    for tile, rows in enumerate(words):
        for row64, row in enumerate(rows):
            for i_s, block in enumerate(row):
                for thread, both in enumerate(block):
                    for after, word in enumerate(both):
                        query = tile % tiles * rows_of_tile + row64 * 64 + thread // 32 * 16 + thread % 32 // 4 + 8 * after
                        key = i_s * 128 + thread % 4 * 2
                        found |= {(tile // tiles, query, key + bit // 2 * 8 + bit % 2) for bit in range(32) if word >> bit & 1}
    heads_of = [head for batch in mask for head in batch]
    assert found == {(i, q, k) for i, head in enumerate(heads_of) for q, row in enumerate(head) for k, seen in enumerate(row) if seen}
    for tile, (low, end) in enumerate(spans):
        seen = {k // 128 for i, q, k in found if i == tile // tiles and q // rows_of_tile == tile % tiles}
        assert (low, end) == (min(seen, default=0) * 128, max(seen, default=-1) * 128 + 128)


LISTED = """
import json, sys, torch
from rooftile.ops.attention.gluon_options_launchers import tile_list
from rooftile.workbench import check, interpreter

q_offsets, k_offsets, rows, keys, heads, groups, reach, tile = json.loads(sys.argv[1])
q, k = torch.empty(rows, heads, 64, dtype=torch.bfloat16), torch.empty(keys, groups, 64, dtype=torch.bfloat16)
cu = (torch.tensor(q_offsets), torch.tensor(k_offsets))
for watch in check.before_run:
    watch([q, k, *cu])
tiles, programs = tile_list(q, k, cu, (rows, keys), (reach, reach), 132, tile)
print(json.dumps([tiles.tolist(), programs]))
"""


def listed(q_offsets, k_offsets, heads=2, groups=1, reach=1 << 30, tile=128):
    rows, keys = max(q_offsets), max(k_offsets)
    done = processes.run(json.dumps([q_offsets, k_offsets, rows, keys, heads, groups, reach, tile]), code=LISTED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]
    (header, *tiles), programs = json.loads(done.stdout)
    assert header[0] == programs <= len(tiles)
    assert header[1] <= len(tiles)
    return [t[:7] for t in tiles[: header[1]]]


@pytest.mark.parametrize("heads, reach, tile", [(2, 1 << 30, 128), (6, 40, 128), (3, 0, 128), (2, 1 << 30, 192)])
def test_the_list_has_every_tile_once_the_longest_sequence_first(heads, reach, tile):
    q, k = [0, 3, 3, 303, 432, 560], [0, 9, 200, 500, 500, 812]
    tiles = listed(q, k, heads, heads, reach, tile)
    want = [
        [row, b - a, d - c, a, c, 0, h]
        for (a, b), (c, d) in zip(pairwise(q), pairwise(k))
        for row in range(0, b - a, tile)
        for h in range(heads)
    ]
    assert sorted(tiles) == sorted(want)
    assert [t[2] for t in tiles] == sorted((t[2] for t in tiles), reverse=True)
    for own in ([t for t in tiles if t[2] == keys] for keys in (300, 312)):
        per_head = [[t[0] for t in own if t[6] == h] for h in range(heads)]
        assert all(rows == sorted(rows, reverse=True) for rows in per_head)


def test_offsets_that_are_wrong_list_no_more_than_there_is_room_for():
    tiles = listed([0, 500, 0, 500, 0, 500, -7, 900, 400], [0, 100, 0, 100, 0, 100, 0, 100, 5])
    assert all(0 <= a <= a + n <= 900 and 0 <= row < n and 0 <= c <= c + s <= 100 for row, n, s, a, c, _, _ in tiles)
