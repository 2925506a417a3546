# first of a batch: on an H200 the gate of what is stale (y1), else the experiment named
if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; else bash $1; fi
