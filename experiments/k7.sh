set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
nvidia-smi -L; df -h /dev/shm /tmp | tail -2
if [ $(df --output=avail /dev/shm | tail -1) -gt 60000000 ]; then export TMPDIR=/dev/shm; fi   # checkpoints of 15 GB a run: not to disk
time timeout -s INT 340 python3 -m rooftile bench scaling.llama-1.2b --record > $OUT/b.log 2>&1; echo rc $?; tail -12 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
