/* What the kernel's TCP can do on this host: scattered spans from one process to scattered places in another, in a plain
 * loop around sendmsg and recvmsg. `bench/raw_tcp.py` compiles and orders it.
 *
 *   tcp_loop SPAN_BYTES PAGES CONNECTIONS SEND_BUFFER_BYTES BATCH_SPANS
 *
 * Memory, sockets and processes are as in the product: a populated memfd on each side, connections over 127.0.0.1 with
 * TCP_NODELAY and a bounded send buffer, the spans at even pages of the source, and at the pages of the target that the
 * first lines of stdin name: how many, and each. Every further line is an order: one pass. The answer is one line, the
 * nanoseconds from the first sendmsg until the receiving process has all bytes. Before the first answer a pass is made
 * whose bytes are compared.
 *
 * The spans are cut into one contiguous share for each connection. With one connection both sides block in the call;
 * with several, each side waits in poll for whichever is ready. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 64, MOST_SPANS_AT_ONCE = 1024 };

/* One connection's share of a pass, as far as it has come. */
struct share {
    int fd;
    size_t next, end; /* spans */
    size_t done;      /* bytes of the next one */
};

static size_t span_bytes, pages, spans, connections, batch_spans;
static size_t *targets; /* page of the target, by span */
static char *source, *target;
static struct share shares[MOST_CONNECTIONS];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static char *memory(void) {
    int fd = memfd_create("tcp-loop", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(span_bytes * pages)) < 0) fail("memfd");
    char *found = mmap(NULL, span_bytes * pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (found == MAP_FAILED) fail("mmap");
    return found;
}

static char *place(int sends, size_t span) {
    return sends ? source + 2 * span * span_bytes : target + targets[span] * span_bytes;
}

/* The rest of a share, at most `batch_spans` spans of it, as one scattered message. */
static size_t message(const struct share *share, int sends, struct iovec *rest) {
    size_t count = 0;
    for (size_t span = share->next; span < share->end && count < batch_spans; span++, count++) {
        size_t done = count ? 0 : share->done;
        rest[count].iov_base = place(sends, span) + done;
        rest[count].iov_len = span_bytes - done;
    }
    return count;
}

/* One call for this share. False when the socket is not ready. */
static int step(struct share *share, int sends) {
    static struct iovec rest[MOST_SPANS_AT_ONCE];
    struct msghdr header = {.msg_iov = rest, .msg_iovlen = message(share, sends, rest)};
    int flags = connections > 1 ? MSG_DONTWAIT : 0;
    ssize_t moved = sends ? sendmsg(share->fd, &header, flags) : recvmsg(share->fd, &header, flags);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (moved <= 0) fail(sends ? "sendmsg" : "recvmsg");
    size_t bytes = share->done + (size_t)moved;
    share->next += bytes / span_bytes;
    share->done = bytes % span_bytes;
    return 1;
}

static void pass(int sends) {
    for (size_t each = 0; each < connections; each++) {
        shares[each].next = spans * each / connections;
        shares[each].end = spans * (each + 1) / connections;
        shares[each].done = 0;
    }
    for (;;) {
        struct pollfd waiting[MOST_CONNECTIONS];
        nfds_t left = 0;
        int moved = 0;
        for (size_t each = 0; each < connections; each++) {
            if (shares[each].next == shares[each].end) continue;
            moved |= step(&shares[each], sends);
            waiting[left++] = (struct pollfd){.fd = shares[each].fd, .events = sends ? POLLOUT : POLLIN};
        }
        if (!left) return;
        if (!moved && poll(waiting, left, -1) < 0 && errno != EINTR) fail("poll");
    }
}

static void connect_all(int *sending, int *receiving, int send_buffer_bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, size) < 0) fail("bind");
    if (listen(listening, MOST_CONNECTIONS) < 0) fail("listen");
    if (getsockname(listening, (struct sockaddr *)&address, &size) < 0) fail("getsockname");
    for (size_t each = 0; each < connections; each++) {
        sending[each] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sending[each], (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
        if (setsockopt(sending[each], SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes) < 0)
            fail("SO_SNDBUF");
        if (setsockopt(sending[each], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) fail("TCP_NODELAY");
        receiving[each] = accept(listening, NULL, NULL);
        if (receiving[each] < 0) fail("accept");
    }
    close(listening);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void signal_to(int fd) {
    if (write(fd, "", 1) != 1) fail("write");
}

static int wait_for(int fd) {
    char byte;
    return read(fd, &byte, 1) == 1;
}

static void compare(void) {
    for (size_t span = 0; span < spans; span++)
        if (memcmp(place(1, span), place(0, span), span_bytes)) {
            fprintf(stderr, "tcp_loop: span %zu arrived with other bytes\n", span);
            exit(1);
        }
}

static void read_targets(void) {
    if (scanf("%zu", &spans) != 1 || 2 * spans > pages) exit(2);
    targets = calloc(spans, sizeof *targets);
    if (!targets) fail("calloc");
    for (size_t span = 0; span < spans; span++)
        if (scanf("%zu", &targets[span]) != 1 || targets[span] >= pages) exit(2);
    while (getchar() != '\n') continue;
}

int main(int count, char **given) {
    if (count != 6) return 2;
    span_bytes = strtoul(given[1], NULL, 10);
    pages = strtoul(given[2], NULL, 10);
    connections = strtoul(given[3], NULL, 10);
    batch_spans = strtoul(given[5], NULL, 10);
    if (!span_bytes || !connections || connections > MOST_CONNECTIONS) return 2;
    if (!batch_spans || batch_spans > MOST_SPANS_AT_ONCE) return 2;
    read_targets();
    source = memory();
    target = memory();
    for (size_t at = 0; at < span_bytes * pages; at++) source[at] = (char)(at % 251);
    int sending[MOST_CONNECTIONS], receiving[MOST_CONNECTIONS], ready[2], landed[2];
    connect_all(sending, receiving, atoi(given[4]));
    if (pipe(ready) < 0 || pipe(landed) < 0) fail("pipe");
    pid_t parent = getpid(), child = fork();
    if (child < 0) fail("fork");
    int sends = child != 0;
    for (size_t each = 0; each < connections; each++) {
        shares[each].fd = sends ? sending[each] : receiving[each];
        close(sends ? receiving[each] : sending[each]);
    }
    if (!sends) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) return 1;
        close(ready[1]);
        while (wait_for(ready[0])) {
            pass(0);
            signal_to(landed[1]);
        }
        return 0;
    }
    close(landed[1]);
    char line[64];
    for (int first = 1; first || fgets(line, sizeof line, stdin); first = 0) {
        signal_to(ready[1]);
        uint64_t begun = now();
        pass(1);
        if (!wait_for(landed[0])) return 1;
        uint64_t took = now() - begun;
        if (first) compare();
        printf("%llu\n", (unsigned long long)(first ? 0 : took));
        fflush(stdout);
    }
    return 0;
}
