// SPDX-License-Identifier: Apache-2.0
//
// Streams of the stand-in libcuda.c: worker threads that do their work in order and asynchronously, so that memory used
// again too early shows. A stream handle knows its context and needs none to be current, but the handles 0, 1 and 2 of
// the default streams mean those of the current context (so does a real driver: seen on an H200, driver 580.159).
// Default streams do not wait for other streams here, as they do for blocking ones on a real driver.
//
// A GPU has a few hardware channels (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default), which streams share: what is at the head
// of a channel, be it a wait, holds up all that was submitted behind it, in whatever stream. channels=K gives the
// stand-in so many; then one thread calls all functions of the host, and giving memory back waits for all streams, while
// cuMemFree holds up submissions, as measured on an H200 (driver 580.159).

#ifndef STREAMS_H
#define STREAMS_H

#include <time.h>

// A place in a stream. An event points to its latest one; streams that wait for it keep it.
struct point {
    int references;
    bool reached;
    struct timespec time;
};

struct CUevent_st {
    CUcontext context;
    unsigned flags;
    struct point *point;  // NULL until it is recorded
    bool captured;        // recorded in a stream under capture last
};

struct work {
    enum { COPY, FILL, CALL, RECORD, WAIT, WAIT_VALUE, WRITE_VALUE } kind;
    uintptr_t to, from;
    size_t to_pitch, from_pitch, width, height;  // COPY and FILL: rows of bytes
    void *staged;                                // COPY: what was read already of a pageable source
    unsigned value, unit;                        // FILL: its bytes and how many; the VALUEs: what to wait for or write
    CUhostFn function;
    void *argument;
    struct point *point;
    size_t order, turn;  // of all that was submitted; in its channel
    struct work *next;
};

struct channel {
    size_t submitted, finished;
};

struct capture {
    cuuint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool lost;
    CUgraph graph;
    struct capture *next;
};

struct CUstream_st {
    CUcontext context;
    unsigned flags;
    unsigned long long id;
    bool closing;
    struct capture *capture;  // NULL: what is submitted is done
    struct channel *channel;  // NULL: one of its own
    size_t submitted, finished;
    struct work *first, **last;
    struct CUstream_st *next;
};

static struct CUstream_st *streams;  // also those destroyed whose work is not done
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;  // something was submitted or finished
static int live_streams, live_events;
enum { MAX_CHANNELS = 32 };
static struct channel channels[MAX_CHANNELS];
static int channel_count, next_channel;  // 0: unlimited
static size_t orders;                    // given to work so far
static int holding_up;                   // calls that no submission comes past
static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;  // functions of the host
static _Atomic int lost;  // the code of the failure that nothing survives
static bool lose(const char *function);
static struct capture *captures;
static _Thread_local CUstreamCaptureMode capture_mode;  // of this thread; global at first
static void record(CUgraph graph, const struct work *work);

// (mutex) Ends captures: all, or those of one stream. Returns `code`.
static CUresult end_captures(struct capture *one, CUresult code) {
    for (struct capture *capture = captures; capture; capture = capture->next) capture->lost |= !one || capture == one;
    return code;
}

