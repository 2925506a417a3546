mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; nvidia-smi -L | cut -c1-40
