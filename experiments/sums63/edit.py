import re
s = open('v7.cu').read()
use = "    if (looked < until) settle(looked, starts, stops);\n"
assert s.count(use) == 1
end = "    sMarks = sOther, here += SIZE;\n"
assert s.count(end) == 1
open('v7_end.cu','w').write(s.replace(use, "").replace(end, use + end))
load = "    if (looked < until) starts = gOffsets[looked], stops = gOffsets[looked + 1];\n"
assert s.count(load) == 1
open('v7_none.cu','w').write(s.replace(use, "").replace(load, ""))
# settle by cp.async: asked for a tile ahead
opaque = '  const int count = int(min((long long)tiles * SIZE, end - first));\n'
assert s.count(opaque) == 1
c = open('c32.cu').read()
assert c.count(use) == 1 and c.count("    __syncwarp();\n    ask(stage, left - STAGES * SIZE);\n") == 1
open('c32_end.cu','w').write(c.replace(use,"").replace("    __syncwarp();\n    ask(stage, left - STAGES * SIZE);\n", "    __syncwarp();\n    ask(stage, left - STAGES * SIZE);\n" + use))
load2 = "    if (looked < until) starts = gOffsets[looked], stops = gOffsets[looked + 1];  // on their way while this tile is waited for\n"
assert c.count(load2) == 1
open('c32_none.cu','w').write(c.replace(use,"").replace(load2,""))
