from functools import partial

import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across
from rooftile.ops.glu import reference
from rooftile.ops.glu.reference import GELU

PACKED = {"up": None}


def halves(gate, up):
    return (gate, up) if up is not None else gate.chunk(2, -1)


def torch_swiglu(gate, up):
    g, u = halves(gate, up)
    return F.silu(g) * u


def torch_geglu(gate, up, approximate):
    g, u = halves(gate, up)
    return F.gelu(g, approximate=approximate) * u


def torch_reglu(gate, up):
    g, u = halves(gate, up)
    return F.relu(g) * u


def validate(name, call, dims):
    """K of the result: up's, which is also gate's N; or half of N where gate is both."""
    n = dims["N"]
    if call["up"] is None and n % 2:
        raise ValueError(f"{name}: N is {n} in gate, which without up is gate and up side by side: N must be even")
    k = dims["K"] if call["up"] is not None else n // 2
    if call["up"] is not None and n != k:
        raise ValueError(f"{name}: N is {k} in up, but {n} in gate")
    if dims.get("K", k) != k:
        raise ValueError(f"{name}: K is {dims['K']} in dout, but half of gate's N={n} is {k}")
    if call.get("approximate", "none") not in GELU:
        raise ValueError(f"{name}: approximate is {call['approximate']!r}, takes {' or '.join(GELU)}")
    dims["K"] = k


def cases(*forms):
    """Of each form (parameters beside the tensors) a tile, and for all the first one what shapes and strides can do."""
    one = forms[0]
    shapes = (
        *(Case({"...": (3,), "N": 67, "K": 67}, params=f, use=("smoke", "check"), why="one ragged tile") for f in forms),
        Case({"...": (5,), "N": 528, "K": 264}, params={**one, **PACKED}, use=("smoke", "check"), why="side by side, rows of 16 bytes"),
        Case({"...": (2, 3), "N": 134, "K": 67}, params={**one, **PACKED}, why="side by side, primes, leading axes"),
        Case({"...": (), "N": 38, "K": 19}, params={**one, **PACKED}, why="one row side by side"),
        Case({"...": (0,), "N": 8, "K": 8}, params=one, why="nothing"),
        Case({"...": (3,), "N": 0, "K": 0}, params=one, why="rows of nothing"),
        Case({"...": (1,), "N": 1, "K": 1}, params=one, why="one element"),
        Case({"...": (5,), "N": 4099, "K": 4099}, params=one, why="prime, into a new tile of every size"),
    )
    bench = [({"M": 16384, "N": 14336, "K": 14336}, f, "anchor") for f in forms]
    bench += [
        ({"M": 4096, "N": 11008, "K": 11008}, one, "Llama 7B, 4096 tokens"),
        ({"M": 64, "N": 14336, "K": 14336}, one, "64 tokens"),
        ({"M": 1, "N": 8192, "K": 8192}, one, "a token"),
    ]
    bench += [({"M": 16384, "N": 28672, "K": 14336}, {**one, **PACKED}, "one projection of both")]
    return *across(FLOATS, *shapes), *(
        Case(d, torch.bfloat16, p, use=("bench", "call") if d["M"] <= 64 else ("bench",), why=w) for d, p, w in bench
    )


def declare(name, peer, operations, *forms):
    """`operations` of the activation and of it with its slope; the products come on top."""
    value, both = operations
    return OpSpec(
        name,
        getattr(reference, name),
        args={"gate": Arg("... N"), "up": Arg("... K", optional=True)},
        returns={"out": Arg("... K")},
        cases=cases(*forms),
        peer=peer,
        flops=lambda d: (value + 1) * d["M"] * d["K"],
        validate=partial(validate, name),
        backward=Backward(
            getattr(reference, f"{name}_backward"), grads=("gate", "up"), flops=lambda d: (both + 3) * d["M"] * d["K"]
        ),
    )  # fmt: skip


def again(name, operations, *forms):
    """The gradient of `name`, with its result over that result's own gradient."""
    gate, up = Arg("... N"), Arg("... K", optional=True)
    few = [c for c in cases(*forms) if "bench" not in c.use or c.why in ("anchor", "one projection of both")]
    return OpSpec(
        f"{name}_again",
        getattr(reference, f"{name}_again"),
        args={"dout": Arg("... K", mutated=True), "gate": gate, "up": up},
        returns={"dgate": gate, "dup": up},
        cases=tuple(few),
        flops=lambda d: (operations[1] + 4) * d["M"] * d["K"],
        validate=partial(validate, f"{name}_again"),
    )


SILU_COST, GELU_COST, RELU_COST = (4, 7), (10, 16), (1, 2)
GELU_FORMS = ({"approximate": "tanh"}, {"approximate": "none"})
SWIGLU, SWIGLU_AGAIN = declare("swiglu", torch_swiglu, SILU_COST, {}), again("swiglu", SILU_COST, {})
GEGLU, GEGLU_AGAIN = declare("geglu", torch_geglu, GELU_COST, *GELU_FORMS), again("geglu", GELU_COST, *GELU_FORMS)
REGLU, REGLU_AGAIN = declare("reglu", torch_reglu, RELU_COST, {}), again("reglu", RELU_COST, {})
