import sys,re,subprocess
sys.path.insert(0,'/work/main/src')
from rooftile.cuda.source import Source
from rooftile.cuda import compile as c
from pathlib import Path
ND='/tmp/ds/tr36/triton/backends/nvidia/bin/nvdisasm'
def loop(file,inst,tag):
    m=c.compiled(Source(Path(file)),inst,"sm_90a"); p=f"/tmp/ds/v5/{tag}.cubin"; open(p,"wb").write(m.cubin)
    out=subprocess.run([ND,"-c",p],capture_output=True,text=True).stdout; code=[]
    for l in out.splitlines():
        k=re.search(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);",l)
        if k: code.append((int(k[1],16),k[2].strip()))
        else:
            k=re.match(r"\s*(\.L_x_\d+):",l)
            if k: code.append((None,k[1]))
    labels={t:i for i,(a,t) in enumerate(code) if a is None}; best=[]
    for i,(a,t) in enumerate(code):
        k=re.search(r"BRA.*`?\(?(\.L_x_\d+)",t)
        if a is not None and k and k[1] in labels and labels[k[1]]<i:
            seg=[x for y,x in code[labels[k[1]]:i+1] if y is not None]
            if sum("HGMMA" in x for x in seg)>10: best.append((len(seg),labels[k[1]],i))
    n,s,e=min(best); seg=[x for y,x in code[s:e+1] if y is not None]
    open(f"/tmp/ds/v5/{tag}.loop","w").write("\n".join(seg))
    i_wait=max(i for i,x in enumerate(seg) if "DEPBAR.LE gsb0, 0x0" in x); first=next(i for i,x in enumerate(seg) if x.startswith("HGMMA"))
    print(f"{tag:28s} regs {m.registers} spill {m.spill_bytes} loop {n} | after the last wait {n-i_wait-1}, before the first product {first}, R2UR {sum('R2UR' in x for x in seg)}"); return seg
INST={"c80":"attention_backward<__nv_bfloat16, 128, true, false, false, 80>","f80":"attention_backward<__nv_bfloat16, 128, false, false, false, 80>","c64":"attention_backward<__nv_bfloat16, 128, true, false>","f64":"attention_backward<__nv_bfloat16, 128, false, false>","cd64":"attention_backward<__nv_bfloat16, 64, true, false>","fd64":"attention_backward<__nv_bfloat16, 64, false, false>"}
if __name__=="__main__":
    for f in sys.argv[1:]:
        for k,i in INST.items():
            try: loop(f,i,f"{Path(f).stem}.{k}")
            except Exception as e: print(f,k,str(e)[:300])