// The code of a call that is unsafe while a stream is captured.
static CUresult beside_captures(const char *function) {
    static const char *const unsafe[] = {"cuEventQuery", "cuEventSynchronize", "cuStreamQuery", "cuStreamSynchronize",
                                         "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost",
                                         "cuMemAllocManaged", "cuMemHostRegister", "cuMemHostUnregister",
                                         "cuModuleUnload"};
    if (!captures) return CUDA_SUCCESS;
    bool for_all = !strcmp(function, "cuCtxSynchronize"), prohibited = for_all;
    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; ++i) {
        size_t length = strlen(unsafe[i]);
        prohibited |= !strncmp(function, unsafe[i], length) && (!function[length] || function[length] == '_');
    }
    if (!prohibited || (!for_all && capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)) return CUDA_SUCCESS;
    CUresult code = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    for (struct capture *capture = captures; capture; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool others = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (for_all || own || others) code = end_captures(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static void forget(struct point *point) {  // (mutex)
    if (point && --point->references == 0) free(point);
}

static void move(const struct work *work) {
    for (size_t row = 0; row < work->height; ++row) {
        unsigned char *to = (unsigned char *)work->to + row * work->to_pitch;
        if (work->kind == COPY) memmove(to, (const unsigned char *)work->from + row * work->from_pitch, work->width);
        else for (size_t i = 0; i < work->width; ++i) to[i] = (unsigned char)(work->value >> i % work->unit * 8);
    }
}

// What a thread of the host writes is seen without any signal, so it is looked at again and again.
static void await(const struct work *work) {
    while ((int32_t)(__atomic_load_n((uint32_t *)work->to, __ATOMIC_ACQUIRE) - work->value) < 0 && !lost) usleep(50);
}

static void perform(struct work *work) {
    switch (work->kind) {
    case COPY: case FILL: move(work); break;
    case CALL:
        if (channel_count) pthread_mutex_lock(&calling);
        work->function(work->argument);
        if (channel_count) pthread_mutex_unlock(&calling);
        break;
    case WAIT_VALUE: await(work); break;
    case WRITE_VALUE: __atomic_store_n((uint32_t *)work->to, work->value, __ATOMIC_RELEASE); break;
    case RECORD: case WAIT: break;
    }
}

static void *run(void *argument) {
    CUstream stream = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!stream->first && !stream->closing) pthread_cond_wait(&progress, &mutex);
        struct work *work = stream->first;
        if (!work) break;
        while (stream->channel && stream->channel->finished != work->turn && !lost) pthread_cond_wait(&progress, &mutex);
        if (work->kind == WAIT) while (!work->point->reached && !lost) pthread_cond_wait(&progress, &mutex);
        pthread_mutex_unlock(&mutex);
        if (!lost && !lose("work")) perform(work);
        pthread_mutex_lock(&mutex);
        if (work->kind == RECORD) {
            work->point->reached = true;
            clock_gettime(CLOCK_MONOTONIC, &work->point->time);
        }
        forget(work->point);
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        ++stream->finished;
        if (stream->channel) ++stream->channel->finished;
        pthread_cond_broadcast(&progress);
        free(work->staged);
        free(work);
    }
    CUstream *link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&mutex);
    free(stream);
    return NULL;
}

static CUstream start_stream(CUcontext context, unsigned flags) {  // (mutex)
    CUstream stream = calloc(1, sizeof *stream);
    *stream = (struct CUstream_st){.context = context, .flags = flags, .id = ++ids, .last = &stream->first, .next = streams};
    if (channel_count) stream->channel = &channels[next_channel++ % channel_count];
    streams = stream;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, stream)) abort();
    pthread_detach(thread);
    return stream;
}

// (mutex) The stream of a handle, NULL for want of a context. As with a real driver, a stream that was
// destroyed is the end of the process.
static CUstream stream_of(CUstream handle, CUcontext current) {
    if ((uintptr_t)handle <= 2) {
        if (!current) return NULL;
        CUstream *known = &current->streams[handle == CU_STREAM_PER_THREAD];
        if (!*known) *known = start_stream(current, CU_STREAM_DEFAULT);
        return *known;
    }
    for (CUstream stream = streams; stream; stream = stream->next)
        if (stream == handle && !stream->closing) return want_context && stream->context != current ? NULL : stream;
    fprintf(stderr, "libcuda stand-in: %p is not a stream\n", (void *)handle);
    abort();
}

static size_t submit(CUstream stream, struct work work) {  // (mutex)
    if (stream->capture) {
        record(stream->capture->graph, &work);
        return stream->submitted;
    }
    while (holding_up) pthread_cond_wait(&progress, &mutex);
    struct work *added = malloc(sizeof *added);
    *added = work;
    added->order = ++orders;
    if (stream->channel) added->turn = stream->channel->submitted++;
    added->next = NULL;
    *stream->last = added;
    stream->last = &added->next;
    pthread_cond_broadcast(&progress);
    return ++stream->submitted;
}

static void wait_until(CUstream stream, size_t finished) {  // (mutex)
    while (stream->finished < finished) pthread_cond_wait(&progress, &mutex);
}

// What is given back may still be in use, so the driver waits for what was submitted to all streams (seen on an H200).
// Streams that come and go meanwhile are looked at anew.
static void drain(void) {
    pthread_mutex_lock(&mutex);
    size_t last = orders;
    for (CUstream stream = streams; stream;) {
        if (stream->first && stream->first->order <= last) pthread_cond_wait(&progress, &mutex), stream = streams;
        else stream = stream->next;
    }
    pthread_mutex_unlock(&mutex);
}

// `drain`, while nothing is submitted where channels are few.
static void drain_alone(void) {
    pthread_mutex_lock(&mutex);
    bool alone = channel_count;
    if (alone) ++holding_up;
    pthread_mutex_unlock(&mutex);
    drain();
    pthread_mutex_lock(&mutex);
    if (alone) --holding_up;
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&mutex);
}

#endif
