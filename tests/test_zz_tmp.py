import time, pytest
from test_client_writes import lab, Load, MIB, paused, good_again, eventually
@pytest.mark.parametrize("n", range(6))
def test_y(cluster, n):
    a, b, c = lab(cluster, without="")
    c.urbd("primary", "r0")
    load = Load(c, sectors=16 * MIB // 512)
    load.wait_writes(100)
    c.urbd("detach", "r0")
    load.wait_writes(100)
    a.kill()
    load.wait_writes(100)
    a.start()
    t = time.time()
    try:
        good_again(c, a)
    except Exception as e:
        open("/tmp/n/rec.txt", "a").write(f"{n} failed {e}"[:100]+"\n")
    t = time.time() - t
    journal = load.interrupt()
    open("/tmp/n/rec.txt", "a").write(f"{n} {t}\n")
