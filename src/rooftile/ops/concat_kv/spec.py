from dataclasses import replace

import torch

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across, index, positive
from rooftile.ops._shared.draw import cosines, sines
from rooftile.ops.concat_kv.reference import concat_kv, concat_kv_e4m3

CACHE, NEW = Arg("P S G D", mutated=True), Arg("B T G D")
SCALE = Arg("G", "f32", make=positive, optional=True, word="scaled")
HALF, PAIRS, PLAIN = {"interleaved": False, "turned": True}, {"interleaved": True, "turned": True}, {"interleaved": False}
PAGED, SCALED = {"paged": "i32"}, {"scaled": "f32"}
RUN = ("smoke", "check")


def validate(call: Call, dims: dict) -> None:
    if (call["cos"] is None) != (call["sin"] is None):
        raise ValueError(f"concat_kv: {'sin' if call['cos'] is None else 'cos'} is given without {'cos' if call['cos'] is None else 'sin'}")
    if call["cos"] is not None and 2 * dims["N"] > dims["D"]:
        raise ValueError(f"concat_kv: the table turns {dims['N']} pairs, but D={dims['D']} has {dims['D'] // 2}")
    if call["block_table"] is None and dims["P"] != dims["B"]:
        raise ValueError(f"concat_kv: a cache of {dims['P']} rows for {dims['B']} sequences; pages want a block_table")
    if call["block_table"] is not None and not (dims["P"] and 16 <= dims["S"] <= 256):
        raise ValueError(f"concat_kv: {dims['P']} pages of {dims['S']} keys, it takes 1 page or more, of 16 to 256 keys")


def room(shape, dtype, gen, dims):
    """Lengths that leave room for the new keys."""
    return torch.randint(0, max(1, dims["S"] * dims.get("L", 1) - dims["T"] + 1), shape, generator=gen, device=gen.device, dtype=dtype)


def placed(call, case, gen):
    call = call if case.params.get("turned") else call | {"cos": None, "sin": None}
    return call | paged(call, gen) if case.params.get("paged") else call


