set -u
test -d /tmp/site/nvidia_cutlass_dsl || { echo "another machine"; exit 9; }
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
B="timeout -s INT"; go() { $B $1 python3 -m rooftile bench $2 --case $3 --against torch,compile,fa4,flex --stale --record --within $(($1-25)) --jobs 15 >> $OUT/b.log 2>&1; echo $2 $3 rc $?; }
go 110 attention B1_T16384_S16384_H32_D64; go 90 attention B1_T16384_S16384_H16_D128; go 50 attention B4_T4096_S4096_H32_D64
$B 110 python3 -m rooftile bench attention_varlen --against torch,compile,fa4,flex --stale --record --within 85 --jobs 15 >> $OUT/b.log 2>&1; echo varlen rc $?
grep -i "^left" $OUT/b.log | cut -c1-100
tar czf $OUT/records.tgz records
