mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; nvidia-smi --query-gpu=name --format=csv
