from make import *
if __name__ == "__main__":
    for p in H.glob("*.cu"): p.unlink()
SWAP = (("i_s = blockIdx.x, splits = gridDim.x, i_g = blockIdx.y", "i_s = blockIdx.y, splits = gridDim.y, i_g = blockIdx.x"), ("int(gridDim.y) * group", "int(gridDim.x) * group"))
LB = "__global__ void __launch_bounds__(WARPS* WARP, PER)"
swapped = sub(base, *SWAP)
def cluster(n, s=base): return sub(s, *SWAP, (LB, LB.replace("void", f"void __cluster_dims__({n}, 1, 1)")))
def touched(s, how):
    one = {"p": 'asm volatile("prefetch.global.L2 [%0];" ::"l"(g));', "l": 'unsigned x; asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(g));'}[how]
    return sub(s, ("  auto ask = [&](int ahead, int stage) {", """#ifdef ROOFTILE_SIMULATOR
  auto touch = [&](int from) {};
#else
  auto touch = [&](int from) {
    if (from + l * step < length && 0 <= here.x && here.x < pages) {
      const C* g = gK + i_g * k_g + here.x * k_m + here.y * k_s;
      { %s }
      g = gV + i_g * v_g + here.x * v_m + here.y * v_s;
      { %s }
    }
  };
#endif
  auto ask = [&](int ahead, int stage) {""" % (one, one)),
        ("looked_up = 0, here = later, later = look_up(from + (WARP + 1) * step);", "looked_up = 0, here = later, later = look_up(from + (WARP + 1) * step), touch(from + step);"),
        ("  for (int i = 0; i < STAGES - 1; ++i) ask(i, i);\n", "  for (int i = 0; i < STAGES - 1; ++i) ask(i, i);\n  if constexpr (PAGED) touch(n);\n"))
ALL2 = {"base": base, "st_base": stamped(base), "swap": swapped, "c2": cluster(2), "c4": cluster(4), "c8": cluster(8), "st_c8": cluster(8, stamped(base)), "st_c4": cluster(4, stamped(base)), "touch_p": touched(base, "p"), "touch_l": touched(base, "l"), "_nothing": "__global__ void nothing(int* gX, int x) { if (x == 12345) *gX = x; }\n"}
for name, text in ALL2.items(): (H / f"{name}.cu").write_text(text)
