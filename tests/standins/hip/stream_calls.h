// SPDX-License-Identifier: Apache-2.0
//
// The calls of the stand-in libamdhip64.c for streams and events. The code after IN_STREAM runs with `mutex` held; for
// a handle that is no stream it returns the runtime's error (hip::isValid).

#define IN_STREAM(handle, stream)                    \
    pthread_mutex_lock(&mutex);                      \
    hipStream_t stream = stream_of(handle);          \
    if (!stream) return leave(hipErrorContextIsDestroyed);

static hipError_t leave(hipError_t code) {
    pthread_mutex_unlock(&mutex);
    DEMAND(!code, code);
    return hipSuccess;
}

// Unlike the runtime's, default streams here do not wait for blocking streams.
static hipStream_t stream_of(hipStream_t handle) {  // (mutex)
    static hipStream_t defaults[MAX_DEVICES];
    static _Thread_local hipStream_t thread_defaults[MAX_DEVICES];
    if (handle != NULL && handle != hipStreamPerThread) return is_stream(handle) ? handle : NULL;
    hipStream_t *known = handle == hipStreamPerThread ? &thread_defaults[current_device] : &defaults[current_device];
    if (!*known) *known = start_stream(current_device, 0);
    return *known;
}

// ---- streams ----

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags) {
    ENTER_WORKING("%u", flags);
    pthread_mutex_lock(&mutex);
    *stream = start_stream(current_device, flags);
    ++live.streams;
    return leave(hipSuccess);
}

hipError_t hipStreamDestroy(hipStream_t stream) {
    ENTER_WORKING("%p", (void *)stream);
    DEMAND(stream && stream != hipStreamPerThread, hipErrorInvalidResourceHandle);
    IN_STREAM(stream, found);
    wait_until(found, found->submitted);
    end_stream(found);
    --live.streams;
    return leave(hipSuccess);
}

hipError_t hipStreamQuery(hipStream_t stream) {
    ENTER_WORKING("%p", (void *)stream);
    IN_STREAM(stream, found);
    return leave(lost ? lost : found->finished == found->submitted ? hipSuccess : hipErrorNotReady);
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
    ENTER_WORKING("%p", (void *)stream);
    IN_STREAM(stream, found);
    wait_until(found, found->submitted);
    return leave(lost);
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
    ENTER_WORKING("%p %p %u", (void *)stream, (void *)event, flags);
    IN_STREAM(stream, found);
    submit_wait(found, event);
    return leave(hipSuccess);
}

// The runtime compares without wrapping: (int)word < (unsigned)value is an unsigned comparison.
static bool reached(uint32_t word, uint32_t value) { return word >= value; }

static hipError_t word_work(hipStream_t handle, struct work work) {
    IN_STREAM(handle, stream);
    struct range *r = holding(work.to);
    if (!r || work.to % 4) return leave(hipErrorInvalidValue);
    if (work.kind == WAIT_VALUE && signal_memory_only) return leave(hipErrorInvalidValue);
    if (work.to - r->host >= r->size) work.to -= r->shift;
    submit(stream, work);
    return leave(hipSuccess);
}

hipError_t hipStreamWaitValue32(hipStream_t stream, void *ptr, uint32_t value, unsigned int flags, uint32_t mask) {
    ENTER_WORKING("%p %p %u %u %#x", (void *)stream, ptr, value, flags, mask);
    DEMAND(flags == hipStreamWaitValueGte && mask == ~0u, hipErrorNotSupported);
    return word_work(stream, (struct work){.kind = WAIT_VALUE, .to = (uintptr_t)ptr, .value = value});
}

// ---- events ----

hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags) {
    ENTER_WORKING("%u", flags);
    pthread_mutex_lock(&mutex);
    *event = malloc(sizeof **event);
    **event = (struct ihipEvent_t){current_device, flags, NULL};
    ++live.events;
    return leave(hipSuccess);
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    ENTER_WORKING("%p %p", (void *)event, (void *)stream);
    IN_STREAM(stream, found);
    if (event->device != found->device) return leave(hipErrorInvalidResourceHandle);
    submit_record(found, event);
    return leave(hipSuccess);
}

hipError_t hipEventQuery(hipEvent_t event) {
    ENTER_WORKING("%p", (void *)event);
    pthread_mutex_lock(&mutex);
    bool pending = event->point && !event->point->reached;
    return leave(lost ? lost : pending ? hipErrorNotReady : hipSuccess);
}

