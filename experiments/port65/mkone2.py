# writes one2.py of the worktree's module: INDEX (32 bits), PF (K and V of the program that comes next, into the L2), PQ, ST (dk, dv by TMA), ORDER
s=open('/work/wt-port65/src/rooftile/ops/attention/one_pass_kernels.py').read()
k,_=s.split('TURNS = 2',1)
k=k.replace('from rooftile.core.kernel import Kernel, Limits\n','')
k=k.replace("gSum, gDk, gDv, GROUPS, H,","gSum, gDk, gDv, dDk, dDv, BASE, EXTRA, NEXT, GROUPS, H,")
k=k.replace("BLOCK_N: tl.constexpr):  # fmt: skip\n    tiles = tl.cdiv(S, BLOCK_N)\n    heads","BLOCK_N: tl.constexpr, ORDER: tl.constexpr, INDEX: tl.constexpr, PF: tl.constexpr, PQ: tl.constexpr, ST: tl.constexpr):  # fmt: skip\n    tiles = tl.cdiv(S, BLOCK_N)\n    heads")
a=k.index("    heads = tl.num_programs(0) // tiles"); b=k.index("    i_b, i_h = i_bh // H, i_bh % H\n    first = i_tile")
old=k[a:b]
k=k[:a]+"    if INDEX:\n        i_tile, i_bh = _place(tl.program_id(0), tiles, BASE, EXTRA, CAUSAL)\n    else:\n"+"".join("    "+l+"\n" for l in old.rstrip().split("\n"))+k[b:]
k=k.replace("@triton.jit\ndef _pass(",'''@triton.jit
def _place(i, tiles, BASE, EXTRA, CAUSAL: tl.constexpr):
    """(tile of keys, head) of the i-th program: EXTRA groups of BASE + 1 heads, then groups of BASE; in a group by tiles."""
    if CAUSAL:
        large = EXTRA * (BASE + 1)
        together = tl.where(i // tiles < large, BASE + 1, BASE)
        skipped = tl.where(i // tiles < large, 0, large)
        i_head = skipped + (i // tiles - skipped) // together * together
        at = i - i_head * tiles
        i_tile = at // together
        i_bh = i_head + at % together
    else:
        i_tile = i % tiles
        i_bh = i // tiles
    return i_tile, i_bh


@triton.jit
def _ask(gX, stride_t, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """Rows of 256 bytes into the L2."""
    if HOW == 1:
        at = gX + tl.arange(0, 2 * BLOCK) // 2 * stride_t + tl.arange(0, 2 * BLOCK) % 2 * 64
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)
    else:
        at = gX + tl.arange(0, BLOCK) * stride_t
        tl.inline_asm_elementwise("cp.async.bulk.prefetch.L2.global [$1], 256; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _pass(''')
k=k.replace('''    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv =''','''    if PQ:
        f_m = 0
        if CAUSAL:
            f_m = first
        _ask(head_row(gQ, i_b, i_h, f_m, stride_qb, stride_qt, stride_qh), stride_qt, 2 * BLOCK_M, PQ)
        _ask(head_row(gDout, i_b, i_h, f_m, stride_gb, stride_gt, stride_gh), stride_gt, 2 * BLOCK_M, PQ)
    if PF:
        n_tile, n_bh = _place(min(tl.program_id(0) + NEXT, tl.num_programs(0) - 1), tiles, BASE, EXTRA, CAUSAL)
        _ask(head_row(gK, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_kb, stride_ks, stride_kh), stride_ks, BLOCK_N, PF)
        _ask(head_row(gV, n_bh // H, n_bh % H, n_tile * BLOCK_N, stride_vb, stride_vs, stride_vh), stride_vs, BLOCK_N, PF)
    rDk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    rDv =''')
