// SPDX-License-Identifier: Apache-2.0
//
// Streams of a stand-in: worker threads that do their work in order and asynchronously, so that memory reused too early
// shows. Include it after standin.h, with the names that the vendor's header has for its types:
//
//     #define STREAM ihipStream_t  // struct ihipStream_t is what a stream's handle points to
//     #define EVENT ihipEvent_t
//
// A vendor whose streams need more defines further members of these structures, MORE_OF_STREAM, MORE_OF_EVENT and
// MORE_OF_WORK, and STREAM_HOOKS with the functions that are declared below.
//
// Functions marked (mutex) are called with `mutex` held.

#ifndef STREAMS_H
#define STREAMS_H

#include <time.h>

// A position in a stream. An event points to its latest one; streams that wait for it keep it.
struct point {
    int references;
    bool reached;
    struct timespec time;
    double elapsed;  // for the vendor
};

#ifndef MORE_OF_STREAM
#define MORE_OF_STREAM int device;
#define MORE_OF_EVENT int device;
#define MORE_OF_WORK
#endif

struct EVENT {
    MORE_OF_EVENT
    unsigned flags;
    struct point *point;  // NULL until it is recorded
};

struct work {
    enum { COPY, FILL, CALL, RECORD, WAIT, WAIT_VALUE, WRITE_VALUE } kind;
    uintptr_t to, from;
    size_t to_pitch, from_pitch, width, height;  // COPY and FILL: rows of bytes
    void *staged;                                // COPY: what was read in advance from a pageable source
    unsigned value, unit;                        // FILL: pattern and its bytes; the VALUEs: what to wait for or write
    void (*function)(void *);
    void *argument;
    struct point *point;
    struct work *next;
    MORE_OF_WORK
};

struct STREAM {
    MORE_OF_STREAM
    unsigned flags;
    void *owner;  // for the vendor
    bool closing;
    size_t submitted, finished;
    struct work *first, **last;
    struct STREAM *next;
};

static struct STREAM *streams;  // also those destroyed whose work is not done

// Whether a word of the host has reached a value, as the vendor compares them.
static bool reached(uint32_t word, uint32_t value);

// (mutex) Work is submitted: whether it is diverted; it is about to enter; whether its turn has come; it has ended.
static bool diverted(struct STREAM *stream, const struct work *work);
static void entering(struct STREAM *stream, struct work *work);
static bool has_turn(const struct STREAM *stream, const struct work *work);
static void ended(struct STREAM *stream, struct work *work);
// The code with which its device was lost, or 0.
static int gone(const struct STREAM *stream);
// Calls its host function.
static void call_host(const struct work *work);

#ifndef STREAM_HOOKS
static bool diverted(struct STREAM *stream, const struct work *work) { return (void)stream, (void)work, false; }
static void entering(struct STREAM *stream, struct work *work) { (void)stream, (void)work; }
static bool has_turn(const struct STREAM *stream, const struct work *work) { return (void)stream, (void)work, true; }
static void ended(struct STREAM *stream, struct work *work) { (void)stream, (void)work; }
static int gone(const struct STREAM *stream) { return (void)stream, lost; }
static void call_host(const struct work *work) { work->function(work->argument); }
#endif

static void forget(struct point *point) {  // (mutex)
    if (point && --point->references == 0) free(point);
}

static void perform(const struct STREAM *stream, const struct work *work) {
    switch (work->kind) {
    case COPY:
    case FILL:
        for (size_t row = 0; row < work->height; ++row) {
            unsigned char *to = (unsigned char *)work->to + row * work->to_pitch;
            if (work->kind == COPY) memmove(to, (const unsigned char *)work->from + row * work->from_pitch, work->width);
            else if (work->unit == 1) memset(to, (int)work->value, work->width);
            else for (size_t i = 0; i < work->width; ++i) to[i] = (unsigned char)(work->value >> i % work->unit * 8);
        }
        break;
    case CALL: call_host(work); break;
    case WAIT_VALUE:  // a host thread's write gives no signal, so the word is polled
        while (!reached(__atomic_load_n((uint32_t *)work->to, __ATOMIC_ACQUIRE), work->value) && !gone(stream)) usleep(50);
        break;
    case WRITE_VALUE: __atomic_store_n((uint32_t *)work->to, work->value, __ATOMIC_RELEASE); break;
    case RECORD: case WAIT: break;
    }
}

