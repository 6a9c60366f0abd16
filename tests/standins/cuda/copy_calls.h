// SPDX-License-Identifier: Apache-2.0
//
// The copies of the stand-in libcuda.c that programs use, but not pinning: calls without a stream, which wait, and
// calls that are named by their direction. Most have a form in which the null stream is the calling thread's default
// stream; the log has that form's name.

// Copy in order in a default stream, and wait for the copy; but from pageable memory to a device, the last bytes are read
// when all before them have been written, and are still in flight when this returns.
static CUresult copy_in_turn(CUstream stream, struct work work) {
    IN_STREAM(stream, in);
    size_t to_end = (work.height - 1) * work.to_pitch + work.width;
    size_t from_end = (work.height - 1) * work.from_pitch + work.width;
    bool flies = !in->capture && work.height == 1 && pageable(work.from) && !of_host(work.to) &&
                 reachable(work.to, to_end) && reachable(work.from, from_end);
    leave(CUDA_SUCCESS);
    struct work last = work;
    last.width = flies ? (work.width < LEFT_IN_FLIGHT ? work.width : LEFT_IN_FLIGHT) : 0;
    work.width -= last.width;
    last.to += work.width, last.from += work.width;
    CUresult code = work.width ? move_work(stream, work) : CUDA_SUCCESS;
    if (code) return code;
    if (work.width) {
        pthread_mutex_lock(&mutex);
        if (!in->capture) wait_until(in, in->submitted);
        leave(CUDA_SUCCESS);
    }
    if (lost || !last.width) return lost;
    return move_work(stream, last);
}

static struct work bytes(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    return (struct work){.kind = COPY, .to = dst, .from = src, .width = size, .height = 1};
}

// While a stream is captured, a call that waits is forbidden, as cuStreamSynchronize is.
#define WAITING_COPY(name, Dst, Src, stream)                                                         \
    CUresult CUDAAPI name(Dst dst, Src src, size_t ByteCount);                                       \
    CUresult CUDAAPI name(Dst dst, Src src, size_t ByteCount) {                                      \
        ENTER(CONTEXT, "%#llx %#llx %zu", (CUdeviceptr)dst, (CUdeviceptr)src, ByteCount);            \
        CUresult forbidden = beside_captures("cuStreamSynchronize");                                 \
        REQUIRE(!forbidden, forbidden);                                                              \
        REQUIRE(ByteCount, CUDA_SUCCESS);                                                            \
        return copy_in_turn(stream, bytes((CUdeviceptr)dst, (CUdeviceptr)src, ByteCount));           \
    }

#define COPY_IN_STREAM(name, Dst, Src, null)                                                                          \
    CUresult CUDAAPI name(Dst dst, Src src, size_t ByteCount, CUstream hStream);                                      \
    CUresult CUDAAPI name(Dst dst, Src src, size_t ByteCount, CUstream hStream) {                                     \
        ENTER(WORKING, "%#llx %#llx %zu %p", (CUdeviceptr)dst, (CUdeviceptr)src, ByteCount, (void *)hStream);         \
        REQUIRE(ByteCount, CUDA_SUCCESS);                                                                             \
        return move_work(hStream ? hStream : null, bytes((CUdeviceptr)dst, (CUdeviceptr)src, ByteCount));             \
    }

WAITING_COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *, CU_STREAM_LEGACY)
WAITING_COPY(cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, CU_STREAM_PER_THREAD)
WAITING_COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr, CU_STREAM_LEGACY)
WAITING_COPY(cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr, CU_STREAM_PER_THREAD)
WAITING_COPY(cuMemcpy, CUdeviceptr, CUdeviceptr, CU_STREAM_LEGACY)
WAITING_COPY(cuMemcpy_ptds, CUdeviceptr, CUdeviceptr, CU_STREAM_PER_THREAD)
COPY_IN_STREAM(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, CU_STREAM_LEGACY)
COPY_IN_STREAM(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, CU_STREAM_PER_THREAD)
COPY_IN_STREAM(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, CU_STREAM_LEGACY)
COPY_IN_STREAM(cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, CU_STREAM_PER_THREAD)
COPY_IN_STREAM(cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, CU_STREAM_PER_THREAD)

#define WAITING_ROWS(name, stream)                                        \
    CUresult CUDAAPI name(const CUDA_MEMCPY2D *pCopy);                    \
    CUresult CUDAAPI name(const CUDA_MEMCPY2D *pCopy) {                   \
        ENTER(CONTEXT, "%zu %zu", pCopy->WidthInBytes, pCopy->Height);    \
        REQUIRE(rows_fit(pCopy), CUDA_ERROR_INVALID_VALUE);               \
        REQUIRE(pCopy->WidthInBytes && pCopy->Height, CUDA_SUCCESS);      \
        return copy_in_turn(stream, rows_of(pCopy));                      \
    }

WAITING_ROWS(cuMemcpy2D_v2, CU_STREAM_LEGACY)
WAITING_ROWS(cuMemcpy2D_v2_ptds, CU_STREAM_PER_THREAD)
WAITING_ROWS(cuMemcpy2DUnaligned_v2, CU_STREAM_LEGACY)
WAITING_ROWS(cuMemcpy2DUnaligned_v2_ptds, CU_STREAM_PER_THREAD)

CUresult CUDAAPI cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *pCopy, CUstream hStream);
CUresult CUDAAPI cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    ENTER(WORKING, "%zu %zu %p", pCopy->WidthInBytes, pCopy->Height, (void *)hStream);
    REQUIRE(rows_fit(pCopy), CUDA_ERROR_INVALID_VALUE);
    return move_work(hStream ? hStream : CU_STREAM_PER_THREAD, rows_of(pCopy));
}
