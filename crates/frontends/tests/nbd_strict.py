# libnbd checks the form of every reply; client-side checks are switched off where the server must refuse.
import errno
import os

import nbd

SIZE = 48 << 20


def connect(uri="URI", structured=True, contexts=("base:allocation",), strict=None):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    for context in contexts:
        h.add_meta_context(context)
    if strict is not None:
        h.set_strict_mode(strict)
    h.connect_uri(os.environ[uri])
    return h


def refused(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as e:
        assert e.errnum == expected, (e.errnum, expected, call, args)
    else:
        raise AssertionError("not refused", call, args)


def data_and_structured_reads(h):
    block = bytes(range(256)) * 16
    h.pwrite(block, 4096, nbd.CMD_FLAG_FUA)
    assert h.pread(4096, 4096) == block
    chunks = []
    buf = h.pread_structured(
        12288, 0, lambda data, offset, status, err: chunks.append((offset, len(data), status)), nbd.CMD_FLAG_DF)
    assert buf == bytes(4096) + block + bytes(4096)
    assert chunks == [(0, 12288, nbd.READ_DATA)], chunks
    h.flush()


def block_status(h):
    extents = []
    h.block_status(65536, 0, lambda context, offset, entries, err: extents.append((context, offset, list(entries))))
    assert extents == [("base:allocation", 0, [4096, 3, 4096, 0, 57344, 3])], extents
    extents.clear()
    h.block_status(65536, 4096, lambda context, offset, entries, err: extents.append(list(entries)),
                   nbd.CMD_FLAG_REQ_ONE)
    assert extents == [[4096, 0]], extents


def zero_and_trim(h):
    h.pwrite(b"x" * 65536, 1 << 20)
    h.zero(4096, 1 << 20, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
    h.zero(4096, (1 << 20) + 4096, nbd.CMD_FLAG_FUA)
    h.trim(4096, (1 << 20) + 8192, nbd.CMD_FLAG_FUA)
    assert h.pread(65536, 1 << 20) == bytes(12288) + b"x" * 53248


def errors(h):
    refused(errno.EINVAL, h.pread, 512, SIZE)
    refused(errno.EINVAL, h.pread, 512, 1)
    refused(errno.EINVAL, h.pread, 100, 0)
    refused(errno.ENOSPC, h.pwrite, b"x" * 1024, SIZE - 512)
    refused(errno.EINVAL, h.pwrite, b"x" * 100, 0)
    refused(errno.ENOSPC, h.zero, 512, SIZE)
    refused(errno.EINVAL, h.trim, 512, SIZE)
    refused(errno.EINVAL, h.cache, 512, 0)
    refused(errno.EINVAL, h.pread, (32 << 20) + 512, 0)
    refused(errno.EINVAL, h.pwrite, bytes((32 << 20) + 512), 0)
    assert h.pread(4096, 4096) == bytes(range(256)) * 16, "the connection survives refusals"


def many_in_flight(h):
    cookies = []
    for i in range(64):
        cookies.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 8192), (8 << 20) + i * 8192))
    while h.aio_in_flight() > 0:
        h.poll(-1)
    for cookie in cookies:
        assert h.aio_command_completed(cookie)
    assert h.pread(64 * 8192, 8 << 20) == b"".join(bytes([i]) * 8192 for i in range(64))


def read_only(h):
    assert h.is_read_only()
    refused(errno.EPERM, h.pwrite, b"x" * 512, 0)
    refused(errno.EPERM, h.trim, 512, 0)
    refused(errno.EPERM, h.zero, 512, 0)
    assert len(h.pread(512, 0)) == 512


h = connect()
assert h.get_structured_replies_negotiated() and h.can_meta_context("base:allocation")
assert h.get_protocol() == "newstyle-fixed" and h.get_size() == SIZE
data_and_structured_reads(h)
block_status(h)
zero_and_trim(h)
many_in_flight(h)
h.shutdown()

for structured in (True, False):
    h = connect(structured=structured, contexts=(), strict=0)
    assert h.get_structured_replies_negotiated() == structured
    errors(h)
    h.shutdown()
    h = connect("URI_READ_ONLY", structured=structured, contexts=(), strict=0)
    read_only(h)
    h.shutdown()

# Option mode: LIST, INFO without GO, a selection for another name, ABORT.
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(os.environ["URI"])
names = []
assert h.opt_list(lambda name, description: names.append(name)) == 2
assert names == ["r0/0", "r0/ro"]
h.opt_info()
assert h.get_size() == SIZE
contexts = []
h.add_meta_context("base:")
assert h.opt_list_meta_context(contexts.append) == 1 and contexts == ["base:allocation"]
h.set_export_name("nowhere")
refused(errno.ENOENT, h.opt_info)
h.opt_abort()
