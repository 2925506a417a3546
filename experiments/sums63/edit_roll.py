s=open('v6_both.cu').read()
old='''  for (int here = 0; here < count; here += ROWS, ask(here)) {'''
assert s.count(old)==1
s=s.replace(old,'''  for (int here = 0; here < count; here += ROWS) {''')
old='''        for (int k = 0; k < WIDTH; ++k) rSum[k] += float(rX[r][k]);
      }
'''
assert s.count(old)==1
s=s.replace(old,old+'''      if (here + r + ROWS < count && mine) {
        if constexpr (sizeof(T) * WIDTH == 16) rX[r].whole = load_global(reinterpret_cast<const uint4*>(gNext), policy);
        else load_global(rX[r], gNext);
      }
      gNext += stride;
''')
open('v6_roll.cu','w').write(s)
s=open('v7_end.cu').read()
a='  const int count = int(min((long long)tiles * SIZE, end - first));\n'
o='''  long long first = min(begin + w * (long long)tiles * SIZE, end);
'''
s=s.replace('  const long long first = min(begin + w * (long long)tiles * SIZE, end);\n',o)
s=s.replace(a,a+'''#ifndef ROOFTILE_SIMULATOR
  asm volatile("" : "+l"(first));
#endif
''')
open('v7_opaque.cu','w').write(s)
