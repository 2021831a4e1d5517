/* Lets user-mode Linux run on processors with tile registers (AMX).
 *
 * Its kernel keeps floating point registers in a buffer of fixed size, made for AVX-512. To set a process's registers
 * the host wants its own, larger layout in full, and answers EFAULT to less: "ptrace set fp regs failed, errno = 14",
 * and the guest dies when it starts init. Loaded with LD_PRELOAD, this ptrace() completes what the guest's kernel sets
 * with what the process has. The layout is the standard one of XSAVE, so the beginning is the same in both.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kernel's stacks are small; it runs on one thread. Larger than any processor's registers. */
static char all[64 << 10];

static long set_registers(pid_t pid, void *kind, struct iovec *some)
{
	struct iovec whole = { .iov_base = all, .iov_len = sizeof all };

	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, kind, &whole) || whole.iov_len <= some->iov_len)
		return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, some);
	memcpy(all, some->iov_base, some->iov_len);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;
	va_start(rest, request);
	pid_t pid = va_arg(rest, pid_t);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);

	if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
		return set_registers(pid, address, data);
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		/* The system call stores the word, the function returns it. */
		long word = 0;
		long r = syscall(SYS_ptrace, request, pid, address, &word);
		if (!r)
			errno = 0;
		return r ? r : word;
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}
