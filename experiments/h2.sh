if nvidia-smi -L | grep -q H200; then bash .gpu/y2.sh; exit; fi
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 300 python3 -m rooftile bench softmax log_softmax masked_softmax embedding embedding_accumulate --against torch,compile,quack,liger --stale --record --within 270 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2; tail -3 $OUT/b.log
tar czf $OUT/records.tgz records
bash .gpu/u3.sh
