set -u
export PYTHONPATH=src
timeout 300 ncu --profile-from-start off --cache-control none --section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats --section SchedulerStats --section Occupancy --section LaunchStats --section InstructionStats python3 .gpu/ncu1.py > $OUT/ncu.txt 2> $OUT/ncu.err; echo rc $?; tail -2 $OUT/ncu.err
grep -E "^  [a-z_A-Z].*\(|Duration|SM Frequency|DRAM Throughput|Memory Throughput|L2 Hit|Compute \(SM\)|Issued Warp|Eligible|No Eligible|Achieved Occ|Registers Per|Stall|L1/TEX Hit|Max Bandwidth|Mem Busy" $OUT/ncu.txt | cut -c1-150 | head -140
