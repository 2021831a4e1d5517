/*
 * The bare work of a mirrored write and nothing else: what any replicating program on this machine can reach at most.
 *
 * Two processes and one loopback TCP connection. The first writes each block to its file and sends it with a 32-byte
 * header; the second receives it, writes it to its file and answers with 16 bytes. All writes and messages of a batch
 * of `depth` go with one system call each where the interface allows it. No protocol, no metadata, no front end.
 *
 * Usage: limit FILE_A FILE_B BLOCK_BYTES DEPTH WRITES MODE    WRITES: a number, or a time in milliseconds like 1000ms
 *     MODE: unpinned | pinned (one core each) | one (one core) | spin
 * Prints one line: IOPS, CPU microseconds per write of both processes and of each, MiB/s.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
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

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: %s FILE_A FILE_B BLOCK_BYTES DEPTH WRITES|MILLISms unpinned|pinned|one|spin\n", argv[0]);
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
    double start = seconds(), used = cpu(RUSAGE_SELF);
    writes = primary(fd, open_file(argv[1]), block, depth, writes, lasts > 0 ? start + lasts : 0, st.st_size / block);
    double took = seconds() - start;
    used = cpu(RUSAGE_SELF) - used;
    shutdown(fd, SHUT_RDWR);
    waitpid(child, 0, 0);
    double first = used * 1e6 / writes, second = cpu(RUSAGE_CHILDREN) * 1e6 / writes;
    printf("%.0f IOPS, %.2f us CPU per write (%.2f + %.2f), %.1f MiB/s\n", writes / took, first + second, first, second,
           writes / took * block / (1 << 20));
    return 0;
}
