set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
rm -rf /tmp/r0 /tmp/r1; mkdir -p /tmp/r0 /tmp/r1; cp -r records /tmp/r0/; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
nvidia-smi -L | cut -c1-50
go() { g=$1; shift; CUDA_VISIBLE_DEVICES=$g timeout -s INT -k 10 125 python3 -m rooftile bench "$@" --against torch,compile,liger --stale --record --folder /tmp/r$g/records --within 85 --jobs 14 > /tmp/$g.log 2>&1; echo "$g rc $?"; grep -i "^left\|^seconds" /tmp/$g.log | cut -c1-100; tar czf $OUT/records$g.tgz -C /tmp/r$g records; date +%T; }
( go 0 linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen segment_sum ) > /tmp/g0.txt 2>&1 &
( go 1 rotary_attention attention_decode attention_decode_e4m3 ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
bash .gpu/k7.sh
