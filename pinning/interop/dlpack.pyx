# SPDX-License-Identifier: Apache-2.0
"""DLPack: making and opening capsules, and the exchange API of types.

In C, because a consumer may give a tensor back on a thread that Python does not know, or after Python has ended.
"""

from cpython.pycapsule cimport (
    PyCapsule_CheckExact,
    PyCapsule_GetPointer,
    PyCapsule_IsValid,
    PyCapsule_New,
    PyCapsule_SetDestructor,
    PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc

from typing import NamedTuple


cdef extern from "Python.h":
    int Py_IsInitialized() nogil


# As in dlpack.h, version 1.0.

cdef struct Plain:  # DLManagedTensor
    DLTensor tensor
    void* context
    void (*deleter)(Plain*) noexcept nogil

cdef struct Versioned:  # DLManagedTensorVersioned
    uint32_t major
    uint32_t minor
    void* context
    void (*deleter)(Versioned*) noexcept nogil
    uint64_t flags
    DLTensor tensor

cdef enum:
    MAJOR = 1
    MINOR = 0
    READ_ONLY = 1
    IS_COPIED = 2

cdef const char* EXCHANGE_API = "dlpack_exchange_api"
cdef const char* PLAIN = "dltensor"
cdef const char* VERSIONED = "dltensor_versioned"


class Tensor(NamedTuple):
    """The contents of a capsule; the memory stays as long as `owner` is referenced."""

    ptr: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None in C order
    code: int  # this and the next two: DLPack's element type
    bits: int
    lanes: int
    read_only: bool | None  # None: versions before 1.0 cannot express it
    device: int  # its type in DLPack
    owner: object


# ---- our tensors ----

cdef void release(void* owner) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>owner)


cdef void delete_plain(Plain* managed) noexcept nogil:
    release(managed.context)
    free(managed)


cdef void delete_versioned(Versioned* managed) noexcept nogil:
    release(managed.context)
    free(managed)


cdef void drop_capsule(object capsule) noexcept:
    """The destructor of a capsule; does nothing for an opened one, which has another name."""
    cdef Plain* plain
    cdef Versioned* versioned
    if PyCapsule_IsValid(capsule, PLAIN):
        plain = <Plain*>PyCapsule_GetPointer(capsule, PLAIN)
        plain.deleter(plain)
    elif PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <Versioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        versioned.deleter(versioned)


def make_capsule(
    owner: object,
    ptr: int,
    device: tuple[int, int],
    code: int,
    bits: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    bint versioned,
    bint read_only,
    bint copied,
) -> object:
    """Make a capsule with a tensor that keeps `owner` alive: of DLPack 1.0 if `versioned`, else of the one before."""
    cdef int32_t ndim = len(shape)
    cdef DLTensor tensor
    tensor.data = <void*><uintptr_t>ptr
    tensor.device_type, tensor.device_id = device
    tensor.ndim = ndim
    tensor.code, tensor.bits, tensor.lanes = code, bits, 1
    tensor.byte_offset = 0
    cdef size_t size = sizeof(Versioned) if versioned else sizeof(Plain)
    cdef void* memory = malloc(size + 2 * ndim * sizeof(int64_t))
    if memory is NULL:
        raise MemoryError()
    tensor.shape = <int64_t*>(<char*>memory + size)
    tensor.strides = tensor.shape + ndim
    cdef Plain* plain = <Plain*>memory
    cdef Versioned* with_version = <Versioned*>memory
    try:
        for i in range(ndim):
            tensor.shape[i], tensor.strides[i] = shape[i], strides[i]
        if versioned:
            with_version.major, with_version.minor = MAJOR, MINOR
            with_version.context, with_version.deleter = <void*>owner, delete_versioned
            with_version.flags = (READ_ONLY if read_only else 0) | (IS_COPIED if copied else 0)
            with_version.tensor = tensor
        else:
            plain.tensor, plain.context, plain.deleter = tensor, <void*>owner, delete_plain
        capsule = PyCapsule_New(memory, VERSIONED if versioned else PLAIN, NULL)
    except BaseException:
        free(memory)
        raise
    Py_INCREF(owner)
    PyCapsule_SetDestructor(capsule, drop_capsule)
    return capsule


# ---- tensors of other libraries ----

cdef class Managed:
    """A tensor of another library; the destructor gives it back."""

    cdef Plain* plain
    cdef Versioned* versioned

    def __dealloc__(self):
        if self.plain is not NULL and self.plain.deleter is not NULL:
            self.plain.deleter(self.plain)
        if self.versioned is not NULL and self.versioned.deleter is not NULL:
            self.versioned.deleter(self.versioned)


def take_capsule(capsule: object) -> Tensor:
    """Open a capsule. BufferError if it was opened before, or is of an unknown version."""
    cdef Managed managed = Managed.__new__(Managed)
    cdef DLTensor* tensor
    cdef Versioned* versioned
    if not PyCapsule_CheckExact(capsule):
        raise TypeError(f"__dlpack__ has returned a {type(capsule).__name__}, which is not a capsule")
    if PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <Versioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        if versioned.major != MAJOR:
            raise BufferError(f"the tensor is of DLPack {versioned.major}.{versioned.minor}; known is {MAJOR}")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        managed.versioned, tensor = versioned, &versioned.tensor
        read_only = bool(versioned.flags & READ_ONLY)
    elif PyCapsule_IsValid(capsule, PLAIN):
        managed.plain = <Plain*>PyCapsule_GetPointer(capsule, PLAIN)
        PyCapsule_SetName(capsule, "used_dltensor")
        tensor, read_only = &managed.plain.tensor, None
    else:
        raise BufferError("the DLPack capsule has already been consumed")
    axes = range(tensor.ndim)
    return Tensor(
        <uintptr_t>tensor.data + tensor.byte_offset if tensor.data is not NULL else 0,
        tuple([tensor.shape[i] for i in axes]),
        None if tensor.strides is NULL else tuple([tensor.strides[i] for i in axes]),
        tensor.code,
        tensor.bits,
        tensor.lanes,
        read_only,
        tensor.device_type,
        managed,
    )


cdef const DLPackExchangeAPI* exchange_api_of(object cls):
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    if not PyCapsule_IsValid(capsule, EXCHANGE_API):
        return NULL
    cdef const DLPackExchangeAPI* api = <const DLPackExchangeAPI*>PyCapsule_GetPointer(capsule, EXCHANGE_API)
    while api is not NULL and api.major != MAJOR:
        api = api.previous
    if api is not NULL and api.dltensor_from_py_object_no_sync is NULL:
        return NULL
    return api
