"""What compute-sanitizer looks at beside our operators: `python tests/sanitized.py planted.TOOL` launches a kernel of tests/cuda/planted.cu with a fault for
that tool; `unseen.TOOL` one of unseen.cu, with none."""

import sys
from pathlib import Path

import torch

from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source

PLANTED, UNSEEN = (Source(Path(__file__).parent / "cuda" / f"{name}.cu") for name in ("planted", "unseen"))


def planted(tool: str) -> None:
    x = torch.empty(128, device="cuda") if tool == "initcheck" else torch.randn(128).cuda()
    out = torch.zeros(128, device="cuda")
    if tool == "memcheck":
        launch(PLANTED, "global_off_by_one", 2, 128, out, x, 128)
    else:
        launch(PLANTED, "no_barrier_before", 1, 128, out, x)


def unseen(tool: str, device: str = "cuda") -> None:
    x = torch.arange(128.0).to(device)
    out = torch.empty(128, device=device)
    if tool == "initcheck":
        copied = torch.empty_like(out)
        launch(UNSEEN, "written_by_a_bulk_copy", 1, 128, copied, x)
        launch(UNSEEN, "read", 1, 128, out, copied)
        assert torch.equal(out, 2 * x)
    else:
        launch(UNSEEN, "handed_over_by_one_lane", 1, 64, out, x, 4)
        assert torch.equal(out, x.view(4, 32).flip(1).flatten())


if __name__ == "__main__":
    kind, tool = sys.argv[1].split(".")
    {"planted": planted, "unseen": unseen}[kind](tool)
    torch.cuda.synchronize()
