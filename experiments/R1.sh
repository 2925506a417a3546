# last call. H200: decode, GPT-2's training; H100: what the day made stale. carry: R1.sh commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-30; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
go() { t=$1; shift; timeout -s INT $t python3 -m rooftile bench "$@" --record --within $((t-12)) --jobs 15 > $OUT/b.log 2>&1; echo "rc $? $(date +%T) $1"; grep -i "^left" $OUT/b.log | cut -c1-100; cat $OUT/b.log >> $OUT/all.log; tar czf $OUT/records.tgz records; }
if nvidia-smi -L | grep -q H200; then
go 75 attention_decode --against torch,compile
timeout -s INT 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -4 $OUT/gpt2.log | cut -c1-300
else
( export ROOFTILE_CACHE=/tmp/rc; for tool in memcheck racecheck initcheck; do timeout 100 python3 -c "
import sys
sys.path.insert(0,'tests')
import test_sanitizer as t
r=t.sanitize('$tool','segment_sum')
print('$tool',r.returncode,r.stdout[-120:].replace(chr(10),' '))
if '$tool'=='racecheck':
  for race in t.unexplained(r.stdout): print(race[:600])
" > $OUT/san.$tool.txt 2>&1 & done; wait ); tail -qn 3 $OUT/san.*.txt | cut -c1-250
go 60 segment_sum --against torch,compile
go 45 layernorm add_layernorm --against torch,compile,liger --stale
go 75 linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger --stale
go 60 mlp gated_mlp linear_add --against torch,compile,liger --stale
go 40 rotary_attention --against torch,compile --stale
fi
date +%T
tar czf $OUT/records.tgz records
