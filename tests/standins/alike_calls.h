// SPDX-License-Identifier: Apache-2.0
//
// Calls that CUDA and HIP have alike. Include it after streams.h with the vendor's table:
//
//     #define CALL(name) cu##name  // the name of a function
//     typedef CUresult result; typedef CUstream stream_handle; typedef CUevent event_handle; typedef CUhostFn host_function;
//     typedef CUdeviceptr address; typedef unsigned int word;  // of a device; the last argument of MemsetD32Async
//     static const result SUCCESS = CUDA_SUCCESS, INVALID_VALUE = ..., INVALID_HANDLE = ..., NOT_READY = ...;
//     #define OWNER context  // the member of a stream and of an event
//
// and with what its other calls use: ENTER_WORKING(format, arguments...), DEMAND(condition, code), IN_STREAM(handle,
// stream), `leave`, `word_work` and `move_work`.

result CALL(StreamWriteValue32)(stream_handle stream, address to, uint32_t value, unsigned int flags) {
    ENTER_WORKING("%p %#lx %u %u", (void *)stream, (uintptr_t)to, value, flags);
    return word_work(stream, (struct work){.kind = WRITE_VALUE, .to = (uintptr_t)to, .value = value});
}

result CALL(LaunchHostFunc)(stream_handle handle, host_function function, void *argument) {
    ENTER_WORKING("%p", (void *)handle);
    DEMAND(function, INVALID_VALUE);
    IN_STREAM(handle, stream);
    submit(stream, (struct work){.kind = CALL, .function = function, .argument = argument});
    return leave(SUCCESS);
}

result CALL(EventDestroy)(event_handle event) {
    ENTER_WORKING("%p", (void *)event);
    pthread_mutex_lock(&mutex);
    forget(event->point);
    free(event);
    --live.events;
    return leave(SUCCESS);
}

result CALL(EventElapsedTime)(float *milliseconds, event_handle start, event_handle end) {
    enum { DISABLE_TIMING = 2 };  // with both vendors
    ENTER_WORKING("%p %p", (void *)start, (void *)end);
    pthread_mutex_lock(&mutex);
    struct point *from = start->point, *to = end->point;
    bool comparable = from && to && start->OWNER == end->OWNER && !((start->flags | end->flags) & DISABLE_TIMING);
    if (!comparable) return leave(INVALID_HANDLE);
    if (!from->reached || !to->reached) return leave(NOT_READY);
    *milliseconds = (to->time.tv_sec - from->time.tv_sec) * 1e3 + (to->time.tv_nsec - from->time.tv_nsec) / 1e6;
    return leave(SUCCESS);
}

static result fill_work(stream_handle stream, uintptr_t to, unsigned value, unsigned unit, size_t count) {
    if (!count) return SUCCESS;
    DEMAND(to % unit == 0, INVALID_VALUE);
    return move_work(stream, (struct work){.kind = FILL, .to = to, .value = value, .unit = unit, .width = count * unit, .height = 1});
}

#define MEMSET(name, type, unit)                                                                \
    result CALL(name)(address to, type value, size_t count, stream_handle stream) {             \
        ENTER_WORKING("%#lx %u %zu %p", (uintptr_t)to, (unsigned)value, count, (void *)stream); \
        return fill_work(stream, (uintptr_t)to, (unsigned)value, unit, count);                  \
    }

MEMSET(MemsetD8Async, unsigned char, 1)
MEMSET(MemsetD16Async, unsigned short, 2)
MEMSET(MemsetD32Async, word, 4)
