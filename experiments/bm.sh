# usage: bm.sh BEFOREDIR extra flags
B=$1; shift
T="-x c++ -std=c++17 -fPIC -O1 -fno-semantic-interposition -finline-small-functions -g1 -gdwarf-4 -fno-tree-sra -fno-var-tracking -fno-var-tracking-assignments -fno-strict-aliasing -fno-exceptions -fno-gnu-unique -ffp-contract=off -fno-math-errno -fno-finite-loops -fsanitize=thread --param tsan-distinguish-volatile=1 --param tsan-instrument-func-entry-exit=0 -fsanitize-coverage=trace-pc -fstack-clash-protection -w"
T="$T $@"
if [ $B = make ]; then B=/tmp/pch; rm -rf $B; mkdir $B; g++ ${T/c++ -std/c++-header -std} /work/main/src/rooftile/cuda/simulator/device/before.h -o $B/before.h.gch; fi
time (for d in $(cat /tmp/sel); do g++ $T -I /tmp/corp/$d -I $B -I /work/main/src/rooftile/cuda/simulator/device -include before.h /tmp/corp/$d/unit.cpp -I $d/absent -c -o /tmp/o.o || echo bad $d; done)
