"""PostgreSQL on ext4 on the device: a kill -9 of the primary node in the middle of pgbench loses no committed row."""

import glob
import os
import pwd
import shutil
import subprocess

from cluster import eventually
from test_filesystems import FSCK, MKFS, mounted, sh, two_nodes


def binaries():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: int(p.split("/")[4]))
    assert found, "no PostgreSQL: install the package postgresql"
    return found[-1]


class Database:
    """A server on a directory, run by the unprivileged user that PostgreSQL insists on."""

    def __init__(self, data, socket_dir):
        self.data, self.sock, self.bin = data, socket_dir, binaries()
        self.user = pwd.getpwnam("postgres")

    def call(self, tool, *args, ok=True, timeout=120):
        argv = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups",
                os.path.join(self.bin, tool), *map(str, args)]
        r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, cwd="/",
                           env={"PATH": os.environ["PATH"], "PGHOST": self.sock, "LC_ALL": "C"})
        assert not ok or r.returncode == 0, f"{argv}: {r.returncode}\n{r.stdout}"
        return r.stdout

    def init(self):
        os.makedirs(self.data)
        os.chown(self.data, self.user.pw_uid, self.user.pw_gid)
        self.call("initdb", "-A", "trust", "-D", self.data)

    def start(self):
        log = os.path.join(self.sock, "log")
        self.call("pg_ctl", "-D", self.data, "-w", "-t", "60", "-l", log, "-o",
                  f"-k {self.sock} -c listen_addresses= -c shared_buffers=16MB -c full_page_writes=on", "start")

    def stop(self, how="fast", ok=True):
        self.call("pg_ctl", "-D", self.data, "-m", how, "-w", "stop", ok=ok)

    def ask(self, sql):
        return self.call("psql", "-At", "-d", "postgres", "-c", sql).strip()


def test_committed_rows_survive(cluster, tmp_path_factory):
    a, b = two_nodes(cluster)
    dev = a.device()
    sh(*MKFS["ext4"], dev)
    sock = os.path.join(cluster.dir, "pg")
    os.makedirs(sock)
    os.chmod(cluster.dir, 0o755)
    os.chmod(a.dir, 0o755)
    os.chmod(b.dir, 0o755)
    shutil.chown(sock, "postgres", "postgres")
    acknowledged = os.path.join(sock, "acknowledged")
    with mounted(a, dev, "ext4") as m:
        db = Database(os.path.join(m, "data"), sock)
        db.init()
        db.start()
        db.ask("create table journal(n int primary key)")
        db.call("pgbench", "-i", "-q", "-s", "1", "postgres")
        bench = subprocess.Popen([os.path.join(db.bin, "pgbench"), "-h", sock, "-U", "postgres", "-c", "4", "-T", "60", "-n",
                                  "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # rows whose commit was acknowledged
        script = f"""for i in $(seq 1 100000); do
            {db.bin}/psql -h {sock} -U postgres -q -d postgres -c "insert into journal values ($i)" || exit
            echo $i >> {acknowledged}; done"""
        writer = subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = lambda: sum(1 for _ in open(acknowledged)) if os.path.exists(acknowledged) else 0  # noqa: E731
        eventually("some committed rows", lambda: rows() > 60, 60)
        a.kill()
        for p in (bench, writer):
            p.terminate()
            p.wait(30)
        db.stop("immediate", ok=False)
    b.wait(conn="~Connecting|Unconnected|NetworkFailure|Timeout")
    b.urbd("primary", "r0")
    dev = b.device()
    with mounted(b, dev, "ext4") as m:
        db = Database(os.path.join(m, "data"), sock)
        try:
            os.unlink(os.path.join(m, "data", "postmaster.pid"))
        except FileNotFoundError:
            pass
        db.start()
        try:
            have = set(db.ask("select n from journal").split())
            want = {x.strip() for x in open(acknowledged)}
            assert want <= have, f"committed and lost: {sorted(want - have)[:10]}"
            # pgbench's invariant: the balances of accounts, tellers and branches agree
            sums = db.ask("select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), "
                          "(select sum(bbalance) from pgbench_branches)").split("|")
            assert len(set(sums)) == 1, sums
        finally:
            db.stop()
    sh(*FSCK["ext4"], dev)
