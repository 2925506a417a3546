"""What NVRTC makes of the headers for Hopper: every wrapper assembles, nothing spills, and what the assembler could not do as asked is told."""

from pathlib import Path

import pytest

from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source

FOLDER = Path(__file__).parent / "cuda"
HOPPER, GEMM = (Source(FOLDER / f"{name}.cu") for name in ("hopper", "gemm_hopper"))
PLAIN = ["attend", "operand_stored", "bulk", "through_global", "tile<__half, 2048>", "boxes", "ring", "ping_pong", "product_stored"]
PRODUCTS = [f"product<{t}, {n}, 128, 0, 0>" for t in ("__half", "__nv_bfloat16", "E4M3") for n in (8, 16, 32, 64, 96, 128, 192, 256)]
PRODUCTS += [f"product_registers<{t}, {n}, 0>" for t in ("__half", "__nv_bfloat16", "E4M3") for n in (64, 128, 256)]
PRODUCTS += ["product<__half, 64, 64, 1, 1>", "product_registers<__nv_bfloat16, 256, 1>"]


@pytest.mark.sampled(11)
@pytest.mark.parametrize("instance", [*PLAIN, *PRODUCTS])
def test_every_wrapper_assembles(instance):
    made = compiler.compiled(HOPPER, instance, "sm_90a")
    assert made.spill_bytes == 0 and made.loss == ""
    if instance in PRODUCTS:
        n = int(instance.split(", ")[1].rstrip(">"))
        assert n / 2 < made.registers <= n / 2 + 48  # the sums, and little else


def test_the_gemm_keeps_its_sums_in_registers():
    made = compiler.compiled(GEMM, "gemm<4>", "sm_90a")
    assert made.spill_bytes == 0 and made.loss == ""
    assert made.registers == 168  # 65536 over 384 threads, as setmaxnreg wants it: what each role has is its own word


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_elsewhere_they_compile_to_a_trap(arch):
    assert compiler.compiled(GEMM, "gemm<4>", arch).registers < 32


LOST = """#include <cuda_bf16.h>
#include "rooftile/wgmma.cuh"
using namespace rooftile;
__global__ void __launch_bounds__(128, 1) read_while_under_way(float* gD, int n) {
  __shared__ __align__(1024) char sX[64 * 128];
  float d[32];
  wgmma_fence(d);
  for (int i = 0; i < n; ++i) {
    wgmma<__nv_bfloat16, 64>(d, k_major<128>(sX), k_major<128>(sX), i > 0);
    wgmma_commit();
    wgmma_wait<1>();
    gD[i * 128 + threadIdx.x] = d[1];
  }
  wgmma_wait<0>(d);
  gD[threadIdx.x] = d[0];
}
__global__ void fine(float* gD) { gD[0] = 1.0f; }
"""


def test_what_the_assembler_could_not_do_is_told(tmp_path):
    (tmp_path / "lost.cu").write_text(LOST)
    source = Source(tmp_path / "lost.cu")
    assert "serialized" in compiler.compiled(source, "read_while_under_way", "sm_90a").loss
    assert compiler.compiled(source, "fine", "sm_90a").loss == ""