def paged(call: Call, gen: torch.Generator) -> dict:
    """Lengths around the ends of pages, then as they were drawn; pages in any order, and entries that nobody may follow where nothing is written."""
    t, (held, page), table = call["k"].shape[1], call["k_cache"].shape[:2], call["block_table"]
    room, drawn, where = table.shape[1] * page, call["lengths"].tolist(), table.device
    wanted = (page - 1, 2 * page - t, 0, room - t, page, page + 1)[: len(drawn)]
    lengths = [*(min(max(n, 0), room - t) for n in wanted), *drawn[len(wanted) :]]
    order = torch.randperm(held, generator=gen, device=gen.device).tolist()
    rows = [[2**30 if i % 2 else -7] * table.shape[1] for i in range(len(drawn))]
    for row, n in zip(rows, lengths):
        for i in range(n // page, -(-(n + t) // page)):
            row[i] = order.pop()
    made = torch.tensor(rows, dtype=torch.int32, device=where).view(table.shape)
    return {"lengths": torch.tensor(lengths, dtype=call["lengths"].dtype, device=where), "block_table": made}


def shape(b, t, g, d, n, s=20):
    return dict(zip("BTGDNSM", (b, t, g, d, n, s, s)))


def pages(b, t, g, d, n, s, l, p=None):
    """p pages of s keys, of which a sequence has l: as many as are written and one more, if nothing is said."""
    return {**shape(b, t, g, d, n, s), "M": s * l, "L": l, "P": p or b * (-(-t // s) + 1) + 1}


def moved(call, results):
    """New keys and values in and out, and the rows of the tables that are asked for."""
    new = sum(call[n].numel() * (call[n].itemsize + call["k_cache"].itemsize) for n in ("k", "v"))
    tables = [call[n] for n in ("cos", "sin") if call[n] is not None]
    return new + sum(min(len(t), call["k"].shape[0] * call["k"].shape[1]) * t.shape[1] * t.itemsize for t in tables)


SERVED = (
    Case(pages(64, 1, 8, 128, 64, 64, 32, 2048), torch.bfloat16, use=("bench",), why="a server's step: a token of each of 64 sequences"),
    Case(pages(4, 512, 8, 128, 64, 64, 32, 2048), torch.bfloat16, use=("bench",), why="a server's chunk of four prompts"),
)
SPEC = OpSpec(
    "concat_kv",
    concat_kv,
    args={
        "k_cache": CACHE,
        "v_cache": CACHE,
        "k": NEW,
        "v": NEW,
        "lengths": Arg("B", "i32|i64", make=room),
        "cos": Arg("M N", "io|f32", make=cosines, optional=True),
        "sin": Arg("M N", "io|f32", make=sines, optional=True),
        "block_table": Arg("B L", "i32", make=index("P"), optional=True, word="paged"),
    },
    returns={},
    cases=(
        *across(
            FLOATS,
            Case(shape(3, 2, 3, 16, 8), params=PLAIN, use=RUN, why="a copy, whole 16 bytes"),
            Case(shape(2, 5, 3, 22, 7), params=HALF, use=RUN, why="ragged heads, part of them turned"),
            Case(shape(2, 3, 2, 48, 16), params=PAIRS, use=RUN, why="pairs, whole 16 bytes"),
            Case(shape(2, 0, 2, 16, 8), params=HALF, why="nothing to append"),
        ),
        Case(shape(2, 20, 1, 16, 8), torch.bfloat16, HALF, why="a full cache"),
        Case(shape(3, 7, 33, 128, 64, 300), torch.bfloat16, HALF, why="more heads than a program takes"),
        Case(shape(2, 3, 31, 256, 0), torch.float32, PLAIN, why="more vectors a token than a block has threads"),
        *across(
            FLOATS,
            Case(pages(5, 5, 3, 16, 8, 16, 3), params=HALF | PAGED, use=RUN, why="pages in any order, new keys over their ends"),
            Case(pages(4, 70, 2, 32, 8, 64, 3), params=PAIRS | PAGED, why="a chunk over three pages, pairs and a rest"),
        ),
        Case(pages(7, 3, 3, 22, 7, 48, 2), torch.bfloat16, HALF | PAGED, why="pages of no power of two, ragged heads"),
        Case(pages(6, 2, 2, 64, 32, 256, 2), torch.float16, PLAIN | PAGED, why="the largest pages, a copy"),
        Case(pages(3, 0, 2, 16, 8, 16, 2), torch.float32, HALF | PAGED, why="nothing to append to pages"),
        Case(shape(64, 1, 8, 128, 64, 2048), torch.bfloat16, HALF, use=("bench",), why="decoding: a token of each of 64 sequences"),
        Case(shape(4, 4096, 8, 128, 64, 8192), torch.bfloat16, HALF, use=("bench",), why="a prompt"),
        Case(shape(4, 4096, 8, 128, 64, 8192), torch.bfloat16, PLAIN, use=("bench",), why="a prompt whose keys are turned"),
        *(Case(c.dims, c.dtype, HALF | PAGED, c.use, c.why) for c in SERVED),
    ),
    families=(),
    unsaid={"P": "B"},
    draw_with=placed,
    moved=moved,
    validate=validate,
    flops=lambda d: 3 * d["B"] * d["T"] * d["G"] * d["D"],
)
SPEC_E4M3 = replace(
    SPEC,
    name="concat_kv_e4m3",
    reference=concat_kv_e4m3,
    args={
        **SPEC.args,
        "k_cache": replace(CACHE, dtype="e4m3"),
        "v_cache": replace(CACHE, dtype="e4m3"),
        "k_scale": SCALE,
        "v_scale": SCALE,
    },
    cases=(
        *across(
            FLOATS,
            Case(pages(5, 5, 3, 16, 8, 16, 3), params=HALF | PAGED | SCALED, use=RUN, why="pages in any order, new keys over their ends"),
            Case(shape(3, 4, 2, 48, 16), params=PAIRS, use=RUN, why="contiguous, no scales, pairs and a rest"),
            Case(shape(2, 5, 3, 22, 7), params=HALF | SCALED, why="ragged heads, part of them turned"),
        ),
        Case(pages(4, 70, 2, 32, 8, 64, 3), torch.bfloat16, PAIRS | PAGED | SCALED, why="a chunk over three pages"),
        Case(pages(6, 2, 2, 64, 32, 256, 2), torch.float16, PLAIN | PAGED | SCALED, why="the largest pages, a copy"),
        Case(
            pages(7, 3, 33, 128, 64, 48, 2), torch.bfloat16, HALF | PAGED, why="pages of no power of two, more heads than a program takes"
        ),
        Case(shape(2, 0, 2, 16, 8), torch.float32, HALF | SCALED, why="nothing to append"),
        *(Case(c.dims, c.dtype, HALF | PAGED | SCALED, c.use, c.why) for c in SERVED),
    ),
)
