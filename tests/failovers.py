"""PostgreSQL among three nodes in DRBD 9's dialect: the Primary's process is killed under it, another node goes on with the
database, and the dead one comes back meanwhile. Part `fail-overs` of long.py."""

import contextlib
import os
import subprocess
import time

from cluster import MIB, TookTooLong, eventually
from test_filesystems import FSCK, MKFS, mounted, sh
from test_postgres import Database
from test_three_nine import all_together, equal, started


class Journal:
    """Rows of one number each, and in a file outside of the database those whose commit was acknowledged."""

    def __init__(self, db):
        self.db, self.path, self.process = db, os.path.join(db.sock, "acknowledged"), None
        open(self.path, "w").close()

    def rows(self):
        with open(self.path) as f:
            return f.read().split()

    def begin(self):
        psql = f"{self.db.bin}/psql -h {self.db.sock} -U postgres -q -d postgres"
        script = (f'i=$(wc -l < {self.path}); while {psql} -c "insert into journal values ($((i += 1))) on conflict do nothing";'
                  f" do echo $i >> {self.path}; done")
        self.process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self):
        self.process.terminate()
        self.process.wait(30)

    def check(self):
        have = set(self.db.ask("select n from journal").split())
        lost = set(self.rows()) - have
        assert not lost, f"committed and lost: {sorted(lost, key=int)[:10]}"


def fail_overs(cluster, _, rounds):
    """How long each took in seconds, from the kill until the database answers elsewhere; and the committed rows."""
    nodes = started(cluster, size=256 * MIB)
    sock = os.path.join(cluster.dir, "pg")
    os.makedirs(sock)
    for path in (cluster.dir, *(n.dir for n in nodes)):
        os.chmod(path, 0o755)
    here = nodes[0]
    here.urbd("primary", "r0")
    sh(*MKFS["ext4"], here.device())
    took, killed, journal = [], None, None
    for n in range(rounds + 1):
        with mounted(here, here.device(), "ext4") as where:
            db = Database(os.path.join(where, "data"), sock)
            os.chown(sock, db.user.pw_uid, db.user.pw_gid)
            if n == 0:
                db.init()
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(where, "data", "postmaster.pid"))
            db.start()
            try:
                if n == 0:
                    db.ask("create table journal(n int primary key)")
                    db.call("pgbench", "-i", "-q", "-s", "1", "postgres")
                    journal = Journal(db)
                else:
                    took.append(time.monotonic() - killed)
                journal.db = db
                journal.check()
                balanced(db)
                if n == rounds:
                    break
                under_load(nodes, here, journal)
                killed = time.monotonic()
                here.kill()
                journal.end()
            finally:
                db.stop("immediate" if killed and n < rounds else "fast", ok=n == rounds)
        here = goes_on(nodes, here)
    complete(nodes)
    here.urbd("secondary", "r0")
    equal(*nodes)
    here.urbd("primary", "r0")
    sh(*FSCK["ext4"], here.device())
    return took, len(journal.rows())


def balanced(db):
    """What pgbench adds it adds to one row of each."""
    sums = [db.ask(f"select sum({column}) from pgbench_{table}") for table, column in
            (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"))]
    assert len(set(sums)) == 1, sums


def under_load(nodes, here, journal):
    """The one that was killed last comes back meanwhile; then some more rows are committed."""
    journal.begin()
    complete(nodes)
    before = len(journal.rows())
    eventually("committed rows", lambda: len(journal.rows()) > before + 20, 60)


def complete(nodes):
    for n in nodes:
        if "r0" not in n.processes:
            n.start()
    all_together(*nodes, timeout=60)


def goes_on(nodes, lost):
    other = next(n for n in nodes[nodes.index(lost) + 1:] + nodes if n is not lost)

    def promoted():
        with contextlib.suppress(TookTooLong):
            return other.call("primary", "r0").rc == 0

    eventually(f"{other.name} is Primary", promoted, 30)
    return other
