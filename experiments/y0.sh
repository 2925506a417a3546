nvidia-smi -L | cut -c1-40
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 150 python3 .gpu/pieces2.py 2>&1 | tail -12
timeout 60 python3 .gpu/ev.py 2>&1 | grep -v Source | cut -c1-100
timeout -s INT 120 python3 -m rooftile check gemv grad_norm segment_sum --device cuda --stale --record --jobs 16 --within 100 > $OUT/c.log 2>&1; echo rc $?
timeout -s INT 120 python3 -m rooftile bench gemv grad_norm segment_sum --against torch,compile --stale --record --within 100 --jobs 15 > $OUT/d.log 2>&1; echo rc $?
tar czf $OUT/records.tgz records
