import os, pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    a = os.times(); yield; b = os.times()
    with open("/tmp/plug/log", "a") as f: f.write(f"{b.user+b.system-a.user-a.system:.3f} {b.children_user+b.children_system-a.children_user-a.children_system:.3f} {b.elapsed-a.elapsed:.3f} {item.nodeid}\n")
