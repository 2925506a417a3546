set -u
nvidia-smi -L | cut -c1-30
export PYTHONPATH=src
timeout 60 python3 .gpu/mean43.py > $OUT/mean.txt 2>&1; tail -12 $OUT/mean.txt | cut -c1-300
timeout 80 python3 .gpu/prof43.py gpt2 $OUT/gpt2.tl > $OUT/gpt2.txt 2>&1; head -45 $OUT/gpt2.txt | cut -c1-140
timeout 120 python3 .gpu/prof43.py llama $OUT/llama.tl > $OUT/llama.txt 2>&1; head -40 $OUT/llama.txt | cut -c1-140
