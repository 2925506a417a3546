import torch

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, Tolerance, across
from rooftile.ops.scan.reference import scan, scan_backward

X = Arg("... N")
REVERSE, EXCLUSIVE = {"reverse": True}, {"exclusive": True}
# A rounding early in a row moves all sums after it, so a row's errors are one draw and do not average. Modelled in NumPy, 150 draws of one row
# of 20011, tiles of 1920 with a carry in the place of PyTorch's own: the largest row errors are 1.4 (a tree), 1.7 and 1.9 (tiles of 1024 and
# 4096) and 2.7 times (tiles of 128) what the gate takes as the measure. 1.5 would refuse right kernels by luck.
TOLERANCE = Tolerance(aggregate=3.0)


def torch_scan(x, exclusive, reverse):
    x = x.flip(-1) if reverse else x
    # of 16 bits PyTorch's own sums are rounded at every step: told to add in float32, as anyone who needs the digits tells it
    s = x.cumsum(-1) if x.dtype in (torch.float32, torch.int32) else x.float().cumsum(-1).to(x.dtype)
    if exclusive:
        s = torch.cat([torch.zeros_like(x[..., :1]), s[..., :-1]], -1)
    return s.flip(-1) if reverse else s


SPEC = OpSpec(
    "scan",
    scan,
    args={"x": X},
    returns={"out": X},
    cases=(
        *across(
            FLOATS,
            Case({"M": 5, "N": 67}, use=("smoke", "check"), why="primes: a ragged row in a ragged tile of rows"),
            Case({"M": 0, "N": 8}, why="no rows"),
            Case({"M": 3, "N": 0}, why="rows of nothing"),
            Case({"M": 3, "N": 1}, why="one column: a copy"),
            Case({"M": 3, "N": 1}, params=EXCLUSIVE, why="one column: all zeros"),
            Case({"...": (2, 3), "N": 128}, params=REVERSE, why="leading axes, a full tile, from the end"),
            # not longer: PyTorch's GPU scan adds 16-bit numbers in 16 bits, and over 1025 columns that excuses the next lower precision
            Case({"M": 7, "N": 129}, params={**EXCLUSIVE, **REVERSE}, why="one column into the next power of two"),
        ),
        Case({"M": 7, "N": 1025}, torch.float32, {**EXCLUSIVE, **REVERSE}, why="the same in a longer row"),
        Case({"M": 5, "N": 71}, torch.float32, EXCLUSIVE, use=("smoke", "check"), why="each element without itself"),
        Case({"M": 5, "N": 71}, torch.float32, REVERSE, use=("smoke", "check"), why="from the end"),
        Case({"M": 5, "N": 71}, torch.float32, {**EXCLUSIVE, **REVERSE}, use=("smoke", "check"), why="both switches"),
        # not longer: the interpreter sums a row one by one, which in float32 errs several times as much as the device's tree
        Case(
            {"M": 3, "N": 331}, torch.float32, use=("smoke", "check"), why="rows of several of the simulator's tiles, ragged at both ends"
        ),
        Case({"M": 1, "N": 20011}, torch.float32, why="one row longer than registers, the last tile ragged"),
        Case({"M": 1, "N": 20011}, torch.bfloat16, {**EXCLUSIVE, **REVERSE}, why="the same in 16 bits"),
        Case({"M": 2, "N": 12289}, torch.int32, why="integers are exact"),
        *across(
            (torch.float32, torch.bfloat16),
            Case({"M": 3, "N": 5000}, use=("smoke", "check"), why="16-byte rows of many tiles and more than a group of them"),
            Case({"M": 2, "N": 5000}, params={**EXCLUSIVE, **REVERSE}, why="the same with both switches"),
        ),
        Case({"M": 7, "N": 1024}, torch.int32, why="rows of one tile that blocks take in turn"),
        Case({"M": 2, "N": 5000}, torch.int32, REVERSE, why="many tiles from the end, exact"),
        Case({"M": 2, "N": 4099}, torch.int32, {**EXCLUSIVE, **REVERSE}, why="integers from the end"),
        Case({"M": 1, "N": 2**28}, torch.float32, use=("bench",), why="anchor: one row"),
        Case({"M": 4096, "N": 65536}, torch.float32, use=("bench",), why="anchor: many long rows"),
        Case({"M": 4096, "N": 65536}, torch.bfloat16, use=("bench",), why="the same in 16 bits"),
        Case({"M": 65536, "N": 2048}, torch.float32, use=("bench",), why="short rows"),
    ),
    peer=torch_scan,
    dtypes=(*FLOATS, torch.int32),
    tolerance=TOLERANCE,
    linear=True,
    flops=lambda d: d["M"] * d["N"],
    backward=Backward(scan_backward, grads=("x",), flops=lambda d: d["M"] * d["N"], tolerance=TOLERANCE),
)
