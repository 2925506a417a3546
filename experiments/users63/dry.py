"""The variants in Triton's interpreter, on the CPU."""
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch, lab
from rooftile.core.spec import Case
for m, n in ((3, 1024), (4, 512), (5, 264)):
    call = lab.OP.spec.draw(Case({"M": m, "N": n}, torch.bfloat16, {"scale": 0.5}), 0, "cpu")
    right = lab.OP.spec.reference(**{k: v.float() if k in ("x", "bias", "residual") else v for k, v in call.items()}).bfloat16()
    for name, run in lab.VERSIONS.items():
        if "bare" in name and m * n % int(name[4:].split("w")[0]): continue
        got = run(**call)
        print(m, n, name, torch.equal(got, right)) if not torch.equal(got, right) else None
print("dry ok")
