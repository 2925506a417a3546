set -u
export PYTHONPATH=src ROOFTILE_CACHE=/tmp/rc
for op in embedding gelu cross_entropy cross_entropy_ahead; do for tool in memcheck racecheck initcheck; do timeout 200 python3 -c "
import sys
sys.path.insert(0,'tests')
import sanitized, test_sanitizer as t
r=t.sanitize('$tool','$op')
open('$OUT/$op.$tool.log','w').write((r.stdout+r.stderr)[:200000])
print('$op $tool',r.returncode,r.stdout[-160:].replace(chr(10),' '))
if '$tool'=='racecheck':
  for race in t.unexplained(r.stdout): print(race[:600])
" > $OUT/$op.$tool.txt 2>&1 & done; done; wait; cat $OUT/*.txt | cut -c1-300 | head -60
