set -u
nvidia-smi -L | cut -c1-40
export PYTHONPATH=src ROOFTILE_CACHE=/tmp/rc
for tool in memcheck racecheck initcheck; do timeout 170 python3 -c "
import sys
sys.path.insert(0,'tests')
import sanitized, test_sanitizer as t
import rooftile.core.kernel as k
r=t.sanitize('$tool','attention')
open('$OUT/$tool.log','w').write(r.stdout+r.stderr)
print('$tool',r.returncode,r.stdout[-300:])
if '$tool'=='racecheck':
  for race in t.unexplained(r.stdout): print(race[:600])
" > $OUT/$tool.txt 2>&1 & done; wait; cat $OUT/*.txt | cut -c1-400 | head -80
