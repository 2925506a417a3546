"""The main loop out of the machine code: the shortest way through it (no new maximum, no mask, no look-up), by kind. usage: PYTHONPATH=src python .gpu/dec66/cut.py file.cu ...
alu: what goes through the pipe of 16 lanes a scheduler (integers, compares, conversions), two cycles each; slots: all."""
import collections, re, subprocess, sys
from pathlib import Path
from rooftile.cuda import compile as c
from rooftile.cuda.source import Source
ND, OUT = "/tmp/ds/tr36/triton/backends/nvidia/bin/nvdisasm", Path("/tmp/ds/d66")
ALU = ("F2FP", "SHF", "ISETP", "IADD3", "FSETP", "LEA", "PRMT", "FSEL", "LOP3", "FMNMX", "VIADD", "SEL", "MOV", "VOTE")
def loop(file, instance, tag):
    m = c.compiled(Source(Path(file)), instance, "sm_90a")
    p = OUT / f"{tag}.cubin"
    p.write_bytes(m.cubin)
    code = []
    for l in subprocess.run([ND, "-c", p], capture_output=True, text=True).stdout.splitlines():
        if k := re.search(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", l): code.append(k[2].strip())
        elif k := re.match(r"\s*(\.L_x_\d+):", l): code.append(k[1])
    labels = {t: i for i, t in enumerate(code) if t.startswith(".L_x_")}
    best = None
    for i, t in enumerate(code):
        k = re.search(r"BRA.*?(\.L_x_\d+)", t)
        if not k or labels[k[1]] > i: continue
        head, end = labels[k[1]], i
        to, way = {end: 1}, {end: None}  # shortest number from here to the end
        for j in range(end - 1, head - 1, -1):
            x = code[j]
            b = re.search(r"\bBRA\b(\.\w+)*.*?(\.L_x_\d+)", x)
            nexts = [] if x.split()[0] in ("EXIT", "RET") else [j + 1]
            if b:
                if not re.match(r"@|BRA\.DIV|BRA P|BRA \!", x) and not re.search(r"BRA U?!?P", x): nexts = []
                if labels[b[2]] > j: nexts.append(labels[b[2]])
            ok = [(to[n], n) for n in nexts if n in to]
            if ok: to[j], way[j] = min(ok)[0] + (not x.startswith(".L")), min(ok)[1]
        if head not in to: continue
        seq, j = [], head
        while j is not None: seq.append(code[j]); j = way[j]
        seq = [x for x in seq if not x.startswith(".L")]
        n = sum("LDGSTS" in x for x in seq)
        if n >= 8 and "PREEXIT" not in " ".join(seq) and (best is None or len(seq) < len(best)): best = seq
    seq = best or []
    (OUT / f"{tag}.loop").write_text("\n".join(seq))
    name = lambda x: re.sub(r"^@!?U?P\w+ ", "", x).split()[0]
    kinds = collections.Counter("F2FP" if "F2FP" in x else name(x).split(".")[0] for x in seq)
    alu = sum(n for k, n in kinds.items() if k in ALU)
    print(f"{tag:18} registers {m.registers} spills {m.spill_bytes} slots {len(seq)} alu {alu} cvt {kinds['F2FP']}:", " ".join(f"{k} {n}" for k, n in kinds.most_common() if k not in ("F2FP",)), flush=True)
if __name__ == "__main__":
    for f in sys.argv[1:]:
        big = "32" in Path(f).stem or "two" in Path(f).stem
        for tag, i in (("8r", "128, 1, false, 3, 8, 1"), ("8p", "128, 1, true, 3, 8, 1"), ("2p", "128, 1, true, 3, 2, 4")) if big else (("16r", "128, 1, false, 3, 16, 1"), ("16p", "128, 1, true, 3, 16, 1"), ("4p", "128, 1, true, 3, 4, 4")):
            try: loop(f, f"shares<__nv_bfloat16, unsigned char, __nv_bfloat16, {i}>", f"{Path(f).stem}.{tag}")
            except Exception as e: print(f, tag, str(e)[:1500])
