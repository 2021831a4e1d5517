"""A peer made of a few lines of Python: it shakes hands like DRBD 8.4 and then sends whatever a test wants."""

import ctypes
import os
import socket
import struct
import threading

H80, H100 = 0x83740267, 0x8620EC20
INITIAL_META, INITIAL_DATA, FEATURES = 0xFFF1, 0xFFF2, 0xFFFE
DATA, BARRIER, BITMAP, DATA_REQUEST, PROTOCOL, UUIDS, SIZES, STATE = 0x00, 0x03, 0x04, 0x08, 0x0B, 0x0C, 0x0D, 0x0E
AUTH_CHALLENGE, AUTH_RESPONSE, PROTOCOL_UPDATE = 0x10, 0x11, 0x2D
TWOPC_PREPARE, CURRENT_UUID, TWOPC_YES, TWOPC_NO, TWOPC_COMMIT = 0x2E, 0x44, 0x45, 0x46, 0x47
PING, PING_ACK, WRITE_ACK, BARRIER_ACK, SYNC_PARAM89, COMPRESSED_BITMAP, TRIM, ZEROES = \
    0x13, 0x14, 0x16, 0x1C, 0x23, 0x24, 0x31, 0x36
STATE_FRESH = 0x0000C882  # Secondary, WFConnection, Inconsistent, DUnknown: what a just created 8.4 node sends
UUIDS_FRESH = struct.pack(">6Q", 4, 0, 0, 0, 0, 0)


def h80(command, payload=b"", length=None):
    return struct.pack(">IHH", H80, command, len(payload) if length is None else length) + payload


def h100(command, payload=b"", volume=0, length=None, pad=0, magic=H100):
    return struct.pack(">IHHII", magic, volume, command, len(payload) if length is None else length, pad) + payload


def features(low=86, high=101, flags=0xF, nodes=(0, 0)):
    """nodes: the sender's id and the receiver's, in DRBD 9's dialect."""
    return h80(FEATURES, struct.pack(">6I", low, flags, high, *nodes, 0) + bytes(48))


def in_network(node, make):
    """Calls make() in the network namespace of an urbd node; sockets made there stay there."""
    result = []

    def work():
        fd = os.open(f"/proc/{node.holder}/ns/net", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(fd, 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
            result.append(make())
        except Exception as e:  # handed to the caller
            result.append(e)
        finally:
            os.close(fd)

    t = threading.Thread(target=work)
    t.start()
    t.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


class FakePeer:
    """Lives at the address of `at` (a node that does not run), talks to `to`."""

    def __init__(self, at, to, port=7788):
        self.at, self.to, self.port = at, to, port
        self.data = self.meta = None

    def connect(self):
        """Both TCP connections, as far as the initial packets."""
        def open_one():
            s = socket.create_connection((self.to.ip, self.port), 10, (self.at.ip, 0))
            s.settimeout(10)
            return s

        self.data = in_network(self.at, open_one)
        self.data.sendall(h80(INITIAL_DATA))
        self.meta = in_network(self.at, open_one)
        self.meta.sendall(h80(INITIAL_META))
        return self

    def exactly(self, n, sock=None):
        out = b""
        while len(out) < n:
            got = (sock or self.data).recv(n - len(out))
            if not got:
                raise ConnectionError(f"closed after {len(out)} of {n} bytes")
            out += got
        return out

    def receive(self, sock=None):
        """(volume, command, payload) of the next packet."""
        magic, volume, command, length, _ = struct.unpack(">IHHII", self.exactly(16, sock))
        assert magic == H100, hex(magic)
        return volume, command, self.exactly(length, sock)

    def begin(self):
        """As far as the protocol is agreed on."""
        self.connect()
        self.data.sendall(features())
        assert self.exactly(80)[:8] == h80(FEATURES, bytes(72))[:8]

    def handshake(self, sectors, uuids=UUIDS_FRESH, state=STATE_FRESH, protocol=3):
        """As a node whose disk was just made (by default), of `sectors` sectors; until urbd's P_STATE has come."""
        self.begin()
        d = self.data
        d.sendall(h100(PROTOCOL, struct.pack(">6I", protocol, 0, 0, 0, 0, 0) + b"\0"))
        d.sendall(h100(SYNC_PARAM89, struct.pack(">I", 102400) + bytes(128) + struct.pack(">4I", 0, 0, 0, 0)))
        d.sendall(h100(SIZES, struct.pack(">QQQIHH", sectors, 0, sectors, 1 << 20, 0, 0)
                       + struct.pack(">5I4B", 512, 512, 0, 512, 0, 1, 0, 0, 0)))
        if uuids:
            d.sendall(h100(UUIDS, uuids))
        d.sendall(h100(STATE, struct.pack(">I", state)))
        seen = {}
        while STATE not in seen:
            _, command, payload = self.receive()
            seen[command] = payload
        return seen

    def until(self, wanted):
        """Receives until this comes; its volume and payload."""
        command = None
        while command != wanted:
            volume, command, payload = self.receive()
        return volume, payload

    def vote(self, answer, node=1, other=0):
        """As a node of DRBD 9, in the transaction by which the other one connects it."""
        self.connect()
        self.data.sendall(features(118, 118, nodes=(node, other)))
        self.exactly(80)
        self.data.sendall(h100(PROTOCOL, struct.pack(">6I", 3, 0, 0, 0, 0, 0) + bytes(64), volume=0xFFFF))
        volume, prepare = self.until(TWOPC_PREPARE)
        tid, initiator = struct.unpack(">2I", prepare[:8])
        vote = struct.pack(">2I3Q", tid, initiator, 1 << node | 1 << other, 0, 0)
        if answer == TWOPC_YES:
            # Secondary, and without a disk.
            self.size(0)
            self.data.sendall(h100(CURRENT_UUID, bytes(16)) + h100(STATE, struct.pack(">I", 2 | 9 << 4)))
        self.meta.sendall(h100(answer, vote, volume=volume))

    def refuse(self):
        """It does not agree to be connected, and does not say why."""
        self.vote(TWOPC_NO)

    def outgrow(self, sectors):
        """It is connected, has no disk, and then says that its device has so many sectors."""
        self.vote(TWOPC_YES)
        self.until(TWOPC_COMMIT)
        self.size(sectors)

    def size(self, sectors):
        limits = struct.pack(">5I4B", 512, 512, 0, 512, 0, 1, 0, 0, 0)
        self.data.sendall(h100(SIZES, struct.pack(">QQQIHH", 0, 0, sectors, 1 << 20, 0, 0) + limits))

    def authenticate(self, digest=bytes(20)):
        """As somebody who does not know the secret, of whom urbd wants it. None: without an answer as yet."""
        self.connect()
        self.data.sendall(features())
        self.exactly(80)
        _, command, _ = self.receive()
        assert command == AUTH_CHALLENGE, command
        answer = b"" if digest is None else h100(AUTH_RESPONSE, digest)
        self.data.sendall(h100(AUTH_CHALLENGE, os.urandom(64)) + answer)
        return self

    def closed(self, timeout=15):
        """Whether urbd ended this connection within the time limit (any packets before that are read and dropped)."""
        self.data.settimeout(timeout)
        try:
            while self.data.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        for s in (self.data, self.meta):
            if s:
                s.close()
