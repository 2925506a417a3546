import re,sys
L=[l for l in open(sys.argv[1]) if re.search(r"/\*[0-9a-f]{4,5}\*/",l) or l.strip().startswith(".L")]
# quick path: follow from the label before the first LDS.128 group, taking listed decisions
for i,l in enumerate(L):
    if "BRA" in l or l.strip().startswith(".L") or "LDS.128" in l or "LDGSTS" in l or "VHMNMX" in l: print(i,re.sub(r"\s+"," ",l)[:80])
