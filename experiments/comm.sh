export PYTHONPATH=src; nvidia-smi -L; nvidia-smi topo -m | head -4
T="timeout 60 python3 -m torch.distributed.run --standalone --nproc-per-node 2 .gpu/comm.py"
f() { grep -v -E 'WARN|warn|^\*|OMP|^$'; }
$T micro plain 2>&1 | f | tail -12
for e in NCCL_MIN_CTAS=32 NCCL_MIN_CTAS=64 NCCL_BUFFSIZE=16777216 NCCL_PROTO=Simple "NCCL_MAX_CTAS=8" "NCCL_MAX_CTAS=4"; do env $e $T micro 2>&1 | f | tail -5; done
for k in ddp fsdp; do $T step $k > $OUT/$k.txt 2>&1; f < $OUT/$k.txt| head -3; done
RANK=0 timeout 60 python3 .gpu/comm.py step none > $OUT/none.txt 2>&1;  f < $OUT/none.txt | head -3
