// SPDX-License-Identifier: Apache-2.0
//
// The calls of the stand-in libcuda.c for streams and events. If a call needs the context of a stream that has none,
// IN_STREAM returns the error of a real driver; the code after it runs with `mutex` held.

#define IN_STREAM(handle, stream)                            \
    pthread_mutex_lock(&mutex);                              \
    CUstream stream = stream_of(handle, current());          \
    if (!stream) {                                           \
        pthread_mutex_unlock(&mutex);                        \
        return CUDA_ERROR_INVALID_CONTEXT;                   \
    }                                                        \
    if (gone_from(stream->context, !alone.work)) {           \
        pthread_mutex_unlock(&mutex);                        \
        return alone.code;                                   \
    }

static CUresult leave(CUresult code) {
    pthread_mutex_unlock(&mutex);
    return code;
}

// ---- streams ----

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    ENTER(CONTEXT, "%u %d", flags, priority);
    pthread_mutex_lock(&mutex);
    *phStream = start_stream(current(), flags);
    ++live.streams;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    ENTER(CONTEXT, "%u", Flags);
    pthread_mutex_lock(&mutex);
    *phStream = start_stream(current(), Flags);
    ++live.streams;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
    ENTER(WORKING, "%p", (void *)hStream);
    REQUIRE((uintptr_t)hStream > 2, CUDA_ERROR_INVALID_HANDLE);
    IN_STREAM(hStream, stream);
    end_stream(stream);
    --live.streams;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    *pctx = stream->context;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long *streamId) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    if (stream->capture) return leave(end_captures(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    *streamId = stream->id;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    if (stream->capture) return leave(end_captures(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    return leave(lost ? lost : stream->finished == stream->submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    if (stream->capture) return leave(end_captures(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    wait_until(stream, stream->submitted);
    return leave(lost);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    ENTER(WORKING, "%p %p %u", (void *)hStream, (void *)hEvent, Flags);
    IN_STREAM(hStream, stream);
    if (stream->capture) {
        return leave(hEvent->captured ? CUDA_SUCCESS : end_captures(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
    }
    submit_wait(stream, hEvent);
    return leave(CUDA_SUCCESS);
}

static CUresult word_work(CUstream handle, struct work work) {
    IN_STREAM(handle, stream);
    struct range *r = holding(work.to);
    if (!r || r->kind == SHARED_ALLOCATION || work.to % 4) return leave(CUDA_ERROR_INVALID_VALUE);
    if (work.to - r->host >= r->size) work.to -= r->shift;
    submit(stream, work);
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    ENTER(WORKING, "%p %#llx %u %u", (void *)stream, addr, value, flags);
    REQUIRE(flags == CU_STREAM_WAIT_VALUE_GEQ, CUDA_ERROR_NOT_SUPPORTED);
    return word_work(stream, (struct work){.kind = WAIT_VALUE, .to = addr, .value = value});
}

// All operations are enqueued, or none.
CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
                                    unsigned int flags) {
    ENTER(WORKING, "%p %u %u", (void *)stream, count, flags);
    REQUIRE(count <= 256 && !flags, CUDA_ERROR_INVALID_VALUE);
    struct work works[256];
    pthread_mutex_lock(&mutex);
    bool known = true;
    for (unsigned i = 0; i < count; ++i) {
        CUstreamBatchMemOpParams *each = &operations[i];
        bool waits = each->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
        struct range *r = holding(each->waitValue.address);
        known &= (waits ? each->waitValue.flags == CU_STREAM_WAIT_VALUE_GEQ
                        : each->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 && !each->writeValue.flags) &&
                 r && r->kind != SHARED_ALLOCATION && each->waitValue.address % 4 == 0;
        works[i] = (struct work){.kind = waits ? WAIT_VALUE : WRITE_VALUE, .to = each->waitValue.address,
                                 .value = each->waitValue.value};
    }
    pthread_mutex_unlock(&mutex);
    REQUIRE(known, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; ++i) {
        CUresult code = word_work(stream, works[i]);
        if (code) return code;
    }
    return CUDA_SUCCESS;
}

// ---- events ----

CUresult CUDAAPI cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    ENTER(CONTEXT, "%u", Flags);
    pthread_mutex_lock(&mutex);
    *phEvent = malloc(sizeof **phEvent);
    **phEvent = (struct CUevent_st){.context = current(), .flags = Flags};
    ++live.events;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
    ENTER(WORKING, "%p %p", (void *)hEvent, (void *)hStream);
    IN_STREAM(hStream, stream);
    if (hEvent->context != stream->context) return leave(CUDA_ERROR_INVALID_HANDLE);
    hEvent->captured = stream->capture;
    if (hEvent->captured) return leave(CUDA_SUCCESS);
    submit_record(stream, hEvent);
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
    ENTER(WORKING, "%p", (void *)hEvent);
    pthread_mutex_lock(&mutex);
    if (hEvent->captured) return leave(end_captures(NULL, CUDA_ERROR_CAPTURED_EVENT));
    bool pending = hEvent->point && !hEvent->point->reached;
    int code = lost ? lost : gone_from(hEvent->context, !alone.work);
    return leave(code ? code : pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
    ENTER(WORKING, "%p", (void *)hEvent);
    pthread_mutex_lock(&mutex);
    if (hEvent->captured) return leave(end_captures(NULL, CUDA_ERROR_CAPTURED_EVENT));
    wait_for_event(hEvent);
    return leave(lost ? lost : gone_from(hEvent->context, !alone.work));
}

// ---- copies ----

// Bytes at the beginning of a pageable source that the driver reads during the call, before the stream's turn; for the
// rest it waits. As measured on an H100 (580).
enum { READ_AT_ONCE = 2 << 20 };

static bool pageable(uintptr_t address) { return !holding(address); }
static bool of_host(uintptr_t address) { return pageable(address) || page_locked(holding(address)); }

// Bytes at the end of a pageable source that a call without a stream leaves in flight, from where the driver has read them
// already. As measured on an H100 (580).
enum { LEFT_IN_FLIGHT = 1 << 20 };

// Whether the rows of one end lie within the addresses of a process.
static bool is_extent(size_t width, size_t height, size_t pitch) {
    size_t bytes;
    return !__builtin_mul_overflow(height - 1, pitch, &bytes) && !__builtin_add_overflow(bytes, width, &bytes) && !(bytes >> 47);
}

// As with a real driver, a pageable destination has been written, and a large pageable source read, when the call
// returns; and a copy from host memory to host memory is complete.
static CUresult move_work(CUstream handle, struct work work) {
    REQUIRE(is_extent(work.width, work.height, work.to_pitch) && is_extent(work.width, work.height, work.from_pitch),
            CUDA_ERROR_INVALID_VALUE);
    IN_STREAM(handle, stream);
    size_t to_end = (work.height - 1) * work.to_pitch + work.width;
    size_t from_end = (work.height - 1) * work.from_pitch + work.width;
    bool reads = work.kind == COPY;
    bool waits = pageable(work.to) || (reads && ((pageable(work.from) && from_end > READ_AT_ONCE) ||
                                                 (of_host(work.to) && of_host(work.from))));
    uintptr_t to = reachable(work.to, to_end), from = reads ? reachable(work.from, from_end) : 0;
    if (!to || (reads && !from)) return leave(CUDA_ERROR_INVALID_VALUE);
    if (reads && (!waits || stream->capture) && pageable(work.from)) {
        work.staged = malloc(from_end);
        from = (uintptr_t)memcpy(work.staged, (void *)from, from_end);
    }
    if (reads && waits && !stream->capture && pageable(work.from) && !of_host(work.to) && work.height == 1) {
        struct work first = work;
        first.staged = malloc(READ_AT_ONCE);
        first.to = to, first.width = READ_AT_ONCE;
        first.from = (uintptr_t)memcpy(first.staged, (void *)from, READ_AT_ONCE);
        submit(stream, first);
        to += READ_AT_ONCE, from += READ_AT_ONCE, work.width -= READ_AT_ONCE;
    }
    work.to = to, work.from = from;
    size_t place = submit(stream, work);
    if (waits && !stream->capture) wait_until(stream, place);
    return leave(waits ? lost : CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    ENTER(WORKING, "%#llx %#llx %zu %p", dst, src, ByteCount, (void *)hStream);
    REQUIRE(ByteCount, CUDA_SUCCESS);
    return move_work(hStream, (struct work){.kind = COPY, .to = dst, .from = src, .width = ByteCount, .height = 1});
}

static CUdeviceptr first_byte(CUdeviceptr base, size_t y, size_t pitch, size_t x) {
    return base ? base + y * pitch + x : 0;
}

static struct work rows_of(const CUDA_MEMCPY2D *p) {
    CUdeviceptr dst = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)p->dstHost : p->dstDevice;
    CUdeviceptr src = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)p->srcHost : p->srcDevice;
    return (struct work){.kind = COPY, .to = first_byte(dst, p->dstY, p->dstPitch, p->dstXInBytes),
                         .from = first_byte(src, p->srcY, p->srcPitch, p->srcXInBytes), .to_pitch = p->dstPitch,
                         .from_pitch = p->srcPitch, .width = p->WidthInBytes, .height = p->Height};
}

enum { MAX_PITCH = 0x7fffffff };

static bool row_fits(size_t width, size_t x, size_t pitch) {
    return !pitch || (x <= pitch && width <= pitch - x && pitch <= MAX_PITCH);
}

static bool rows_fit(const CUDA_MEMCPY2D *p) {
    return row_fits(p->WidthInBytes, p->dstXInBytes, p->dstPitch) &&
           row_fits(p->WidthInBytes, p->srcXInBytes, p->srcPitch);
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D *p, CUstream hStream) {
    ENTER(WORKING, "%#llx %#llx %zu %zu %p", p->dstDevice, p->srcDevice, p->WidthInBytes, p->Height, (void *)hStream);
    REQUIRE(rows_fit(p), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(p->WidthInBytes && p->Height, CUDA_SUCCESS);
    return move_work(hStream, rows_of(p));
}

// ---- what HIP has alike ----

#define CALL(name) cu##name
#define OWNER context
#define ENTER_WORKING(...) ENTER(WORKING, __VA_ARGS__)
#define DEMAND REQUIRE
typedef CUresult result;
typedef CUstream stream_handle;
typedef CUevent event_handle;
typedef CUhostFn host_function;
typedef CUdeviceptr address;
typedef unsigned int word;
static const result SUCCESS = CUDA_SUCCESS, INVALID_VALUE = CUDA_ERROR_INVALID_VALUE,
                    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE, NOT_READY = CUDA_ERROR_NOT_READY;
#include "../alike_calls.h"

// A real driver exports both.
__asm__(".globl cuEventElapsedTime\n.set cuEventElapsedTime, cuEventElapsedTime_v2");
