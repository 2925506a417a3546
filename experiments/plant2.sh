cd /work/next; export PYTHONPATH=/work/next/src; unset PYTHONDONTWRITEBYTECODE
cp "$1" /tmp/plant2.bak
python3 - "$1" "$2" "$3" <<'P'
import sys
p,a,b=sys.argv[1:]; s=open(p).read(); assert s.count(a)==1,(s.count(a),a); open(p,"w").write(s.replace(a,b))
P
timeout 600 /work/main/.venv/bin/python -m pytest -q $4 -k "$5" 2>&1 | tail -1
cp /tmp/plant2.bak "$1"
