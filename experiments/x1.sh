# sitepart0 first; an H200 has the models' test and the whole gate, an H100 reads under each policy
nvidia-smi -L | cut -c1-40
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/
if nvidia-smi -L | grep -q H200; then bash .gpu/n1.sh; else PYTHONPATH=src timeout 200 python3 .gpu/ev.py; fi
