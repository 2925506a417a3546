export PYTHONPATH=src PYTHONUNBUFFERED=1
export ROOFTILE_CACHE=/tmp/rc
timeout 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl 2>$OUT/errt; tail -2 $OUT/errt
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
