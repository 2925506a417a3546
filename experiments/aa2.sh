if nvidia-smi -L | grep -q H200; then bash .gpu/y2.sh; else echo "an H100: kept for later"; fi
