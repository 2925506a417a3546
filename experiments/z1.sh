bash .gpu/u3.sh
cp -r $OUT/records.tgz /root/r1.tgz
bash .gpu/counters.sh gemv
