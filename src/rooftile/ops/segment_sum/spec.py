import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.segment_sum.reference import segment_sum, segment_sum_backward

PART = {"cover": "part"}
NARROW = {"index": "int32"}


def cuts(shape, dtype, gen, dims):
    """E - 1 random cuts of M rows: lengths from nothing to many times the mean."""
    inner = torch.randint(0, dims["M"] + 1, (max(0, shape[0] - 2),), generator=gen, device=gen.device, dtype=dtype).sort().values
    ends = inner.new_tensor([0, dims["M"]])[: shape[0]]
    return torch.cat([ends[:1], inner, ends[1:]])


def variants(call, case, gen):
    """The case's words, not the operator's: offsets of 32 bits; rows before the first and after the last segment; one segment has half."""
    if case.params.get("index") == "int32":
        call["offsets"] = call["offsets"].int()
    if case.params.get("cover") == "part":
        call["offsets"] = call["offsets"].clamp(3, max(3, case.dims["M"] - 2))
    if case.params.get("cover") == "half":
        call["offsets"] = torch.cat([call["offsets"][:1], call["offsets"][1:].clamp_min(case.dims["M"] // 2)])
    return call


def torch_segment_sum(x, offsets):
    # in float32: on 16 bits PyTorch adds in 16 bits, and an error that large would let wrong answers pass
    return torch.segment_reduce(x.float(), "sum", offsets=offsets, initial=0, unsafe=True).to(x.dtype)


def backward_bytes(call, results):
    """x is an argument for its shape only."""
    return sum(t.numel() * t.itemsize for t in (call["dout"], call["offsets"], *results))


SPEC = OpSpec(
    "segment_sum",
    segment_sum,
    args={"x": Arg("M N"), "offsets": Arg("E+1", "i32|i64", make=cuts)},
    returns={"out": Arg("E N")},
    cases=(
        *across(
            FLOATS,
            Case({"M": 37, "E": 11, "N": 67}, use=("smoke", "check"), why="primes: ragged rows in a ragged tile; some segments are empty"),
            Case({"M": 0, "E": 5, "N": 8}, why="no rows: zeros"),
            Case({"M": 9, "E": 0, "N": 8}, why="no segments: the gradient is zeros"),
            Case({"M": 1, "E": 1, "N": 1}, why="one element"),
            Case({"M": 9, "E": 101, "N": 128}, why="most segments are empty"),
            Case({"M": 1000, "E": 11, "N": 1}, params=NARROW, why="one column, 32-bit offsets, whole chunks"),
        ),
        Case({"M": 331, "E": 3, "N": 131}, torch.float32, use=("smoke", "check"), why="long segments: whole chunks, heads and tails"),
        Case({"M": 203, "E": 5, "N": 20}, torch.float32, {**PART, **NARROW}, use=("smoke", "check"), why="rows that belong to no segment"),
        Case(
            {"M": 9001, "E": 101, "N": 1}, torch.float32, use=("smoke", "check"), why="rows of one number: several tiles, the last ragged"
        ),
        Case({"M": 20011, "E": 2, "N": 128}, torch.float32, why="more partial rows than a tile has"),
        Case({"M": 7, "E": 2, "N": 1025}, torch.bfloat16, why="one column into the next strip"),
        Case({"M": 1048576, "E": 16384, "N": 128}, torch.float32, use=("bench",), why="anchor"),
        Case({"M": 1048576, "E": 16384, "N": 128}, torch.bfloat16, use=("bench",), why="the same in 16 bits"),
        Case({"M": 1048576, "E": 16384, "N": 128}, torch.float32, {"cover": "half"}, use=("bench",), why="one segment has half the rows"),
        Case({"M": 67108864, "E": 1048576, "N": 1}, torch.float32, use=("bench",), why="segments of numbers"),
    ),
    peer=torch_segment_sum,
    draw_with=variants,
    linear=True,
    flops=lambda d: d["M"] * d["N"],
    backward=Backward(segment_sum_backward, grads=("x",), shaped=("x",), moved=backward_bytes),
)