a=k.index("        rDq = tl.dot(tl.trans(rK), rDs)\n"); b=k.index("        if BULK:\n            gSum.atomic")
k=k[:a]+'''        if ORDER == 0:
            rDk = tl.dot(rDs, rQ, rDk)
        rDq = tl.dot(tl.trans(rK), rDs)
        if ORDER == 1:
            rDk = tl.dot(rDs, rQ, rDk)
'''+k[b:]
k=k.replace("    store_tile(gDk, rDk * scale, i_b, i_h, first, i_n, S, H, D, BLOCK_N, BLOCK_D)\n    store_tile(gDv, rDv, i_b, i_h, first, i_n, S, H, DV, BLOCK_N, BLOCK_DV)\n",'''        if ORDER == 2:
            rDk = tl.dot(rDs, rQ, rDk)
    if ST:
        dDv.store([i_b, first, i_h, 0], rDv.to(gDv.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_DV))
        dDk.store([i_b, first, i_h, 0], (rDk * scale).to(gDk.dtype.element_ty).reshape(1, BLOCK_N, 1, BLOCK_D))
    else:
        store_tile(gDk, rDk * scale, i_b, i_h, first, i_n, S, H, D, BLOCK_N, BLOCK_D)
        store_tile(gDv, rDv, i_b, i_h, first, i_n, S, H, DV, BLOCK_N, BLOCK_DV)
''')
k+='''TURNS = 2


def launches(dout, q, k, v, out, lse, causal, scale, *, M=64, N=128, W=8, STAGES=3, ORDER=0, INDEX=0, PF=0, PQ=0, ST=0, NEXT=None):
    dout, q, k, v, out, lse = *map(dense, (dout, q, k, v, out)), lse.contiguous()
    (b, t, h, d), (_, s, _, dv) = q.shape, v.shape
    dq, dk, dv_ = (x.new_empty(x.shape) for x in (q, k, v))
    m, n = M, N
    padded, both = cdiv(t, m) * m, widths(d, dv)
    lse2, delta = (q.new_empty(b, h, padded, dtype=torch.float32) for _ in range(2))
    sums = q.new_empty(b, h, both["BLOCK_D"], padded, dtype=torch.float32)
    bulk = not INTERPRETED
    start, to = (launch_described, TensorDescriptor.from_tensor(sums.view(-1, padded), [both["BLOCK_D"], m])) if bulk else (launch, sums)
    groups = max(1, b * h * cdiv(s, n) // resident(q, TURNS)) if causal else b * h
    desc = [TensorDescriptor.from_tensor(x, [1, n, 1, d]) if ST else x for x in (dk, dv_)]
    base, extra = divmod(b * h, groups)
    def zero(): sums.zero_()
    def deltas():
        launch(_sums, (cdiv(t, m) * b * h,), dout, out, lse, lse2, delta, h, t, *dout.stride()[:3], *out.stride()[:3], DV=dv, BLOCK_DV=both["BLOCK_DV"], BLOCK_M=m, num_warps=8)
    def walk():
        start(_pass, (cdiv(s, n) * b * h,), dout, q, k, v, lse2, delta, to, dk, dv_, *desc, base, extra, NEXT or resident(q, 1), groups, h, t, s, padded, scale, scale * LOG2E, *dout.stride()[:3],
              *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], CAUSAL=causal, BULK=bulk, **both, EVEN_T=t % m == 0,
              EVEN_S=s % n == 0, BLOCK_M=m, BLOCK_N=n, ORDER=ORDER, INDEX=INDEX, PF=PF, PQ=PQ, ST=ST, num_warps=W, num_stages=STAGES)
    def round_():
        launch(_rounded, (cdiv(t, m) * b * h,), sums, dq, h, t, padded, scale, D=d, BLOCK_D=both["BLOCK_D"], BLOCK_M=m, num_warps=2)
    return (zero, deltas, walk, round_), (dq, dk, dv_)


def attention_backward(*call, **how):
    steps, made = launches(*call, **how)
    for f in steps:
        f()
    return made
'''
open('/work/main/.gpu/port65/one2.py','w').write(k)
k=open('/work/main/.gpu/port65/one2.py').read()
k=k.replace("        rDelta = tl.load(gDelta + i_m)\n","        if not EARLY:\n            rDelta = tl.load(gDelta + i_m)\n")
k=k.replace("        rP = tl.exp2(rS","        if EARLY:\n            rDelta = tl.load(gDelta + i_m)\n        rP = tl.exp2(rS")
k=k.replace("ST: tl.constexpr):","ST: tl.constexpr, EARLY: tl.constexpr):").replace("ST=ST, num","ST=ST, EARLY=EARLY, num").replace("PQ=0, ST=0","PQ=0, ST=0, EARLY=0")
open('/work/main/.gpu/port65/one2.py','w').write(k)
# persistent: programs take the next tile when they are through
k=open('/work/main/.gpu/port65/one2.py').read()
a=k.index("@triton.jit\ndef _pass("); b=k.index("TURNS = 2")
body=k[a:b]
tile=body.replace("def _pass(","def _tile_of_keys(i, total, nxt, ")
tile=tile.replace("tl.num_programs(0)","total").replace("tl.program_id(0)","i")
tile=tile.replace("_place(min(i + NEXT, total - 1), tiles","_place(min(nxt, total - 1), tiles")
loop=body[:body.index("    tiles = tl.cdiv(S, BLOCK_N)")].replace("def _pass(","def _pass_p(gNext, total, ")
params=[x.split(":")[0].strip() for x in loop[loop.index("(")+1:loop.index("):")].replace("\n"," ").split(",")]
params=[p for p in params if p not in ("gNext","total")]
loop+=f'''    i = tl.program_id(0)
    while i < total:
        nxt = tl.atomic_add(gNext, 1, sem="relaxed")
        _tile_of_keys(i, total, nxt, {", ".join(params)})
        i = nxt


'''
k=k[:b]+tile+loop+k[b:]
k=k.replace("NEXT=None):","NEXT=None, PERSIST=0):")
k=k.replace('''    def walk():
        start(_pass, (cdiv(s, n) * b * h,), dout,''','''    count = q.new_empty(1, dtype=torch.int32)
    def walk():
        total = cdiv(s, n) * b * h
        programs = min(total, resident(q, 1)) if PERSIST else total
        if PERSIST: count.fill_(programs)
        start(_pass_p if PERSIST else _pass, (programs,), *((count, total) if PERSIST else ()), dout,''')
open('/work/main/.gpu/port65/one2.py','w').write(k)
