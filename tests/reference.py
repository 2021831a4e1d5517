"""Runs the scenarios on the reference itself, kernel against kernel, to see that the tests expect what DRBD does.

    PYTHONPATH=tests /usr/bin/python3 -m pytest -p reference tests/test_kernel_peer.py -k "not load and not older"

Every urbd node is replaced by a guest of the same name.  Scenarios that use the NBD export or urbd's own verbs cannot run.
"""

import cluster
from kernel_peer import KernelPeerError


def guest_instead(self, name, size=0, volumes=1):
    try:
        guest = self.lab.node(name)
    except KernelPeerError:
        guest = self.lab.add(name, disks=["24M", "4M", "24M"])
    return self.kernel(guest)


cluster.Cluster.node = guest_instead
cluster.KernelNode.urbd = cluster.Node.verb
