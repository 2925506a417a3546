set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 60 python3 -m rooftile bench mlp gated_mlp linear_add --against torch,compile --stale --record --within 35 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left" $OUT/b.log | cut -c1-70
tar czf $OUT/records.tgz records
