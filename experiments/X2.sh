set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
cp .gpu/sp1 /root/peers/; bash .gpu/k7.sh
