set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
t() { timeout -s INT 100 python3 -m rooftile tune $1 --case $2 --every cuda,triton --jobs 15 --json > $OUT/tune_$1_$2.json 2> $OUT/tune.err; echo tune $1 $2 rc $?; }