static void *run(void *argument) {
    struct STREAM *stream = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!stream->first && !stream->closing) pthread_cond_wait(&progress, &mutex);
        struct work *work = stream->first;
        if (!work) break;
        while (!has_turn(stream, work) && !lost) pthread_cond_wait(&progress, &mutex);
        if (work->kind == WAIT) while (!work->point->reached && !gone(stream)) pthread_cond_wait(&progress, &mutex);
        pthread_mutex_unlock(&mutex);
        if (!gone(stream) && !lose("work")) perform(stream, work);
        pthread_mutex_lock(&mutex);
        ended(stream, work);
        if (work->kind == RECORD) {
            work->point->reached = true;
            clock_gettime(CLOCK_MONOTONIC, &work->point->time);
        }
        forget(work->point);
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        ++stream->finished;
        pthread_cond_broadcast(&progress);
        free(work->staged);
        free(work);
    }
    struct STREAM **link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&mutex);
    free(stream);
    return NULL;
}

static struct STREAM *start(struct STREAM made) {  // (mutex)
    struct STREAM *stream = malloc(sizeof *stream);
    *stream = made;
    stream->last = &stream->first, stream->next = streams;
    streams = stream;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, stream)) abort();
    pthread_detach(thread);
    return stream;
}

static inline void end_stream(struct STREAM *stream) {  // (mutex) its work is still done
    stream->closing = true;
    pthread_cond_broadcast(&progress);
}

static inline bool is_stream(const struct STREAM *handle) {  // (mutex)
    for (struct STREAM *stream = streams; stream; stream = stream->next)
        if (stream == handle && !stream->closing) return true;
    return false;
}

static size_t submit(struct STREAM *stream, struct work work) {  // (mutex)
    if (diverted(stream, &work)) return stream->submitted;
    struct work *added = malloc(sizeof *added);
    *added = work;
    entering(stream, added);
    added->next = NULL;
    *stream->last = added;
    stream->last = &added->next;
    pthread_cond_broadcast(&progress);
    return ++stream->submitted;
}

static inline void submit_wait(struct STREAM *stream, struct EVENT *event) {  // (mutex)
    if (!event->point) return;
    ++event->point->references;
    submit(stream, (struct work){.kind = WAIT, .point = event->point});
}

static inline void submit_record(struct STREAM *stream, struct EVENT *event) {  // (mutex)
    forget(event->point);
    event->point = calloc(1, sizeof *event->point);
    event->point->references = 2;
    submit(stream, (struct work){.kind = RECORD, .point = event->point});
}

static inline void wait_until(struct STREAM *stream, size_t finished) {  // (mutex)
    while (stream->finished < finished) pthread_cond_wait(&progress, &mutex);
}

static inline void wait_for_event(struct EVENT *event) {  // (mutex)
    while (event->point && !event->point->reached && !lost) pthread_cond_wait(&progress, &mutex);
}

#ifndef STREAM_HOOKS
static struct STREAM *start_stream(int device, unsigned flags) {  // (mutex)
    return start((struct STREAM){.device = device, .flags = flags});
}

// Wait for all streams of a device, or of all devices for -1. After each wait, from the start: streams come and go.
static inline void drain(int device) {
    pthread_mutex_lock(&mutex);
    for (struct STREAM *stream = streams; stream;) {
        bool meant = device < 0 || stream->device == device;
        if (meant && stream->finished < stream->submitted) pthread_cond_wait(&progress, &mutex), stream = streams;
        else stream = stream->next;
    }
    pthread_mutex_unlock(&mutex);
}
#endif

#endif
