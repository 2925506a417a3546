import heapq
def mk(order,n=132):
    h=[0.0]*n; heapq.heapify(h)
    for l in order:
        t=heapq.heappop(h); heapq.heappush(h,t+l)
    return max(h)
def deal(heads,tiles,blocks_per,group,tog,over=1.5):
    o=[]
    for f in range(0,heads,tog):
        n=min(tog,heads-f)
        for i in range(tiles):
            o+= [ (blocks_per*(tiles-i))*group+over ]*n
    return o
for T,G,grp,bm in ((8192,8,8,80),(8192,16,4,80),(8192,32,2,80),(8192,64,1,80)):
    tiles=T//128; bp=128/bm
    for tog in (1,2,3,4,5,6,8,16):
        o=deal(G,tiles,bp,grp,tog); print(T,G,grp,tog, round(mk(o)/(sum(o)/132),3))
print('---')
def mixed(heads,tiles,bp,group,sizes,over=1.5):
    o=[]
    for n in sizes:
        for i in range(tiles): o+=[(bp*(tiles-i))*group+over]*n
    return o
for T,G,grp,bm in ((16384,16,1,80),(8192,8,8,80),(8192,8,4,80),(4096,64,1,64),(1024,256,1,64)):
    tiles=T//128; bp=128/bm
    for tog in (1,2,4,8):
        o=deal(G,tiles,bp,grp,tog); print(T,G,grp,tog, round(mk(o)/(sum(o)/132),4))
    for last in (2,3,4,6,8):
        if last<G:
            o=mixed(G,tiles,bp,grp,[1]*(G-last)+[last]); print(T,G,grp,'1.. then',last,round(mk(o)/(sum(o)/132),4))
            o=mixed(G,tiles,bp,grp,[2]*((G-last)//2)+[last]); print(T,G,grp,'2.. then',last,round(mk(o)/(sum(o)/132),4))
