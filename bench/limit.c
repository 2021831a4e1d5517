/*
 * The bare work of a mirrored write and nothing else: what any replicating program on this machine can reach at most.
 *
 * Two processes and one loopback TCP connection. The first writes each block to its file and sends it with a 32-byte
 * header; the second receives it, writes it to its file and answers with 16 bytes. All writes and messages of a batch
 * of `depth` go with one system call each where the interface allows it. No protocol, no metadata, no front end.
 *
 * Usage: limit FILE_A FILE_B BLOCK_BYTES DEPTH WRITES MODE [SOCKET]
 *     WRITES: a number, or a time in milliseconds like 1000ms
 *     MODE: unpinned | pinned (one core each) | one (one core) | spin
 * Prints one line: IOPS, CPU microseconds per write of both processes and of each, MiB/s.
 *
 * With SOCKET the writes come from a client instead: an NBD server on that Unix socket, for one connection at a time and
 * writes of BLOCK_BYTES only, until it is killed. DEPTH and WRITES are not used then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <endian.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 32, ACK = 16 };

struct header {
    uint64_t offset, id, pad[2];
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void check(int ok, const char *what) {
    if (!ok) die(what);
}

static int spin;

/* Sends all of it. */
static void send_all(int fd, struct iovec *iov, int n) {
    while (n > 0) {
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = n > 1024 ? 1024 : n};
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        check(sent > 0, "send");
        while (n > 0 && (size_t)sent >= iov->iov_len) sent -= iov->iov_len, iov++, n--;
        if (n > 0) iov->iov_base = (char *)iov->iov_base + sent, iov->iov_len -= sent;
    }
}

