export PYTHONPATH=src
timeout 150 python3 .gpu/att35b.py NOCPQRS 2>&1 | tail -12
timeout 100 ncu --profile-from-start off --cache-control none --clock-control none --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sector_hit_rate.pct python3 .gpu/ncu35.py > $OUT/n.txt 2> $OUT/n.err; grep -E "prepare|attention_backward<|finish|duration|dram__|hit_rate" $OUT/n.txt | cut -c1-120
