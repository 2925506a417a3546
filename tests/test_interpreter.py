"""The interpreter as a judge: each fault that it is there for, planted, is named, and the same program without it is not suspected."""

import functools

import pytest

import processes

KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(gX, gOut, N):
    p = tl.program_id(0)
    i = p * 4 + tl.arange(0, 4)
    BODY
"""
CALL = """
import importlib.util, sys, torch
from rooftile.workbench import interpreter
spec = importlib.util.spec_from_file_location("given", sys.argv[1])
given = importlib.util.module_from_spec(spec)
spec.loader.exec_module(given)
x, out = torch.arange(6.0), torch.zeros(6)
given.kernel[(2,)](x, out, 6)
assert torch.equal(x, out)
"""
TOLD = "{before}; tl.atomic_add(gX, 0.0, sem='{sem}'); {after}"  # what a program stores before it tells, one that listens may read
SPOKEN = {
    "STORE": "tl.store(gOut + i, tl.load(gX + i, mask=i < N), mask=i < N)",
    "READ": "tl.device_assert(tl.load(gOut + p * 0) >= 0)",
    "AHEAD": "tl.load(gOut + 4, mask=p == 0)",  # where the program after it stores
}
BODIES = {
    "tl.store(gOut + i, tl.load(gX + i, mask=i < N), mask=i < N)": None,
    "tl.store(gOut + i, tl.load(gX + i), mask=i < N)": "load: 2 of 4 active lanes out of bounds in program (1, 0, 0)",
    "tl.store(gOut + i, tl.load(gX + i, mask=i <= N), mask=i < N)": "load: 1 of 3 active lanes out of bounds",
    "tl.store(gOut + i, tl.load(gX + i, mask=(i <= N) & (N != 0)), mask=i < N)": "load: 1 of 3 active lanes out of bounds",
    "tl.store(gOut + i, tl.load(gX + i, mask=i < N), mask=(i < N) & (N != 0))": None,
    "tl.store(gOut + i, tl.load(gX + i - 1, mask=i < N), mask=i < N)": "the first is -4 bytes from the start",
    "tl.store(gOut + i, tl.load(gX + i, mask=i < N))": "store: 2 of 4 active lanes out of bounds",
    "tl.store(gOut + tl.arange(0, 4), tl.load(gX + i, mask=i < N))": "programs (0, 0, 0) and (1, 0, 0) both store to one address",
    "tl.store(gOut + i, tl.load(gOut + i - p, mask=i < N), mask=i < N)": "program (1, 0, 0) reads what program (0, 0, 0) wrote",
    "tl.store(gOut + i, tl.load(gX + i, mask=i < N) + (i == 5), mask=i < N)": "AssertionError",
    TOLD.format(before="STORE", sem="acq_rel", after="READ"): None,
    TOLD.format(before="STORE", sem="relaxed", after="READ"): "program (1, 0, 0) reads what program (0, 0, 0) wrote",
    TOLD.format(before="STORE", sem="release", after="READ"): "program (1, 0, 0) reads what program (0, 0, 0) wrote",
    TOLD.format(before="pass", sem="acq_rel", after="STORE; READ"): "program (1, 0, 0) reads what program (0, 0, 0) wrote",
    "AHEAD; STORE": "program (1, 0, 0) stores where program (0, 0, 0) has read",
    TOLD.format(before="AHEAD", sem="acq_rel", after="STORE"): None,
    TOLD.format(before="AHEAD", sem="relaxed", after="STORE"): "program (1, 0, 0) stores where program (0, 0, 0) has read",
    TOLD.format(before="pass", sem="acq_rel", after="AHEAD; STORE"): "program (1, 0, 0) stores where program (0, 0, 0) has read",
    "tl.store(gOut + i, tl.load(gX + i, mask=(i > 0) & (i < N), other=0.0), mask=i < N)": None,
    "tl.store(gOut + i, tl.load(gX + i, mask=(i > 0) & (i < N)), mask=i < N)": "AssertionError",  # x begins with 0, and so did what was not loaded
}


@pytest.mark.parametrize("body", BODIES)
def test_what_it_sees(body, tmp_path):
    said = functools.reduce(lambda text, word: text.replace(word, SPOKEN[word]), SPOKEN, body)
    (tmp_path / "given.py").write_text(KERNELS.replace("BODY", said))
    done = processes.run(str(tmp_path / "given.py"), code=CALL, TRITON_INTERPRET="1")
    assert (done.returncode == 0) == (BODIES[body] is None), done.stderr[-2000:]
    assert (BODIES[body] or "") in done.stderr
