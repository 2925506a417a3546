# On the GPU; then here: python -m rooftile.workbench.counters read --plan plan.json --records records counters.csv
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
M=$(python3 -m rooftile.workbench.counters metrics)
timeout 200 ncu --profile-from-start off --csv --metrics $M python3 -m rooftile.workbench.counters launch --plan $OUT/plan.json ${*:-reduce_sum gemv} > $OUT/counters.csv 2> $OUT/counters.err
wc -l $OUT/counters.csv; tail -3 $OUT/counters.err
