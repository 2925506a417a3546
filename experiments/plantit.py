import subprocess,sys
f,test,*pairs=sys.argv[1:]
s=open(f).read()
for i in range(0,len(pairs),2):
    a,b=pairs[i:i+2]; assert s.count(a)>=1,(a,s.count(a))
    open(f,'w').write(s.replace(a,b,1))
    try: r=subprocess.run([".venv/bin/python","-m","pytest","-q","-x","-m","not gpu",*test.split()],capture_output=True,text=True,env={**__import__('os').environ,"PYTHONPATH":"src"})
    finally: open(f,'w').write(s)
    print("RED" if r.returncode==1 else "GREEN?? rc %d"%r.returncode, repr(a)[:70],"->",repr(b)[:60],flush=True)
