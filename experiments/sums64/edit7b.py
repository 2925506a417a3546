from pathlib import Path
H = Path(__file__).parent
s = (H / "v7_both.cu").read_text()
a = '''          if (cut) sLaid[w][(r * WARP + l) * WIDTH + i] = run[r];
          if (i > 0 && !cut) rF[k] += run[r];  // in its place: one instruction, where a sum that begins anew is two more
'''
assert a in s
(H / "v7_else.cu").write_text(s.replace(a, '''          if (cut) sLaid[w][(r * WARP + l) * WIDTH + i] = run[r];
          else if (i > 0) rF[k] += run[r];
'''))
t = s.replace('''          const bool cut = bits >> (r * WIDTH + i) & 1;
''' + a, '''          lay_or_add(rF[k], run[r], &sLaid[w][(r * WARP + l) * WIDTH + i], bits & (1u << (r * WIDTH + i)));
''')
assert t != s
t = t.replace("template <bool VALUE> struct Whether", '''// What is open before number x: laid down where x begins a segment, else added to it, in its place. Of one predicate, where the compiler makes two.
ROOFTILE_DEVICE void lay_or_add(float& x, float open, float* sLaid, unsigned cut) {
#ifdef ROOFTILE_SIMULATOR
  if (cut) *sLaid = open;
  else x += open;
#else
  asm volatile("{\\n.reg .pred cut;\\nsetp.ne.u32 cut, %3, 0;\\n@cut st.shared.f32 [%2], %1;\\n@!cut add.f32 %0, %0, %1;\\n}"
               : "+f"(x)
               : "f"(open), "r"(shared_address(sLaid)), "r"(cut)
               : "memory");
#endif
}

template <bool VALUE> struct Whether''')
(H / "v7_lay.cu").write_text(t)
