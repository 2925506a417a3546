# x2: scaling over both GPUs; brings sp0 for R66b. carry: R66a.sh sp0 commit
set -u
mkdir -p /root/peers /tmp/r0 /tmp/r1; cp .gpu/sp0 /root/peers/
cp -r records /tmp/r0/; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
if [ $(df --output=avail /dev/shm | tail -1) -gt 60000000 ]; then export TMPDIR=/dev/shm; fi
time timeout -s INT -k 10 330 python3 -m rooftile bench scaling.llama-1.2b --record --folder /tmp/r0/records > $OUT/b.log 2>&1; echo rc $?; tail -12 $OUT/b.log | cut -c1-200
tar czf $OUT/records0.tgz -C /tmp/r0 records
