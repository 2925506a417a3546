nvidia-smi -L | cut -c1-50
if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; exit; fi
bash .gpu/san2.sh
unset PYTORCH_NO_CUDA_MEMORY_CACHING; bash .gpu/y1.sh
