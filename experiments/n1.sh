set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; nvidia-smi --query-gpu=name --format=csv,noheader
timeout 150 python3 -m pytest -q -s -m gpu tests/test_models.py > $OUT/models.log 2>&1; echo models rc $?; tail -25 $OUT/models.log
bash .gpu/k12.sh
