import lab
for s, i in lab.instances():
    c = lab.tried(s, i)
    print(s.path.name, i, c if isinstance(c, str) else (c.registers, c.spill_bytes, c.shared_bytes))
