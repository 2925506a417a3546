import math
from dataclasses import replace

import torch

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across, normal, positive
from rooftile.ops.attention_decode.reference import attention_decode, attention_decode_e4m3, torch_decode, torch_decode_e4m3

QUERIES = 16  # of a sequence, up to which reading its keys is what takes the time
Q, CACHE = Arg("B T H D"), Arg("M S G D")
BITS = Arg("M S G D", "u8")  # of e4m3, which PyTorch compares and copies in few ways
SCALE = Arg("G", "f32", make=positive, optional=True)
RUN = ("smoke", "check")


def validate(call: Call, dims: dict) -> None:
    h, g, d = (dims[x] for x in "HGD")
    if g == 0 or h % g:
        raise ValueError(f"attention_decode: {h} query heads cannot share {g} key heads evenly")
    if not 16 <= d <= 256:
        raise ValueError(f"attention_decode: D={d}, it takes 16 to 256")
    if call["block_table"] is None and dims["M"] != dims["B"]:
        raise ValueError(f"attention_decode: a cache of {dims['M']} rows for {dims['B']} sequences; pages want a block_table")
    if call["block_table"] is not None and not (dims["M"] and 16 <= dims["S"] <= 256):
        raise ValueError(f"attention_decode: {dims['M']} pages of {dims['S']} keys, it takes 1 page or more, of 16 to 256 keys")
    for name in ("window", "softcap"):
        if not 0 <= call[name] < math.inf:
            raise ValueError(f"attention_decode: {name} is {call[name]}, and must be 0 (none) or more, and finite")


def edges(b: int, room: int, t: int, page: int) -> list[int]:
    """Lengths where things go wrong: full, nothing, one key, around a page's and a tile's end, as many as queries."""
    wanted = (room - 3, 0, room, 1, page, page + 1, page - 1, 64, 65, t, room - 1)
    return [min(max(wanted[i % len(wanted)], 0), room) for i in range(b)]


