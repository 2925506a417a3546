if nvidia-smi -L | grep -q H200; then bash .gpu/k7.sh; fi
bash .gpu/comm.sh
