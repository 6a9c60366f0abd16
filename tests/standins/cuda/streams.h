// SPDX-License-Identifier: Apache-2.0
//
// Streams of the stand-in libcuda.c: worker threads that do their work in order and asynchronously, so that memory
// reused too early shows. A stream handle knows its context and needs none to be current, but the handles 0, 1 and 2
// are the default streams of the current context (as with a real driver: seen on an H200, driver 580.159). The
// legacy default stream and the blocking streams of its context, which per-thread default streams are too, wait for
// each other's earlier work.
//
// A GPU has a few hardware channels (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default), which streams share: the work at the
// head of a channel, even a wait, blocks all work submitted behind it, in any stream. channels=K gives the stand-in K
// of them; then host functions are called one at a time, freeing memory waits for all streams, and cuMemFree and
// cuMemHostUnregister block submissions, as measured on an H200 (driver 580.159).
//
// With rates= each stream has its own clock, which copies between host and devices, and between two devices, advance by
// the time that they would take. A copy begins when its stream and its bus, or its link, are free; an event passes its
// stream's time to the streams that wait for it. Waits for words pass none.

#ifndef CUDA_STREAMS_H
#define CUDA_STREAMS_H

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

#define STREAM CUstream_st
#define EVENT CUevent_st
#define STREAM_HOOKS
#define MORE_OF_STREAM                                          \
    CUcontext context;                                          \
    unsigned long long id;                                      \
    struct capture *capture; /* NULL: not captured */              \
    struct channel *channel; /* NULL: one of its own */         \
    double elapsed;
#define MORE_OF_EVENT  \
    CUcontext context; \
    bool captured;     /* its last record was in a captured stream */
#define MORE_OF_WORK size_t order, turn;  // in all submitted work; in its channel
#include "../streams.h"

enum { MAX_CHANNELS = 32 };
static struct channel channels[MAX_CHANNELS];
static int channel_count, next_channel;  // 0: unlimited
static size_t orders;                    // given to work so far
static int holding_up;                   // calls that block all submissions
static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;  // held while a host function runs
static struct capture *captures;
static _Thread_local CUstreamCaptureMode capture_mode;  // of this thread; global at first
static _Thread_local CUstream thread_defaults[2 * MAX_DEVICES];  // per-thread default streams, by context
static void record(CUgraph graph, const struct work *work);

static bool reached(uint32_t word, uint32_t value) { return (int32_t)(word - value) >= 0; }

static bool diverted(CUstream stream, const struct work *work) {
    if (stream->capture) record(stream->capture->graph, work);
    return stream->capture;
}

static void entering(CUstream stream, struct work *work) {
    while (holding_up) pthread_cond_wait(&progress, &mutex);
    work->order = ++orders;
    if (stream->channel) work->turn = stream->channel->submitted++;
}

// A single device that is lost: its calls fail, and the work in its streams is not done; no other stream waits for it.
// alone=DEVICE:calls:N:CODE: from the N-th call that uses its contexts, their streams or their events.
// alone=DEVICE:work:N:CODE: after N pieces of work in its streams.
static struct {
    int device, nth, code;
    bool work;
    _Atomic int seen;
} alone;

static bool alone_option(const char *entry) {
    char what[6] = "";
    alone.nth = alone.seen = 0;
    if (!entry) return true;
    if (sscanf(entry, "alone=%d:%5[a-z]:%d:%d", &alone.device, what, &alone.nth, &alone.code) != 4) return false;
    alone.work = !strcmp(what, "work");
    return true;
}

// The code with which a context's device was lost, or 0. `counts`: the call or work counts towards N.
static int gone_from(CUcontext context, bool counts) {
    if (!alone.nth || !context || device_of(context) != alone.device) return 0;
    if (counts && ++alone.seen == alone.nth) pthread_cond_broadcast(&progress);
    return alone.seen >= alone.nth ? alone.code : 0;
}

static int gone(const struct CUstream_st *stream) { return lost ? lost : gone_from(stream->context, false); }