hipError_t hipEventSynchronize(hipEvent_t event) {
    ENTER_WORKING("%p", (void *)event);
    pthread_mutex_lock(&mutex);
    wait_for_event(event);
    return leave(lost);
}

// ---- copies ----

// As in the runtime, copies from and to pageable memory are complete when the call returns.
static hipError_t move_work(hipStream_t handle, struct work work) {
    IN_STREAM(handle, stream);
    bool reads = work.kind == COPY;
    bool waits = !holding(work.to) || (reads && !holding(work.from));
    uintptr_t to = reachable(work.to, (work.height - 1) * work.to_pitch + work.width);
    uintptr_t from = reads ? reachable(work.from, (work.height - 1) * work.from_pitch + work.width) : 0;
    if (!to || (reads && !from)) return leave(hipErrorInvalidValue);
    work.to = to, work.from = from;
    size_t place = submit(stream, work);
    if (waits) wait_until(stream, place);
    return leave(waits ? lost : 0);
}

hipError_t hipMemcpyAsync(void *dst, const void *src, size_t sizeBytes, hipMemcpyKind kind, hipStream_t stream) {
    ENTER_WORKING("%p %p %zu %d %p", dst, src, sizeBytes, kind, (void *)stream);
    DEMAND(kind == hipMemcpyDefault, hipErrorInvalidMemcpyDirection);
    if (!sizeBytes) return hipSuccess;
    struct work work = {.kind = COPY, .to = (uintptr_t)dst, .from = (uintptr_t)src, .width = sizeBytes, .height = 1};
    return move_work(stream, work);
}

#if HIP_VERSION < 70100000
typedef void hipMemcpyAttributes;
hipError_t hipMemcpyBatchAsync(void **dsts, void **srcs, size_t *sizes, size_t count, hipMemcpyAttributes *attrs,
                               size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, hipStream_t stream);
#endif

// ROCm 7.1's, without attributes, which some of its releases refuse. In order here, on which callers must not rely.
hipError_t hipMemcpyBatchAsync(void **dsts, void **srcs, size_t *sizes, size_t count, hipMemcpyAttributes *attrs,
                               size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, hipStream_t stream) {
    ENTER_WORKING("%zu %p", count, (void *)stream);
    DEMAND(count && count <= 8192 && !attrs && !attrsIdxs && !numAttrs && failIdx, hipErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        hipError_t code = move_work(stream, (struct work){.kind = COPY, .to = (uintptr_t)dsts[i],
                                                          .from = (uintptr_t)srcs[i], .width = sizes[i], .height = 1});
        if (code) return code;
    }
    return hipSuccess;
}

hipError_t hipMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t stream) {
    ENTER_WORKING("%p %zu %p %zu %zu %zu %d %p", dst, dpitch, src, spitch, width, height, kind, (void *)stream);
    DEMAND(kind == hipMemcpyDefault, hipErrorInvalidMemcpyDirection);
    DEMAND(width <= spitch && width <= dpitch, hipErrorInvalidPitchValue);
    if (!width || !height) return hipSuccess;
    struct work work = {.kind = COPY, .to = (uintptr_t)dst, .from = (uintptr_t)src, .to_pitch = dpitch,
                        .from_pitch = spitch, .width = width, .height = height};
    return move_work(stream, work);
}

// ---- what CUDA has alike ----

#define CALL(name) hip##name
#define OWNER device
typedef hipError_t result;
typedef hipStream_t stream_handle;
typedef hipEvent_t event_handle;
typedef hipHostFn_t host_function;
typedef void *address;
typedef int word;
static const result SUCCESS = hipSuccess, INVALID_VALUE = hipErrorInvalidValue, INVALID_HANDLE = hipErrorInvalidHandle,
                    NOT_READY = hipErrorNotReady;
#include "../alike_calls.h"

// ---- captures: of one stream at a time; nothing is recorded ----

static hipStream_t captured;

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
    ENTER_WORKING("%p %d", (void *)stream, mode);
    IN_STREAM(stream, found);
    captured = found;
    return leave(hipSuccess);
}

hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *pGraph) {
    ENTER_WORKING("%p", (void *)stream);
    pthread_mutex_lock(&mutex);
    captured = NULL, *pGraph = NULL;
    return leave(hipSuccess);
}

// Not logged.
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *pCaptureStatus) {
    IN_STREAM(stream, found);
    if (!stream && captured && !(captured->flags & hipStreamNonBlocking)) return leave(hipErrorStreamCaptureImplicit);
    *pCaptureStatus = found == captured ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    return leave(hipSuccess);
}

hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode) {
    (void)mode;
    return hipSuccess;
}
