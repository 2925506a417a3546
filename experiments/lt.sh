if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; else bash .gpu/t1.sh; fi
