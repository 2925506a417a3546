mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/
PYTHONPATH=src:/tmp/lig timeout 150 python3 .gpu/lce.py 2>&1 | tail -40
bash .gpu/ncu1.sh