static bool is_legacy(const struct CUstream_st *stream) { return stream->context && stream->context->legacy == stream; }
static bool is_blocking(const struct CUstream_st *stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

static bool has_turn(const struct CUstream_st *stream, const struct work *work) {
    for (CUstream other = streams; other; other = other->next) {
        bool ordered = other->context == stream->context && ((is_legacy(stream) && is_blocking(other)) ||
                                                             (is_legacy(other) && is_blocking(stream)));
        if (ordered && other != stream && other->first && other->first->order < work->order) return false;
    }
    return !stream->channel || stream->channel->finished == work->turn;
}

static double bus_rate, link_rate, latest;  // GB/s; seconds
static double buses[MAX_DEVICES][2], links[MAX_DEVICES][MAX_DEVICES];  // when each is free

static void begin_times(double bus, double link) {
    bus_rate = bus, link_rate = link, latest = 0;
    memset(buses, 0, sizeof buses);
    memset(links, 0, sizeof links);
    for (CUstream stream = streams; stream; stream = stream->next) stream->elapsed = 0;
}

static int device_at(uintptr_t address) {  // (mutex) -1: the host
    for (struct range *r = ranges; r; r = r->next)
        if (r->kind >= DEVICE_ALLOCATION && address - r->host < r->size) return (int)r->flags;
    return -1;
}

static void take_time(CUstream stream, const struct work *work) {  // (mutex)
    int to = device_at(work->to), from = device_at(work->from);
    if (to == from) return;
    bool by_bus = to < 0 || from < 0;
    double *way = by_bus ? &buses[to < 0 ? from : to][to < 0] : &links[from][to];
    double begin = *way > stream->elapsed ? *way : stream->elapsed;
    *way = stream->elapsed = begin + work->width * work->height / (1e9 * (by_bus ? bus_rate : link_rate));
    if (stream->elapsed > latest) latest = stream->elapsed;
}

static void ended(CUstream stream, struct work *work) {
    gone_from(stream->context, alone.work);
    if (stream->channel) ++stream->channel->finished;
    if (work->kind == WAIT && work->point->elapsed > stream->elapsed) stream->elapsed = work->point->elapsed;
    if (work->kind == RECORD) work->point->elapsed = stream->elapsed;
    if (work->kind == COPY && bus_rate > 0) take_time(stream, work);
}

static void call_host(const struct work *work) {
    if (channel_count) pthread_mutex_lock(&calling);
    work->function(work->argument);
    if (channel_count) pthread_mutex_unlock(&calling);
}

static CUstream start_stream(CUcontext context, unsigned flags) {  // (mutex)
    struct channel *channel = channel_count ? &channels[next_channel++ % channel_count] : NULL;
    return start((struct CUstream_st){.context = context, .flags = flags, .id = ++ids, .channel = channel});
}

// (mutex) Ends captures: all, or those of one stream. Returns `code`.
static CUresult end_captures(struct capture *one, CUresult code) {
    for (struct capture *capture = captures; capture; capture = capture->next) capture->lost |= !one || capture == one;
    return code;
}

// The error of a call that is unsafe while a stream is captured, which ends the capture; success for other calls.
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

// (mutex) The stream of a handle; NULL if the context that it needs is not current. As with a real driver, use of a
// destroyed stream ends the process.
static CUstream stream_of(CUstream handle, CUcontext current) {
    if ((uintptr_t)handle <= 2) {
        if (!current) return NULL;
        CUstream *known = handle == CU_STREAM_PER_THREAD ? &thread_defaults[current - primary] : &current->legacy;
        if (!*known) *known = start_stream(current, CU_STREAM_DEFAULT);
        return *known;
    }
    for (CUstream stream = streams; stream; stream = stream->next)
        if (stream == handle && !stream->closing) return want_context && stream->context != current ? NULL : stream;
    fprintf(stderr, "libcuda stand-in: %p is not a stream\n", (void *)handle);
    abort();
}

// Freed memory may still be in use, so the driver waits for the work submitted to all streams (seen on an H200).
// After each wait, from the start of the list: streams come and go.
static void drain(void) {
    pthread_mutex_lock(&mutex);
    size_t last = orders;
    for (CUstream stream = streams; stream;) {
        if (stream->first && stream->first->order <= last) pthread_cond_wait(&progress, &mutex), stream = streams;
        else stream = stream->next;
    }
    pthread_mutex_unlock(&mutex);
}

// `drain`; with channels=K no work is submitted meanwhile.
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
