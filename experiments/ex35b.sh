mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/ 2>/dev/null
export PYTHONPATH=src
timeout 200 python3 .gpu/att35.py 2>&1 | tail -50
timeout 60 python3 .gpu/lce35.py 2>&1 | grep -v arn | tail -8
timeout 60 python3 .gpu/seg35.py 2>&1 | tail -8
