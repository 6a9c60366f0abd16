// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs of the stand-in libcuda.c, with the rules of a real driver (each seen on an H200, driver 580.159):
//
// - While a stream is captured, calls that query, wait, allocate, free or register are refused with 900, and end the
//   capture: calls of any thread if the capture's mode is global, of the thread that began it if it is thread_local. A
//   thread whose own mode is relaxed may make them (cuThreadExchangeStreamCaptureMode).
// - Whatever the mode, a capture is ended by a wait for the whole device, by a query of the captured stream, by one of
//   an event that was recorded in it (907), and by a wait for an event from outside of it (905).
// - A batch of copies is refused, and the capture continues. Pageable memory is read once, when its copy is recorded.
//
// Queries of captures and cuThreadExchangeStreamCaptureMode are not logged.

struct CUuserObject_st {
    void *object;
    CUhostFn destroy;
    int references;
};

struct CUgraph_st {
    struct work *first, **last;
    struct CUuserObject_st *objects[64];
    int object_count;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

static void record(CUgraph graph, const struct work *work) {  // (mutex)
    struct work *node = malloc(sizeof *node);
    *node = *work;
    node->next = NULL;
    *graph->last = node;
    graph->last = &node->next;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    IN_STREAM(hStream, stream);
    *captureStatus = !stream->capture        ? CU_STREAM_CAPTURE_STATUS_NONE
                     : stream->capture->lost ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                        CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                        const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out) {
    REQUIRE(!dependencies_out && !edgeData_out && !numDependencies_out, CUDA_ERROR_NOT_SUPPORTED);
    CUresult code = cuStreamIsCapturing(hStream, captureStatus_out);
    if (code || *captureStatus_out == CU_STREAM_CAPTURE_STATUS_NONE) return code;
    IN_STREAM(hStream, stream);
    *id_out = stream->capture->id;
    *graph_out = stream->capture->graph;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode) {
    ENTER(WORKING, "%p %d", (void *)hStream, (int)mode);
    REQUIRE((uintptr_t)hStream > 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    IN_STREAM(hStream, stream);
    if (stream->capture) return leave(CUDA_ERROR_ILLEGAL_STATE);
    static cuuint64_t ids;
    CUgraph graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    stream->capture = malloc(sizeof *stream->capture);
    *stream->capture = (struct capture){++ids, mode, pthread_self(), false, graph, captures};
    captures = stream->capture;
    return leave(CUDA_SUCCESS);
}

static void let_objects_go(CUgraph graph);

static void end_graph(CUgraph graph) {
    let_objects_go(graph);
    for (struct work *work = graph->first, *next; work; work = next) {
        next = work->next;
        if (work->function == run_move_parts) free(work->argument);
        free(work->staged);
        free(work);
    }
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    struct capture *capture = stream->capture;
    if (!capture) return leave(CUDA_ERROR_ILLEGAL_STATE);
    stream->capture = NULL;
    struct capture **link = &captures;
    while (*link != capture) link = &(*link)->next;
    *link = capture->next;
    *phGraph = capture->lost ? NULL : capture->graph;
    if (capture->lost) end_graph(capture->graph), free(capture->graph);
    CUresult code = capture->lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    free(capture);
    return leave(code);
}

// ---- user objects: their destructors run on a thread of the driver ----

static void *destroy(void *argument) {
    struct CUuserObject_st *object = argument;
    object->destroy(object->object);
    free(object);
    return NULL;
}

static void let_go(struct CUuserObject_st *object) {  // (mutex)
    if (--object->references) return;
    pthread_t thread;
    if (pthread_create(&thread, NULL, destroy, object)) abort();
    pthread_detach(thread);
}

static void let_objects_go(CUgraph graph) {  // (mutex)
    for (int i = 0; i < graph->object_count; ++i) let_go(graph->objects[i]);
    graph->object_count = 0;
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                    unsigned int initialRefcount, unsigned int flags) {
    ENTER(DRIVER, "%u %u", initialRefcount, flags);
    REQUIRE(initialRefcount == 1 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_INVALID_VALUE);
    *object_out = malloc(sizeof **object_out);
    **object_out = (struct CUuserObject_st){ptr, destroy, 1};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count) {
    ENTER(DRIVER, "%u", count);
    pthread_mutex_lock(&mutex);
    let_go(object);
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
    ENTER(DRIVER, "%u %u", count, flags);
    REQUIRE(count == 1 && flags == CU_GRAPH_USER_OBJECT_MOVE && graph->object_count < 64, CUDA_ERROR_INVALID_VALUE);
    graph->objects[graph->object_count++] = object;
    return CUDA_SUCCESS;
}

// ---- graphs ----

static struct work copy_of(const struct work *work) {
    struct work copy = *work;
    copy.staged = NULL;  // the graph keeps it
    if (work->function == run_move_parts) copy.argument = memcpy(malloc(sizeof(struct launch)), work->argument, sizeof(struct launch));
    return copy;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
    ENTER(CONTEXT, "%llu", flags);
    CUgraphExec exec = calloc(1, sizeof *exec);
    exec->graph.last = &exec->graph.first;
    for (struct work *work = hGraph->first; work; work = work->next) {
        struct work *node = malloc(sizeof *node);
        *node = copy_of(work);
        if (work->staged) {
            node->staged = malloc(work->from_pitch * (work->height - 1) + work->width);
            memcpy(node->staged, work->staged, work->from_pitch * (work->height - 1) + work->width);
            node->from = (uintptr_t)node->staged;
        }
        node->next = NULL;
        *exec->graph.last = node;
        exec->graph.last = &node->next;
    }
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < hGraph->object_count; ++i) {
        ++hGraph->objects[i]->references;
        exec->graph.objects[exec->graph.object_count++] = hGraph->objects[i];
    }
    *phGraphExec = exec;
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    ENTER(WORKING, "%p", (void *)hStream);
    IN_STREAM(hStream, stream);
    for (struct work *work = hGraphExec->graph.first; work; work = work->next) submit(stream, copy_of(work));
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
    ENTER(DRIVER, "");
    pthread_mutex_lock(&mutex);
    end_graph(hGraph);
    free(hGraph);
    return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
    ENTER(DRIVER, "");
    pthread_mutex_lock(&mutex);
    end_graph(&hGraphExec->graph);
    free(hGraphExec);
    return leave(CUDA_SUCCESS);
}
