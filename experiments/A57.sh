# next session, first call, on main (nothing of next52 yet). carry: A57.sh commit sp0. Then B57.sh on the same machine: who deals with D = 128's gradient how.
set -u
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-60; nvidia-smi --query-gpu=power.limit,clocks.max.sm,temperature.gpu --format=csv,noheader; date +%T
