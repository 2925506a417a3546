"""What compute-sanitizer looks at (tests/test_sanitizer.py): `python tests/sanitized.py OP` launches every kernel of an operator and of its gradient once on each
small case; `planted.TOOL` launches a kernel of tests/cuda/planted.cu instead, with a fault for that tool; `unseen.TOOL` one of unseen.cu, with none."""

import sys
from pathlib import Path

import torch

import rooftile.ops  # noqa: F401  (fills OPS)
from rooftile.core.kernel import OPS
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.workbench.check import with_gradients

PLANTED, UNSEEN = (Source(Path(__file__).parent / "cuda" / f"{name}.cu") for name in ("planted", "unseen"))


def on_gpu(value):
    if isinstance(value, (list, tuple)):
        return [on_gpu(v) for v in value]
    return value.cuda() if isinstance(value, torch.Tensor) else value


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


def main(name: str) -> None:
    kind, _, tool = name.partition(".")
    if tool:
        {"planted": planted, "unseen": unseen}[kind](tool)
    else:
        count = 0
        for op in with_gradients([OPS[name]]):
            for case in (c for c in op.spec.cases if "smoke" in c.use):
                call = op.spec.draw(case)  # on the CPU: what the tool looks at is ours
                for kernel in op.kernels[:-1]:
                    inputs = {n: on_gpu(v) for n, v in call.items()}
                    if kernel.objection(inputs) is None and not kernel.name.startswith("cudnn"):
                        kernel.bound(op.config(kernel, inputs))(*inputs.values())
                        count += 1
        print(f"{count} launches", flush=True)
        assert count
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
