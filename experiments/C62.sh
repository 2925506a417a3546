# carry: C62.sh sp0 liger.tar.xz commit; D62.sh right behind it, on the same machine
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/sp0; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
rm -rf ~/.cache/rooftile/ceilings
ops="attention_mask concat_kv concat_kv_e4m3 bias_mask_scale_add gemv grad_norm dropout_add_norm add_layernorm add_rmsnorm layernorm cross_entropy embedding embedding_accumulate adamw adamw_measured mlp"
timeout -s INT -k 20 300 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 265 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-400; keep
python3 -c "
import torch
from rooftile.core.device import ceilings
print(ceilings(torch.device('cuda',0)))"
