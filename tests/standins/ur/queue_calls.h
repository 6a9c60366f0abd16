// SPDX-License-Identifier: Apache-2.0
//
// The calls of the stand-in libur_loader.c for queues and events. Lists of events have at most one entry, as pinning
// passes them, and operations return no event. Level Zero's devices can call host functions.

static ur_result_t leave(ur_result_t result) {
    pthread_mutex_unlock(&mutex);
    return result;
}

// As with the real loader, use of a released queue ends the process.
static void require_queue(ur_queue_handle_t handle) {  // (mutex)
    if (is_stream(handle)) return;
    fprintf(stderr, "libur_loader stand-in: %p is not a queue\n", (void *)handle);
    abort();
}

#define IN_QUEUE(handle)          \
    REQUIRE_HANDLE(handle);       \
    pthread_mutex_lock(&mutex);   \
    require_queue(handle)

// ---- queues ----

ur_result_t UR_APICALL urQueueCreate(ur_context_handle_t hContext, ur_device_handle_t hDevice,
                                     const ur_queue_properties_t *pProperties, ur_queue_handle_t *phQueue) {
    ENTER_WORKING("%p %p %d", (void *)hContext, (void *)hDevice, pProperties ? (int)pProperties->flags : 0);
    REQUIRE_HANDLE(hContext && hDevice);
    REQUIRE_POINTER(phQueue);
    REQUIRE(hContext->adapter == hDevice->adapter, UR_RESULT_ERROR_INVALID_DEVICE);
    REQUIRE(!pProperties || pProperties->stype == UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, UR_RESULT_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    *phQueue = start_stream(device_number(hDevice), pProperties ? pProperties->flags : 0);
    (*phQueue)->owner = hContext;
    ++live.streams;
    return leave(UR_RESULT_SUCCESS);
}

ur_result_t UR_APICALL urQueueRelease(ur_queue_handle_t hQueue) {
    ENTER_WORKING("%p", (void *)hQueue);
    IN_QUEUE(hQueue);
    end_stream(hQueue);
    --live.streams;
    return leave(UR_RESULT_SUCCESS);
}

ur_result_t UR_APICALL urQueueFinish(ur_queue_handle_t hQueue) {
    ENTER_WORKING("%p", (void *)hQueue);
    IN_QUEUE(hQueue);
    wait_until(hQueue, hQueue->submitted);
    return leave(lost);
}

ur_result_t UR_APICALL urQueueGetInfo(ur_queue_handle_t hQueue, ur_queue_info_t propName, size_t propSize,
                                      void *pPropValue, size_t *pPropSizeRet) {
    ENTER_WORKING("%p %d", (void *)hQueue, propName);
    IN_QUEUE(hQueue);
    ur_bool_t empty = hQueue->finished == hQueue->submitted;
    ur_device_handle_t device = hQueue->device == MAX_DEVICES ? &opencl_device : &devices[hQueue->device];
    ur_context_handle_t context = hQueue->owner;
    ur_queue_flags_t flags = hQueue->flags;
    pthread_mutex_unlock(&mutex);
    switch (propName) {
    case UR_QUEUE_INFO_CONTEXT: return tell(&context, sizeof context, propSize, pPropValue, pPropSizeRet);
    case UR_QUEUE_INFO_DEVICE: return tell(&device, sizeof device, propSize, pPropValue, pPropSizeRet);
    case UR_QUEUE_INFO_FLAGS: return tell(&flags, sizeof flags, propSize, pPropValue, pPropSizeRet);
    case UR_QUEUE_INFO_EMPTY: return tell(&empty, sizeof empty, propSize, pPropValue, pPropSizeRet);
    default: return UR_RESULT_ERROR_INVALID_ENUMERATION;
    }
}

// ---- events ----

ur_result_t UR_APICALL urEnqueueEventsWait(ur_queue_handle_t hQueue, uint32_t numEventsInWaitList,
                                           const ur_event_handle_t *phEventWaitList, ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %u", (void *)hQueue, numEventsInWaitList);
    REQUIRE(!numEventsInWaitList && !phEventWaitList && phEvent, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    IN_QUEUE(hQueue);
    ur_event_handle_t event = *phEvent = malloc(sizeof *event);
    *event = (struct ur_event_handle_t_){hQueue->device, hQueue->flags, NULL};
    submit_record(hQueue, event);
    ++live.events;
    return leave(UR_RESULT_SUCCESS);
}

ur_result_t UR_APICALL urEnqueueEventsWaitWithBarrier(ur_queue_handle_t hQueue, uint32_t numEventsInWaitList,
                                                      const ur_event_handle_t *phEventWaitList,
                                                      ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %u", (void *)hQueue, numEventsInWaitList);
    REQUIRE(numEventsInWaitList == 1 && !phEvent, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    REQUIRE(phEventWaitList && *phEventWaitList, UR_RESULT_ERROR_INVALID_EVENT_WAIT_LIST);
    IN_QUEUE(hQueue);
    submit_wait(hQueue, *phEventWaitList);
    return leave(UR_RESULT_SUCCESS);
}

// This works if the device is lost, because the device is not called.
ur_result_t UR_APICALL urEventRelease(ur_event_handle_t hEvent) {
    ENTER("%p", (void *)hEvent);
    REQUIRE_HANDLE(hEvent);
    pthread_mutex_lock(&mutex);
    forget(hEvent->point);
    free(hEvent);
    --live.events;
    return leave(UR_RESULT_SUCCESS);
}

ur_result_t UR_APICALL urEventWait(uint32_t numEvents, const ur_event_handle_t *phEventWaitList) {
    ENTER("%u", numEvents);
    REQUIRE_POINTER(phEventWaitList);
    REQUIRE(numEvents == 1, UR_RESULT_ERROR_INVALID_VALUE);
    lose(__func__);
    pthread_mutex_lock(&mutex);
    wait_for_event(*phEventWaitList);
    return leave(lost);
}

// If the device is lost, this still succeeds, and only the status shows it.
ur_result_t UR_APICALL urEventGetInfo(ur_event_handle_t hEvent, ur_event_info_t propName, size_t propSize,
                                      void *pPropValue, size_t *pPropSizeRet) {
    ENTER("%p %d", (void *)hEvent, propName);
    REQUIRE_HANDLE(hEvent);
    REQUIRE(propName == UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, UR_RESULT_ERROR_INVALID_ENUMERATION);
    pthread_mutex_lock(&mutex);
    static unsigned asked;  // of what is pending, each status in turn
    ur_event_status_t const pending[] = {UR_EVENT_STATUS_RUNNING, UR_EVENT_STATUS_SUBMITTED, UR_EVENT_STATUS_QUEUED};
    ur_event_status_t status = hEvent->point->reached ? UR_EVENT_STATUS_COMPLETE : pending[asked++ % 3];
    if (lost) status = UR_EVENT_STATUS_ERROR;
    pthread_mutex_unlock(&mutex);
    return tell(&status, sizeof status, propSize, pPropValue, pPropSizeRet);
}

ur_result_t UR_APICALL urEventGetProfilingInfo(ur_event_handle_t hEvent, ur_profiling_info_t propName, size_t propSize,
                                               void *pPropValue, size_t *pPropSizeRet) {
    ENTER_WORKING("%p %d", (void *)hEvent, propName);
    REQUIRE_HANDLE(hEvent);
    REQUIRE(propName == UR_PROFILING_INFO_COMMAND_END, UR_RESULT_ERROR_INVALID_ENUMERATION);
    REQUIRE(hEvent->flags & UR_QUEUE_FLAG_PROFILING_ENABLE, UR_RESULT_ERROR_PROFILING_INFO_NOT_AVAILABLE);
    pthread_mutex_lock(&mutex);
    bool reached = hEvent->point->reached;
    uint64_t time = hEvent->point->time.tv_sec * UINT64_C(1000000000) + hEvent->point->time.tv_nsec;
    pthread_mutex_unlock(&mutex);
    REQUIRE(reached, UR_RESULT_ERROR_PROFILING_INFO_NOT_AVAILABLE);
    return tell(&time, sizeof time, propSize, pPropValue, pPropSizeRet);
}

// ---- work ----

static bool reached(uint32_t word, uint32_t value) { return word == value; }  // no queue waits for values here

// The host address of the bytes of one end of a copy, or 0 if they end beyond their allocation.
static uintptr_t reachable(uintptr_t address, size_t size) {
    struct range *r = holding(address);
    if (!r || r->kind == REGISTRATION) return address < REGISTERED ? address : 0;
    uintptr_t host = address - r->shift;
    return size <= r->size - (host - r->host) ? host : 0;
}

static ur_result_t move_work(ur_queue_handle_t hQueue, bool blocking, struct work work) {
    IN_QUEUE(hQueue);
    bool reads = work.kind == COPY;
    work.to = reachable(work.to, (work.height - 1) * work.to_pitch + work.width);
    work.from = reads ? reachable(work.from, (work.height - 1) * work.from_pitch + work.width) : 0;
    if (!work.to || (reads && !work.from)) return leave(UR_RESULT_ERROR_INVALID_VALUE);
    size_t place = submit(hQueue, work);
    if (blocking) wait_until(hQueue, place);
    return leave(blocking ? lost : 0);
}

#define REQUIRE_NO_EVENTS \
    REQUIRE(!numEventsInWaitList && !phEventWaitList && !phEvent, UR_RESULT_ERROR_UNSUPPORTED_FEATURE)

ur_result_t UR_APICALL urEnqueueUSMMemcpy(ur_queue_handle_t hQueue, bool blocking, void *pDst, const void *pSrc,
                                          size_t size, uint32_t numEventsInWaitList,
                                          const ur_event_handle_t *phEventWaitList, ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %d %p %p %zu %u", (void *)hQueue, blocking, pDst, pSrc, size, numEventsInWaitList);
    REQUIRE_POINTER(pDst && pSrc);
    REQUIRE(size, UR_RESULT_ERROR_INVALID_SIZE);
    REQUIRE_NO_EVENTS;
    struct work work = {.kind = COPY, .to = (uintptr_t)pDst, .from = (uintptr_t)pSrc, .width = size, .height = 1};
    return move_work(hQueue, blocking, work);
}

ur_result_t UR_APICALL urEnqueueUSMMemcpy2D(ur_queue_handle_t hQueue, bool blocking, void *pDst, size_t dstPitch,
                                            const void *pSrc, size_t srcPitch, size_t width, size_t height,
                                            uint32_t numEventsInWaitList, const ur_event_handle_t *phEventWaitList,
                                            ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %d %p %zu %p %zu %zu %zu", (void *)hQueue, blocking, pDst, dstPitch, pSrc, srcPitch, width, height);
    REQUIRE_POINTER(pDst && pSrc);
    REQUIRE(width && height && width <= dstPitch && width <= srcPitch, UR_RESULT_ERROR_INVALID_SIZE);
    REQUIRE_NO_EVENTS;
    struct work work = {.kind = COPY, .to = (uintptr_t)pDst, .from = (uintptr_t)pSrc, .to_pitch = dstPitch,
                        .from_pitch = srcPitch, .width = width, .height = height};
    return move_work(hQueue, blocking, work);
}

ur_result_t UR_APICALL urEnqueueUSMFill(ur_queue_handle_t hQueue, void *pMem, size_t patternSize, const void *pPattern,
                                        size_t size, uint32_t numEventsInWaitList,
                                        const ur_event_handle_t *phEventWaitList, ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %p %zu %zu", (void *)hQueue, pMem, patternSize, size);
    REQUIRE_POINTER(pMem && pPattern);
    REQUIRE(size && patternSize && patternSize <= 4 && size % patternSize == 0, UR_RESULT_ERROR_INVALID_SIZE);
    REQUIRE_NO_EVENTS;
    struct work work = {.kind = FILL, .to = (uintptr_t)pMem, .unit = patternSize, .width = size, .height = 1};
    memcpy(&work.value, pPattern, patternSize);
    return move_work(hQueue, false, work);
}

#ifndef OLD
ur_result_t UR_APICALL urEnqueueHostTaskExp(ur_queue_handle_t hQueue, ur_exp_host_task_function_t pfnHostTask,
                                            void *data, const ur_exp_host_task_properties_t *pProperties,
                                            uint32_t numEventsInWaitList, const ur_event_handle_t *phEventWaitList,
                                            ur_event_handle_t *phEvent) {
    ENTER_WORKING("%p %p", (void *)hQueue, (void *)pProperties);
    REQUIRE_POINTER(pfnHostTask);
    REQUIRE_NO_EVENTS;
    IN_QUEUE(hQueue);
    if (no_host_task || hQueue->device == MAX_DEVICES) return leave(UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    submit(hQueue, (struct work){.kind = CALL, .function = pfnHostTask, .argument = data});
    return leave(UR_RESULT_SUCCESS);
}
#endif
