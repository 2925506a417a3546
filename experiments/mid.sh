cd /work/main; export PYTHONPATH=src
d=$(ls -d /work/.device/*/ | sort -t/ -k4 -n | tail -1); ls $d
.venv/bin/python .gpu/merge.py $d/records0.tgz $d/records1.tgz | wc -l
.venv/bin/rooftile records --stale --json > /tmp/st.json
.venv/bin/python - <<'P'
import json
d=[r for r in json.load(open('/tmp/st.json')) if r['device']=='nvidia-h200' and r['us'] is not None]
skip={'rmsnorm','layernorm','add_rmsnorm','softmax','cross_entropy','rope','rope_overwrite','attention'}
ops=sorted({r['op'].removesuffix('_backward') for r in d}-skip)
left=[o for o in ops if '.' not in o]
print(len(d),left); open('/work/main/.gpu/left','w').write(' '.join(left) if left else 'gelu')
P
