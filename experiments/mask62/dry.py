import sys, torch, pathlib, time
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lab
lab.tools()
from concurrent.futures import ThreadPoolExecutor
if sys.argv[1] == "compile":
    t = time.time()
    print(len(lab.instances()), len(lab.jobs()))
    with ThreadPoolExecutor(2) as pool:
        for (s, i), m in zip(lab.instances(), pool.map(lambda a: lab.compiler.compiled(*a, "sm_90a"), lab.instances())): print(s.path.name, i, m.registers, m.spill_bytes)
    print(time.time() - t)
else:
    from rooftile.cuda import simulator
    torch.cuda.synchronize = lambda *a: None
    mc, cc = lab.mask_call, lab.concat_call
    lab.mask_call = lambda shape, d: mc(shape, "cpu"); lab.concat_call = lambda shape, d: cc(shape, "cpu")
    where = torch.device("cpu")
    from rooftile.ops.concat_kv.reference import concat_kv
    tri = lab.concat
    lab.concat = lambda n, *c: concat_kv(*c[:8], c[8]) if n[0] == "triton" else tri(n, *c)
    trm = lab.mask
    lab.mask = lambda n, *c: lab.OPS["attention_mask"].spec.reference(*c) if n[0] == "triton" else trm(n, *c)
    with simulator.active():
        for k, (shape, names) in lab.MASKS.items():
            small = (2, min(shape[1], 2), 9, 64, *shape[4:])
            lab.of("m", k, small, names[:6] + names[-3:], where, 1, 2)
        for k, (shape, names) in lab.CONCATS.items():
            small = (2, 3, 8, 64, shape[4] // 2, 16, min(shape[6], 2), *shape[7:])
            lab.of("c", k, small, names, where, 1, 2)
