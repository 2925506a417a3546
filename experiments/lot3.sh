if nvidia-smi -L | grep -q H200; then bash .gpu/n1.sh; else bash .gpu/y1.sh; fi
