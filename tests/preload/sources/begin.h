// SPDX-License-Identifier: Apache-2.0
// Memory of the first device, pinned memory to read it back into, and a stream that waits for no other.
#include <cuda.h>

#include "must.h"

static void begin(size_t size, CUdeviceptr *device, unsigned char **seen, CUstream *stream) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(device, size));
    MUST(cuMemHostAlloc((void **)seen, size, 0));
    MUST(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
}