def placed(call: Call, case: Case, gen: torch.Generator) -> dict:
    """Lengths, pages in any order, entries that nobody may follow, and NaN wherever nobody may read, before a window too."""
    call = dict(call)
    k, v, table = call["k_cache"], call["v_cache"], call["block_table"]
    (pages, page), (b, t), where = k.shape[:2], call["q"].shape[:2], k.device
    room = page if table is None else table.shape[1] * page
    lengths = [room] * b if case.params.get("full") else edges(b, room, t, page)
    call["lengths"] = torch.tensor(lengths, dtype=torch.int32, device=where)
    if case.params.get("full") and "bench" in case.use and table is None:
        return call
    free = torch.ones(pages, page, dtype=torch.bool)
    first = [max(0, n - t - call["window"] + 1) if call["window"] else 0 for n in lengths]
    if table is None:
        i, begin, end = torch.arange(page), *(torch.tensor(x, dtype=torch.int64)[:, None] for x in (first, lengths))
        free = (i < begin) | (i >= end)
    else:
        order = torch.randperm(pages, generator=gen, device=gen.device).tolist()
        rows = [[2**30 if i % 2 else -7] * table.shape[1] for i in range(b)]
        for row, begin, n in zip(rows, first, lengths):
            for i in range(-(-n // page)):
                row[i] = order.pop()
                if not case.params.get("full"):
                    free[row[i], max(0, begin - i * page) : n - i * page] = False
        call["block_table"] = torch.tensor(rows, dtype=torch.int32, device=where).view(table.shape)
    if not case.params.get("full"):
        call["k_cache"], call["v_cache"] = (x.masked_fill(free.to(where)[:, :, None, None], torch.nan) for x in (k, v))
    return call


def narrow(call: Call, case: Case, gen: torch.Generator) -> dict:
    """The same in e4m3."""
    drawn = {n: normal(call[n].shape, torch.float32, gen, {}) for n in ("k_cache", "v_cache")}
    made = placed(call | drawn, case, gen)
    return made | {n: made[n].to(torch.float8_e4m3fn).view(torch.uint8) for n in drawn}


def keys(d: dict) -> int:
    """A sequence's, where the caches are full: the lengths are the device's."""
    room = d["S"] * d.get("N", 1)
    return min(room, d["window"] + d["T"] - 1) if d["window"] else room


def pairs(d: dict) -> int:
    """Of a query and a key that it sees, a head, where the caches are full."""
    room = d["S"] * d.get("N", 1)
    return d["B"] * sum(min(seen, d["window"] or seen) for seen in range(max(1, room - d["T"] + 1), room + 1))


def moved(call: Call, results) -> int:
    (b, t), (_, s, g, d) = call["q"].shape[:2], call["k_cache"].shape
    seen = keys({"S": s, "N": 1 if call["block_table"] is None else call["block_table"].shape[1], "T": t, "window": call["window"]})
    return 2 * b * seen * g * d * call["k_cache"].itemsize + sum(x.numel() * x.itemsize for x in (call["q"], *results))


def case(b, t, h, g, d, s, n=0, why="", use=("check",), dtype=torch.float32, pages=None, **params):
    """n pages of s keys a sequence, or with n = 0 a contiguous cache of s keys each."""
    dims = {"B": b, "T": t, "H": h, "G": g, "D": d, "S": s, "N": max(1, n), "M": (pages or b * n + 2) if n else b}
    absent = {"block_table": n or None, "sinks": params.pop("sinks", None), **{x: params.pop(x, 1) for x in ("k_scale", "v_scale")}}
    return Case(dims, dtype, {**{x: None for x, given in absent.items() if not given}, "scale": d**-0.5, **params}, use, why)


CASES = (
    case(2, 3, 4, 2, 16, 16, 5, "pages in any order, causal among three queries", RUN, sinks=True),
    case(2, 1, 4, 2, 32, 67, why="one sequence all but full, one without a key", use=RUN, dtype=torch.bfloat16),
    case(3, 2, 4, 2, 32, 16, why="a sink where one split is all", use=RUN, dtype=torch.bfloat16, sinks=True),
    case(
        1,
        5,
        3,
        1,
        80,
        100,
        why="a head of 80, one key head for three, a window and a cap",
        use=RUN,
        dtype=torch.bfloat16,
        window=40,
        softcap=2.0,
    ),
    case(3, 2, 4, 2, 64, 40, why="keys of 128 bytes", use=RUN, dtype=torch.bfloat16, window=30),
    *across(
        FLOATS,
        case(4, 1, 4, 2, 32, 131, why="ragged lengths"),
        case(5, 1, 4, 2, 128, 131, why="ragged lengths, keys of 256 bytes in 16 bits", softcap=4.0),
        case(3, 8, 8, 2, 128, 67, why="32 rows share keys", sinks=True),
        case(7, 3, 4, 2, 16, 16, 9, "pages' ends", sinks=True),
        case(3, 5, 3, 1, 80, 150, why="two tiles of keys in a window, and a cap", window=40, softcap=2.0),
    ),
    *across(
        FLOATS,
        case(11, 16, 4, 1, 32, 32, 7, "16 queries of 4 heads: 64 rows; every edge of length"),
        case(6, 2, 2, 2, 96, 300, why="a head of 96; a head its own keys", window=64),
        case(2, 1, 8, 1, 64, 48, 5, "pages of no power of two, a window shorter than a page", window=7, sinks=True),
        case(3, 1, 2, 1, 256, 100, why="the widest head", softcap=30.0),
    ),
    case(2, 16, 40, 2, 16, 70, why="more rows than one tile: 16 queries of 20 heads"),
    case(0, 1, 4, 2, 32, 64, why="no batch"),
    case(2, 1, 4, 2, 32, 0, why="no room"),
    case(2, 0, 4, 2, 32, 64, why="no queries"),
    case(5, 4, 8, 2, 128, 64, 17, "many splits, ragged", dtype=torch.bfloat16, sinks=True),
    case(1, 1, 8, 2, 128, 5003, why="one long sequence, a prime", dtype=torch.bfloat16),
)
CHUNKS = (  # QUERIES < T
    case(6, 17, 8, 2, 16, 16, 5, "a chunk: 68 rows, ends of pages, fewer keys than queries", RUN, sinks=True),
    case(2, 33, 2, 2, 64, 64, 3, "a chunk, a head its own keys, a window in whole pages", RUN, torch.bfloat16, window=40),
    case(2, 100, 8, 1, 128, 180, 0, "a chunk, 8 heads share keys: 800 rows; a cap", RUN, torch.bfloat16, softcap=4.0, sinks=True),
    case(2, 64, 4, 1, 80, 16, 11, "a chunk, four pages a tile, a wide window, a cap", RUN, torch.bfloat16, window=150, softcap=2.0),
    case(1, 33, 2, 1, 256, 1300, 0, "a chunk, the widest head, split", RUN, torch.bfloat16),
    *across(FLOATS, case(4, 100, 4, 1, 64, 48, 6, "a chunk over pages of no power of two", window=70)),
    *across(FLOATS, case(6, 17, 2, 2, 128, 1500, 0, "17 queries: split", sinks=True)),
    *across(FLOATS, case(3, 40, 6, 2, 80, 80, 3, "a chunk, groups of 3", softcap=3.0)),
    case(5, 300, 8, 2, 128, 64, 17, "a longer chunk, ragged", dtype=torch.bfloat16, sinks=True),
    case(2, 500, 4, 1, 64, 900, 0, "a window of several tiles", dtype=torch.bfloat16, window=400),
    case(0, 20, 4, 2, 32, 64, why="a chunk of no batch"),
    case(2, 20, 4, 2, 32, 0, why="a chunk, no room"),
)
PREFILL = (
    (1, 2048, 32, 8, 128, 16384, 0, None, "contiguous"),
    (1, 2048, 32, 8, 128, 64, 256, 256, "paged"),
    (8, 512, 32, 8, 128, 64, 64, 512, "of eight, paged"),
)
LONG = ((16, 8192, "16 sequences"), (1, 65536, "one long sequence: all splits"), (64, 2048, "no splits"))
BENCH = (
    *(case(b, 1, 32, 8, 128, s, 0, f"acceptance: {why}", ("bench",), torch.bfloat16, full=True) for b, s, why in LONG),
    *(case(b, 1, 32, 8, 128, 64, s // 64, f"acceptance, paged: {why}", ("bench",), torch.bfloat16, b * s // 64, full=True)
      for b, s, why in LONG),
    case(16, 8, 32, 8, 128, 8192, 0, "eight queries at once, as speculation asks", ("bench",), torch.bfloat16, full=True),
    case(16, 4, 32, 8, 128, 8192, 0, "four queries at once: 16 rows share keys", ("bench",), torch.bfloat16, full=True),
    *(case(*x, f"a chunk of a prompt: {why}", ("bench",), torch.bfloat16, pages, full=True) for *x, pages, why in PREFILL),
    case(16, 1, 32, 8, 128, 16, 512, "small pages", ("bench",), torch.bfloat16, 8192, full=True),
)  # fmt: skip


def shared(cases, absent=("k_scale", "v_scale")):
    """The same cases for the operator without scales."""
    return tuple(replace(c, params={n: x for n, x in c.params.items() if n not in absent}) for c in cases)


SPEC = OpSpec(
    "attention_decode",
    attention_decode,
    args={
        "q": Q,
        "k_cache": CACHE,
        "v_cache": CACHE,
        "lengths": Arg("B", "i32"),
        "block_table": Arg("B N", "i32", optional=True),
        "sinks": Arg("H", "io|f32", optional=True),
    },
    returns={"out": Q, "lse": Arg("B H T", dtype="f32")},
    cases=shared((*CASES, *CHUNKS, *BENCH)),
    peer=torch_decode,
    families=(),
    unsaid={"M": "B"},
    draw_with=placed,
    moved=moved,
    validate=validate,
    flops=lambda d: 4 * d["H"] * d["D"] * pairs(d),
)
SPEC_E4M3 = replace(
    SPEC,
    name="attention_decode_e4m3",
    reference=attention_decode_e4m3,
    args={
        **{n: SPEC.args[n] for n in ("q",)},
        "k_cache": BITS,
        "v_cache": BITS,
        "lengths": SPEC.args["lengths"],
        "k_scale": SCALE,
        "v_scale": SCALE,
        **{n: SPEC.args[n] for n in ("block_table", "sinks")},
    },
    cases=(
        case(2, 2, 4, 2, 16, 16, 5, "paged, with sinks", RUN, sinks=True),
        case(3, 2, 4, 2, 128, 40, why="keys of 128 bytes", use=RUN, dtype=torch.bfloat16, sinks=True),
        *across(FLOATS, case(3, 2, 4, 2, 32, 70, why="two queries, contiguous"), case(5, 1, 4, 2, 16, 16, 5, "pages' ends", sinks=True)),
        *across(FLOATS, case(7, 1, 4, 2, 128, 131, why="keys of 128 bytes, ragged", softcap=4.0)),
        case(3, 2, 4, 1, 256, 48, 3, "keys of 256 bytes, pages of no power of two", dtype=torch.float16, window=50),
        case(3, 5, 8, 2, 128, 32, 4, "20 rows share keys", dtype=torch.bfloat16),
        case(3, 1, 2, 1, 80, 40, why="no scales: the numbers as they stand", k_scale=0, v_scale=0),
        case(5, 4, 8, 2, 128, 64, 9, "ragged pages, a window", dtype=torch.bfloat16, window=100),
        case(6, 17, 4, 1, 32, 16, 5, "a chunk: ends of pages, fewer keys than queries", RUN, sinks=True),
        case(3, 33, 8, 1, 128, 64, 3, "a chunk, 8 heads share keys, a window", RUN, torch.bfloat16, window=70),
        case(1, 64, 2, 2, 64, 1600, 0, "a chunk, contiguous, split", RUN, torch.float16, softcap=3.0),
        *across(FLOATS, case(4, 100, 4, 1, 80, 48, 6, "a chunk over pages of no power of two", window=70)),
        case(2, 33, 4, 1, 256, 16, 9, "a chunk, the widest head", dtype=torch.bfloat16, sinks=True),
        case(2, 20, 2, 1, 64, 90, 0, "a chunk, no scales", dtype=torch.bfloat16, k_scale=0, v_scale=0),
        case(1, 2048, 32, 8, 128, 64, 256, "a chunk of a prompt in 8 bits", ("bench",), torch.bfloat16, 256, full=True),
        *(case(b, 1, 32, 8, 128, s, 0, f"acceptance's in 8 bits: {why}", ("bench",), torch.bfloat16, full=True) for b, s, why in LONG),
        case(16, 1, 32, 8, 128, 64, 128, "the same paged", ("bench",), torch.bfloat16, 2048, full=True),
    ),
    peer=torch_decode_e4m3,
    draw_with=narrow,
)
