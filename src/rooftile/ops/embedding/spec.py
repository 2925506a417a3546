import torch
import torch.nn.functional as F

from rooftile.core.spec import FLOATS, Arg, Backward, Case, OpSpec, across, index
from rooftile.ops.embedding.reference import embedding, embedding_accumulate, embedding_backward

NONE = {"padding_idx": -1}


def torch_embedding(indices, weight, padding_idx):
    return F.embedding(indices, weight, padding_idx if padding_idx >= 0 else None)


def forward_bytes(call, results):
    """A row of the weight is read once, however often it is asked for; rows nobody asks for stay where they are."""
    indices, weight = call["indices"], call["weight"]
    asked = int(indices.unique().numel()) * weight.shape[1] * weight.itemsize
    return indices.numel() * indices.itemsize + asked + sum(t.numel() * t.itemsize for t in results)


def backward_bytes(call, results):
    """The weight is an argument for its shape only."""
    return sum(t.numel() * t.itemsize for t in (call["dout"], call["indices"], *results))


SPEC = OpSpec(
    "embedding",
    embedding,
    args={"indices": Arg("...", "i64", make=index("V")), "weight": Arg("V N")},
    returns={"out": Arg("... N")},
    cases=(
        *across(
            FLOATS,
            Case({"M": 37, "V": 11, "N": 67}, params=NONE, use=("smoke", "check"), why="primes: ragged rows in a ragged tile"),
            Case({"M": 0, "V": 5, "N": 8}, params=NONE, why="no tokens: the gradient is zeros"),
            Case({"M": 9, "V": 7, "N": 1}, params=NONE, why="one column"),
            Case({"M": 9, "V": 7, "N": 0}, params=NONE, why="no columns"),
            Case({"...": (2, 3, 5), "V": 101, "N": 128}, params=NONE, why="leading axes; most rows are not asked for"),
            Case({"M": 7, "V": 13, "N": 1025}, params=NONE, why="one column into the next tile"),
        ),
        Case({"M": 211, "V": 2, "N": 20}, torch.float32, NONE, use=("smoke", "check"), why="long segments: whole chunks, heads and tails"),
        Case({"M": 203, "V": 3, "N": 20}, torch.float32, {"padding_idx": 1}, use=("smoke", "check"), why="a frequent token is padding"),
        Case({"M": 32768, "V": 50304, "N": 768}, torch.bfloat16, NONE, use=("bench",), why="GPT-2's training step"),
        Case(
            {"M": 32768, "V": 50304, "N": 768}, torch.float32, NONE, use=("bench",), why="the same with float32 weights, as autocast has it"
        ),
        Case({"M": 32768, "V": 256, "N": 768}, torch.bfloat16, NONE, use=("bench",), why="bytes as tokens: every token is frequent"),
        Case({"M": 32768, "V": 1, "N": 768}, torch.bfloat16, NONE, use=("bench",), why="one token for all: the longest segment"),
        Case({"M": 16384, "V": 128256, "N": 4096}, torch.bfloat16, NONE, use=("bench",), why="anchor"),
    ),
    peer=torch_embedding,
    families=("scaled_rows", "large", "all_equal", "nan"),
    linear=True,
    moved=forward_bytes,
    backward=Backward(embedding_backward, grads=("weight",), flops=lambda d: d["M"] * d["N"], moved=backward_bytes),
)


def accumulated_bytes(call, results):
    """Rows that were asked for are read and written; the others stay where they are."""
    dout, indices, dweight = (call[n] for n in ("dout", "indices", "dweight"))
    asked = int(indices.unique().numel()) * dweight.shape[1] * dweight.itemsize
    return dout.numel() * dout.itemsize + indices.numel() * indices.itemsize + 2 * asked


# Where a weight has another gradient already, as a head that is the embedding again has.
ACCUMULATE = OpSpec(
    "embedding_accumulate",
    embedding_accumulate,
    args={"dout": Arg("... N"), "indices": Arg("...", "i64", make=index("V")), "dweight": Arg("V N", mutated=True)},
    returns={},
    cases=(
        *(c for c in SPEC.cases if "bench" not in c.use or c.dims["V"] == 50304),
        Case({"M": 16384, "V": 128256, "N": 2048}, torch.bfloat16, NONE, use=("bench",), why="Llama 1.2B's training step"),
    ),
    families=("scaled_rows", "large"),
    moved=accumulated_bytes,
    flops=lambda d: d["M"] * d["N"],
)
