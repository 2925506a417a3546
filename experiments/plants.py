import subprocess,os
P=[
("src/rooftile/workbench/ledger.py","    if not lying:","    if False:","tests/test_records.py tests/test_cli.py -k do_not_count"),
("src/rooftile/workbench/ledger.py","    if not latest(folder):","    if False:","tests/test_records.py tests/test_cli.py -k do_not_count"),
("src/rooftile/workbench/gatekeeper.py","disable=progress is None or not progress.is_terminal","disable=progress is None","tests/test_cli.py -k pipe"),
("src/rooftile/workbench/bench.py","Text(note)","note","tests/test_cli.py tests/test_records.py -k raised"),
("src/rooftile/workbench/pages.py","        with atomic_file(page) as file:","        with open(page, 'wb') as file:","tests/test_records.py tests/test_cli.py -k disk"),
("src/rooftile/training/config.py","        if self.min_lr > self.lr:","        if False:","tests/test_training_refusals.py -k knobs"),
("src/rooftile/training/config.py","object.__setattr__(self, f.name, kind(value))","pass","tests/test_training_refusals.py tests/test_run_quality.py -k 'plain or knobs'"),
("src/rooftile/training/config.py","self.resume_from and Path(self.resume_from).is_dir()","False","tests/test_training_refusals.py -k resume"),
("src/rooftile/workbench/profile.py",'"resume", "resume_from", "memory", "detect_anomaly"','"resume", "resume_from", "detect_anomaly"',"tests/test_profile.py -k refused"),
("src/rooftile/workbench/gatekeeper.py","sys.path[:] = {sys.path!r}; ","","tests/test_cli.py -k somebody"),
("src/rooftile/workbench/gatekeeper.py","lambda *_: sys.exit(128 + signal.SIGTERM)","signal.SIG_DFL","tests/test_cli.py -k ended"),
("src/rooftile/core/record.py",'git = ("git", "-C", str(Path(__file__).parent))','git = ("git",)',"tests/test_records.py -k commit"),
("src/rooftile/training/loop.py","no_wrap=True","no_wrap=False","tests/test_run_quality.py -k bar"),
]
for f,a,b,t in P:
    s=open(f).read(); assert s.count(a)==1,(f,a,s.count(a))
    open(f,"w").write(s.replace(a,b))
    try: r=subprocess.run(f"nice -n 5 /work/main/.venv/bin/python -m pytest -q -x -m 'not gpu' {t}",shell=True,capture_output=True,text=True,env={**os.environ,"PYTHONPATH":"/work/plant/src"})
    finally: open(f,"w").write(s)
    print("RED" if r.returncode==1 else f"GREEN?? {r.returncode} {r.stdout[-200:]}", f.split('/')[-1], a[:60],flush=True)
