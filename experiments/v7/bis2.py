import sys,re
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
base=Path(".gpu/v7/v7.cu").read_text().replace("#define VARIANT 1","#define VARIANT 2")
def go(name,t,causal="false"):
    p=Path(f"/tmp/v7b.cu"); p.write_text(t)
    k=compiled(Source(p),f"attention_backward<__nv_bfloat16, {causal}>","sm_90a"); print(name,causal,k.registers,k.spill_bytes,k.loss[:60] if k.loss else k.loss,flush=True)

notail=base
a=notail.index("  {\n    float dq[48];\n    const unsigned before = step - 1;"); b=notail.index("  barrier_sync(1, 256);\n  store_rows<T, DV>")
notail=notail[:a]+notail[b:]
go("no tail",notail)
one=base[:a]+base[b:]
u=one.index("    if (step > 0) {\n      consumer_wait(sR.ds, Stage<DS_STAGES>{before, int((step - 1) / DS_STAGES % 2)});\n      make_dq")
one=one.replace("  do {\n    const Stage<STAGES> at{","  for (;;) {\n    const int before = (step + 2) % DS_STAGES;\n    float dq[48];\n    if (step < sR.work.count) {\n    const Stage<STAGES> at{")
one=one.replace("    float dq[48];\n    const int before = (step + 2) % DS_STAGES;\n","")
one=one.replace("    wgmma_wait<0>(dk);\n    if (step > 0) {","    wgmma_wait<0>(dk);\n    consumer_release(sR.q, at);\n    if (lane() == 0) producer_commit(sR.ds, Stage<DS_STAGES>{int(step % DS_STAGES), 0});\n    }\n    if (step > 0) {")
one=one.replace("""    if (lane() == 0) producer_commit(sR.ds, Stage<DS_STAGES>{int(step % DS_STAGES), 0});
    consumer_release(sR.q, at);
    if (++i == sR.work.blocks) i = sR.work.first;
  } while (++step < sR.work.count);""","""    if (step++ == sR.work.count) break;
    if (++i == sR.work.blocks) i = sR.work.first;
  }""")
Path("/tmp/one.cu").write_text(one)
go("one",one); go("one",one,"true")