/* Receives at least `want` and at most `room` bytes. */
static size_t receive(int fd, char *to, size_t want, size_t room) {
    size_t have = 0;
    while (have < want) {
        ssize_t n = recv(fd, to + have, room - have, spin ? MSG_DONTWAIT : 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n == 0) return 0;
        check(n > 0, "recv");
        have += n;
    }
    return have;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    check(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static int open_file(const char *path) {
    int fd = open(path, O_RDWR | O_DIRECT);
    if (fd < 0) fd = open(path, O_RDWR);
    check(fd >= 0, path);
    return fd;
}

static void write_block(int fd, const char *from, size_t len, uint64_t offset) {
    check(pwrite(fd, from, len, offset) == (ssize_t)len, "pwrite");
}

/* The second node. */
static void secondary(int fd, int file, size_t block) {
    size_t frame = HEADER + block, room = 4 * frame < (1 << 20) ? 1 << 20 : 4 * frame, have = 0;
    char *in = aligned_alloc(4096, room), *aligned = aligned_alloc(4096, block), *acks = calloc(room / frame + 1, ACK);
    for (;;) {
        size_t n = receive(fd, in + have, have < frame ? frame - have : 1, room - have);
        if (n == 0) return;
        have += n;
        size_t done = 0, at = 0;
        for (; have - at >= frame; at += frame, done++) {
            struct header h;
            memcpy(&h, in + at, sizeof h);
            memcpy(aligned, in + at + HEADER, block);
            write_block(file, aligned, block, h.offset);
            memcpy(acks + done * ACK, &h.id, 8);
        }
        struct iovec iov = {acks, done * ACK};
        send_all(fd, &iov, 1);
        memmove(in, in + at, have - at);
        have -= at;
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(int who) {
    struct rusage u;
    getrusage(who, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* The first node: keeps `depth` writes in flight, until so many are done or the time has come. */
static long primary(int fd, int file, size_t block, int depth, long writes, double end, uint64_t blocks) {
    char *data = aligned_alloc(4096, block), *acks = malloc(depth * ACK);
    struct header *headers = calloc(depth, sizeof *headers);
    struct iovec *iov = malloc(2 * depth * sizeof *iov);
    uint64_t random = 88172645463325252ull;
    memset(data, 7, block);
    long asked = 0, answered = 0;
    size_t partial = 0;
    while (answered < writes) {
        int n = 0;
        if (end > 0 && seconds() >= end) writes = asked, end = 0;
        for (; asked - answered < depth && asked < writes; asked++, n++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            headers[n] = (struct header){.offset = random % blocks * block, .id = asked};
            iov[2 * n] = (struct iovec){&headers[n], HEADER};
            iov[2 * n + 1] = (struct iovec){data, block};
        }
        if (asked == answered) break;
        if (n > 0) send_all(fd, iov, 2 * n);
        for (int i = 0; i < n; i++) write_block(file, data, block, headers[i].offset);
        size_t got = receive(fd, acks, ACK - partial, depth * ACK) + partial;
        answered += got / ACK;
        partial = got % ACK;
    }
    return answered;
}

/* -- an NBD server in front: one client on a Unix socket, writes of `block` bytes only -- */

/* 0: the client has left. */
static int get(int fd, void *to, size_t n) {
    return n == 0 || receive(fd, to, n, n) == n;
}

static void put(int fd, const void *from, size_t n) {
    struct iovec iov = {(void *)from, n};
    if (n > 0) send_all(fd, &iov, 1);
}

static void reply_option(int fd, uint32_t option, uint32_t type, const void *data, uint32_t n) {
    struct { uint64_t magic; uint32_t option, type, len; } __attribute__((packed)) r = {
        htobe64(0x3e889045565a9), htobe32(option), htobe32(type), htobe32(n)};
    put(fd, &r, sizeof r);
    put(fd, data, n);
}

/* Fixed newstyle: every option but NBD_OPT_GO is refused. 0: the client has left. */
static int negotiate(int fd, uint64_t size) {
    struct { char magic[16]; uint16_t flags; } __attribute__((packed)) hello = {"NBDMAGICIHAVEOPT", htobe16(3)};
    put(fd, &hello, sizeof hello);
    char skipped[4096];
    if (!get(fd, skipped, 4)) return 0;
    for (;;) {
        struct { uint64_t magic; uint32_t option, len; } __attribute__((packed)) o;
        if (!get(fd, &o, sizeof o)) return 0;
        check(be32toh(o.len) <= sizeof skipped, "an option too long");
        if (!get(fd, skipped, be32toh(o.len))) return 0;
        uint32_t option = be32toh(o.option);
        if (option != 7) {
            reply_option(fd, option, 0x80000001, 0, 0);
            continue;
        }
        struct { uint16_t type; uint64_t size; uint16_t flags; } __attribute__((packed)) info = {0, htobe64(size), htobe16(1)};
        reply_option(fd, option, 3, &info, sizeof info);
        reply_option(fd, option, 1, 0, 0);
        return 1;
    }
}

struct request { uint32_t magic; uint16_t flags, type; uint64_t handle, offset; uint32_t len; } __attribute__((packed));
struct answer { uint32_t magic, error; uint64_t handle; } __attribute__((packed));

enum { MOST = 256 };

/* Answers what the second node has. */
static void answer(int client, int fd) {
    static char acks[MOST * ACK];
    static size_t partial;
    struct answer answers[MOST];
    ssize_t got = recv(fd, acks + partial, sizeof acks - partial, MSG_DONTWAIT);
    check(got > 0, "recv");
    size_t n = (got += partial) / ACK;
    for (size_t i = 0; i < n; i++) {
        answers[i] = (struct answer){htobe32(0x67446698), 0, 0};
        memcpy(&answers[i].handle, acks + i * ACK, 8);
    }
    partial = got % ACK;
    memmove(acks, acks + n * ACK, partial);
    put(client, answers, n * sizeof *answers);
}

/* Sends the requests at `in` to the second node and writes them; returns how many bytes they were. */
static size_t take(char *in, size_t have, int fd, int file, size_t block) {
    struct header headers[MOST];
    struct iovec iov[2 * MOST];
    char *data[MOST];
    size_t frame = sizeof(struct request) + block, at = 0;
    int n = 0;
    for (; have - at >= frame && n < MOST; at += frame, n++) {
        struct request r;
        memcpy(&r, in + at, sizeof r);
        check(be16toh(r.type) == 1 && be32toh(r.len) == block, "not a write of a block");
        headers[n] = (struct header){.offset = be64toh(r.offset), .id = r.handle};
        data[n] = in + at + sizeof r;
        iov[2 * n] = (struct iovec){&headers[n], HEADER};
        iov[2 * n + 1] = (struct iovec){data[n], block};
    }
    if (n > 0) send_all(fd, iov, 2 * n);
    for (int i = 0; i < n; i++) write_block(file, data[i], block, headers[i].offset);
    return at;
}

/* Takes requests until the client leaves; each is answered when both files have it. */
static void serve(int client, int fd, int file, size_t block) {
    size_t room = MOST * (sizeof(struct request) + block), have = 0;
    char *in = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    for (;;) {
        struct pollfd p[2] = {{client, POLLIN, 0}, {fd, POLLIN, 0}};
        check(poll(p, 2, -1) > 0, "poll");
        if (p[1].revents) answer(client, fd);
        if (!p[0].revents) continue;
        ssize_t got = recv(client, in + have, room - have, MSG_DONTWAIT);
        /* What is no whole request then is its goodbye. */
        if (got <= 0) break;
        have += got;
        size_t done = take(in, have, fd, file, block);
        memmove(in, in + done, have - done);
        have -= done;
    }
    free(in);
}

/* Serves one client after the other at `path`. */
static void serve_all(const char *path, int fd, int file, size_t block, uint64_t size) {
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    strncpy(where.sun_path, path, sizeof where.sun_path - 1);
    int door = socket(AF_UNIX, SOCK_STREAM, 0);
    check(bind(door, (void *)&where, sizeof where) == 0 && listen(door, 1) == 0, path);
    for (;;) {
        int client = accept(door, 0, 0);
        check(client >= 0, "accept");
        if (negotiate(client, size)) serve(client, fd, file, block);
        close(client);
    }
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "usage: %s FILE_A FILE_B BLOCK_BYTES DEPTH WRITES|MILLISms unpinned|pinned|one|spin [SOCKET]\n",
                argv[0]);
        return 2;
    }
    size_t block = atol(argv[3]);
    int depth = atoi(argv[4]);
    char *unit;
    long writes = strtol(argv[5], &unit, 10);
    double lasts = strcmp(unit, "ms") ? 0 : writes * 1e-3;
    if (lasts > 0) writes = LONG_MAX;
    const char *mode = argv[6];
    int pinned = !strcmp(mode, "pinned") || !strcmp(mode, "spin"), one = !strcmp(mode, "one");
    spin = !strcmp(mode, "spin");
    struct stat st;
    check(stat(argv[1], &st) == 0, argv[1]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    check(bind(listener, (void *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    getsockname(listener, (void *)&address, &len);
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        if (pinned) pin(1);
        if (one) pin(0);
        int fd = accept(listener, 0, 0);
        check(fd >= 0, "accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        secondary(fd, open_file(argv[2]), block);
        _exit(0);
    }
    if (pinned || one) pin(0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (void *)&address, len) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int file = open_file(argv[1]);
    if (argc == 8) serve_all(argv[7], fd, file, block, st.st_size);
    double start = seconds(), used = cpu(RUSAGE_SELF);
    writes = primary(fd, file, block, depth, writes, lasts > 0 ? start + lasts : 0, st.st_size / block);
    double took = seconds() - start;
    used = cpu(RUSAGE_SELF) - used;
    shutdown(fd, SHUT_RDWR);
    waitpid(child, 0, 0);
    double first = used * 1e6 / writes, second = cpu(RUSAGE_CHILDREN) * 1e6 / writes;
    printf("%.0f IOPS, %.2f us CPU per write (%.2f + %.2f), %.1f MiB/s\n", writes / took, first + second, first, second,
           writes / took * block / (1 << 20));
    return 0;
}
