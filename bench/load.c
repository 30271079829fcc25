/* Load for a server that speaks RocketMQ's remoting protocol: the twin of load.py, for a machine with
 * a C compiler. One thread, one epoll loop, frames built beforehand.
 *
 *   load PORT CONNECTIONS DEPTH WARM_S SECONDS SERVER_PID [OTHER_PID] < frames
 *
 * Each frame on stdin carries "opaque":1000000, whose seven digits are replaced for each request.
 * Every connection keeps DEPTH requests in flight. Of an answer only the frame's length, a code of 0 and
 * the opaque are looked at. Prints one line of JSON, with the CPU
 * time of the server and of the other process, if one is named. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES_MAX = 4096, FRAME_MAX = 1 << 17, BUFFER = 1 << 20, BASE = 1000000, OUT = 1 << 16 };

typedef struct { char *at; int length, digits; } Frame;
typedef struct { int fd, have; char *buffer; } Connection;

static Frame frames[FRAMES_MAX];
static int frame_count, next_frame;
static uint64_t *sent_ns;
static uint32_t *latency_ns;
static size_t latency_count, latency_room;
static uint64_t answers, refusals;
static int measuring;

static void die(const char *what) { perror(what); exit(1); }

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) die("clock_gettime");
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static uint32_t read_u32(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return ntohl(v);
}

static void read_frames(void) {
    size_t have = 0, room = 1 << 24;
    char *all = malloc(room);
    ssize_t n;
    while ((n = read(0, all + have, room - have)) > 0) have += n;
    for (size_t at = 0; at + 8 <= have && frame_count < FRAMES_MAX;) {
        Frame *f = &frames[frame_count++];
        f->at = all + at;
        f->length = 4 + (int)read_u32(f->at);
        if (f->length > FRAME_MAX) { fprintf(stderr, "a frame of %d bytes\n", f->length); exit(1); }
        char *mark = memmem(f->at, f->length, "\"opaque\":1000000", 16);
        if (!mark) { fprintf(stderr, "a frame without \"opaque\":1000000\n"); exit(1); }
        f->digits = (int)(mark + 9 - f->at);
        at += f->length;
    }
    if (!frame_count) { fprintf(stderr, "no frames on stdin\n"); exit(1); }
}

static int put_request(char *out, int slot, uint64_t now) {
    Frame *f = &frames[next_frame];
    next_frame = (next_frame + 1) % frame_count;
    memcpy(out, f->at, f->length);
    int value = BASE + slot;
    for (int digit = 6; digit >= 0; digit--, value /= 10) out[f->digits + digit] = '0' + value % 10;
    sent_ns[slot] = now;
    return f->length;
}

static void write_all(int fd, const char *data, int length) {
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n > 0) { data += n; length -= n; continue; }
        if (n < 0 && errno != EAGAIN && errno != EINTR) die("write");
        struct pollfd p = {fd, POLLOUT, 0};
        poll(&p, 1, 1000);
    }
}

static void take_answer(const char *frame, int length, int slots, uint64_t now, int *slot) {
    int header = (int)(read_u32(frame + 4) & 0xffffff);
    const char *mark = header + 8 <= length ? memmem(frame + 8, header, "\"opaque\":", 9) : NULL;
    int value = mark ? atoi(mark + 9) - BASE : -1;
    if (value < 0 || value >= slots) { fprintf(stderr, "an answer with a foreign opaque\n"); exit(1); }
    *slot = value;
    if (!measuring) return;
    answers++;
    if (!memmem(frame + 8, header, "\"code\":0,", 9)) refusals++;
    if (latency_count == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 1 << 20;
        latency_ns = realloc(latency_ns, latency_room * sizeof *latency_ns);
    }
    uint64_t took = now - sent_ns[value];
    latency_ns[latency_count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

static void on_readable(Connection *c, int slots) {
    static char out[OUT + FRAME_MAX];
    ssize_t n = read(c->fd, c->buffer + c->have, BUFFER - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { fprintf(stderr, "the server closed a connection\n"); exit(1); }
    c->have += n;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    int at = 0, filled = 0;
    while (c->have - at >= 8) {
        int length = 4 + (int)read_u32(c->buffer + at), slot;
        if (length > BUFFER) { fprintf(stderr, "an answer of %d bytes\n", length); exit(1); }
        if (c->have - at < length) break;
        take_answer(c->buffer + at, length, slots, now, &slot);
        filled += put_request(out + filled, slot, now);
        if (filled > OUT) { write_all(c->fd, out, filled); filled = 0; }
        at += length;
    }
    memmove(c->buffer, c->buffer + at, c->have - at);
    c->have -= at;
    write_all(c->fd, out, filled);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double latency_us(double share) {
    if (!latency_count) return 0;
    return latency_ns[(size_t)(share * (latency_count - 1))] / 1000.0;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "load PORT CONNECTIONS DEPTH WARM_S SECONDS SERVER_PID [OTHER_PID] < frames\n");
        return 2;
    }
    int port = atoi(argv[1]), connections = atoi(argv[2]), depth = atoi(argv[3]);
    uint64_t warm_ns = (uint64_t)(atof(argv[4]) * 1e9), run_ns = (uint64_t)(atof(argv[5]) * 1e9);
    clockid_t server, other;
    if (clock_getcpuclockid(atoi(argv[6]), &server) || clock_getcpuclockid(atoi(argv[argc - 1]), &other)) { fprintf(stderr, "no such server process\n"); return 1; }
    read_frames();
    int slots = connections * depth, poller = epoll_create1(0);
    sent_ns = calloc(slots, sizeof *sent_ns);
    Connection *all = calloc(connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        Connection *c = &all[i];
        int one = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        c->buffer = malloc(BUFFER);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e)) die("epoll_ctl");
    }
    uint64_t now = clock_ns(CLOCK_MONOTONIC), begin = 0, server_begin = 0, other_begin = 0, own_begin = 0;
    uint64_t warm_end = now + warm_ns, end = warm_end + run_ns;
    for (int i = 0; i < connections; i++)
        for (int slot = 0; slot < depth; slot++) {
            static char out[FRAME_MAX];
            write_all(all[i].fd, out, put_request(out, i * depth + slot, clock_ns(CLOCK_MONOTONIC)));
        }
    while ((now = clock_ns(CLOCK_MONOTONIC)) < end) {
        if (!measuring && now >= warm_end) {
            measuring = 1;
            begin = now;
            server_begin = clock_ns(server);
            other_begin = clock_ns(other);
            own_begin = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        }
        struct epoll_event events[256];
        int ready = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < ready; i++) on_readable(events[i].data.ptr, slots);
    }
    double server_s = (clock_ns(server) - server_begin) / 1e9;
    double other_s = argc > 7 ? (clock_ns(other) - other_begin) / 1e9 : 0.0;
    double own_s = (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own_begin) / 1e9;
    double wall_s = (clock_ns(CLOCK_MONOTONIC) - begin) / 1e9;
    qsort(latency_ns, latency_count, sizeof *latency_ns, by_size);
    printf("{\"answers\": %llu, \"refusals\": %llu, \"wall_s\": %.6f, \"server_cpu_s\": %.6f, "
           "\"other_cpu_s\": %.6f, \"load_cpu_s\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           (unsigned long long)answers, (unsigned long long)refusals, wall_s, server_s, other_s, own_s,
           latency_us(0.5), latency_us(0.99));
    return 0;
}
