# SPDX-License-Identifier: Apache-2.0
"""Which bytes a buffer has, for every kind of buffer."""

from __future__ import annotations

import array
import ctypes
import mmap
import weakref
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from pinning.errors import InvalidRangeError
from pinning.interop.memory_of import HostBuffer, host_buffer

TOP = 1 << 64


def bytes_of(buffer: HostBuffer) -> bytes:
    return ctypes.string_at(buffer.ptr, buffer.size)


def span_of(buffer: HostBuffer) -> tuple[int, int]:
    return buffer.ptr, buffer.ptr + buffer.size


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=4096)
    yield memory
    memory.close()
    memory.unlink()


class TestBufferProtocol:
    @pytest.mark.parametrize(
        ("buffer", "read_only"),
        [
            (b"hello", True),
            (bytearray(b"hello"), False),
            (memoryview(b"hello"), True),
            (memoryview(bytearray(b"hello")), False),
            (memoryview(bytearray(b"hello")).toreadonly(), True),
            (array.array("B", b"hello"), False),
            ((ctypes.c_uint8 * 5)(*b"hello"), False),
            (np.frombuffer(b"hello", "u1"), True),
            (np.array(bytearray(b"hello")), False),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_exact_bytes_and_whether_they_can_be_written(self, buffer: Any, read_only: bool) -> None:
        found = host_buffer(buffer)
        assert bytes_of(found) == b"hello"
        assert found.read_only is read_only

    @pytest.mark.parametrize(("access", "read_only"), [(mmap.ACCESS_READ, True), (mmap.ACCESS_WRITE, False)])
    def test_mapped_file(self, tmp_path: Path, access: int, read_only: bool) -> None:
        path = tmp_path / "data"
        path.write_bytes(b"hello" * 2000)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as mapping:
            found = host_buffer(mapping)
            assert bytes_of(found) == b"hello" * 2000
            assert found.read_only is read_only
            del found

    def test_scalars_of_ctypes_and_numpy_have_their_own_bytes(self) -> None:
        number = ctypes.c_uint32(7)
        assert span_of(host_buffer(number)) == (ctypes.addressof(number), ctypes.addressof(number) + 4)
        zero_dimensional = np.array(3.0)
        assert span_of(host_buffer(zero_dimensional)) == byte_bounds(zero_dimensional)

    @pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]", "f2", "c16", "S7", "U3", "O", "i4,f8", "V5"])
    def test_numpy_of_any_dtype(self, dtype: str) -> None:
        many = np.zeros((3, 4), dtype)
        assert span_of(host_buffer(many)) == byte_bounds(many)

    @given(st.data())
    def test_numpy_view_of_any_strides(self, data: st.DataObject) -> None:
        """The span of a view is NumPy's, however it was sliced, reversed, transposed or broadcast."""
        shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        view: Any = np.zeros(shape, data.draw(st.sampled_from(["u1", "i2", "f8", "V3"])))
        for _ in range(data.draw(st.integers(0, 3))):
            match data.draw(st.sampled_from(["slice", "transpose", "broadcast", "point"])):
                case "slice":
                    steps = st.builds(
                        slice,
                        st.none() | st.integers(-5, 5),
                        st.none() | st.integers(-5, 5),
                        st.sampled_from([-2, -1, 1, 2]),
                    )
                    view = view[(*(data.draw(steps) for _ in view.shape), ...)]
                case "transpose":
                    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
                case "broadcast":
                    view = np.broadcast_to(view, (data.draw(st.integers(1, 3)), *view.shape))
                case "point":
                    if view.ndim and view.shape[0]:
                        view = view[:1].reshape(view.shape[1:])
        if view.size:
            found = host_buffer(view)
            assert span_of(found) == byte_bounds(view)
            assert found.read_only is (not view.flags.writeable)
        else:
            with pytest.raises(InvalidRangeError, match="empty"):
                host_buffer(view)

    def test_columns_with_gaps(self) -> None:
        rows = np.zeros((10, 8), "f8", order="F")[:5]
        assert span_of(host_buffer(rows)) == byte_bounds(rows)
        assert not host_buffer(rows).contiguous

    def test_strided_memoryview(self) -> None:
        data = bytearray(range(10))
        whole = host_buffer(data)
        assert span_of(host_buffer(memoryview(data)[8:2:-2])) == (whole.ptr + 4, whole.ptr + 9)


class TestOwner:
    def test_refused_buffer_is_not_held(self) -> None:
        data = bytearray()
        with pytest.raises(InvalidRangeError):
            host_buffer(data)
        data.append(1)
        with pytest.raises(InvalidRangeError):
            host_buffer(data, 2)
        data.append(2)


class TestOtherProtocols:
    def test_shared_memory(self, shared: SharedMemory) -> None:
        assert shared.buf is not None
        shared.buf[:5] = b"hello"
        found = host_buffer(shared)
        assert found.size == 4096
        assert bytes_of(found)[:5] == b"hello"
        assert found.read_only is False

    def test_address_and_size(self) -> None:
        assert host_buffer((4096, 10)) == HostBuffer(4096, 10, None, None)
        assert host_buffer((np.uint64(1 << 63), np.int32(7))) == HostBuffer(1 << 63, 7, None, None)
        assert host_buffer((TOP - 1, 1)) == HostBuffer(TOP - 1, 1, None, None)

    @pytest.mark.parametrize("writable", [True, False])
    def test_array_interface_alone(self, writable: bool) -> None:
        data = np.arange(12.0).reshape(3, 4)[::-1, ::2]
        data.flags.writeable = writable
        gone = weakref.ref(data.base)
        exporter = SimpleNamespace(__array_interface__=data.__array_interface__, data=data)
        bounds = byte_bounds(data)
        found = host_buffer(exporter)
        assert span_of(found) == bounds
        assert found.read_only is (not writable)
        del exporter, data
        assert gone() is not None, "the owner keeps the exporter"
        del found
        assert gone() is None

    def test_bad_array_interface(self) -> None:
        with pytest.raises(InvalidRangeError, match="gives no access to its memory: "):
            host_buffer(SimpleNamespace(__array_interface__={"version": 3, "shape": (3,), "typestr": "?!"}))

    @pytest.mark.parametrize("index", [np.s_[:], np.s_[1:, ::2], np.s_[2], np.s_[:, 1]])
    def test_dlpack_alone(self, index: Any) -> None:
        data = np.arange(12.0).reshape(3, 4)[index]
        exporter = DLPackOnly(data)
        found = host_buffer(exporter)
        assert span_of(found) == byte_bounds(data)
        assert found.read_only in (False, None)

    def test_read_only_is_unknown_where_dlpack_does_not_tell(self) -> None:
        assert host_buffer(OldDLPack(np.arange(3))).read_only is None

    def test_dlpack_tells_what_must_not_be_written(self) -> None:
        data = np.arange(3)
        data.flags.writeable = False
        try:
            data.__dlpack__(max_version=(1, 0))
        except (BufferError, TypeError):
            pytest.skip("needs NumPy 2.1, which exports read-only memory")
        assert host_buffer(DLPackOnly(data)).read_only is True

    def test_data_ptr_and_nbytes(self) -> None:
        data = bytearray(100)
        ptr = host_buffer(data).ptr
        exporter = SimpleNamespace(data_ptr=lambda: ptr, nbytes=100)
        assert host_buffer(exporter) == HostBuffer(ptr, 100, None, exporter)
        exporter.nbytes = lambda: 99  # As torch's storages have it.
        assert host_buffer(exporter).size == 99

    def test_data_ptr_that_needs_the_size(self) -> None:
        exporter = SimpleNamespace(data_ptr=lambda: 4096)
        assert host_buffer(exporter, 10) == HostBuffer(4096, 10, None, exporter)
        with pytest.raises(InvalidRangeError, match="pass size="):
            host_buffer(exporter)

    def test_strided_tensor(self) -> None:
        data = np.arange(24.0).reshape(4, 6)[1:, ::2].T
        tensor = FakeTensor(data)
        assert span_of(host_buffer(tensor)) == byte_bounds(data)
        assert host_buffer(tensor).owner is tensor
        with pytest.raises(InvalidRangeError, match="empty"):
            host_buffer(FakeTensor(np.zeros((3, 0))))

    def test_pyarrow_buffer(self) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        buffer = pyarrow.py_buffer(b"hello")
        assert span_of(host_buffer(buffer)) == (buffer.address, buffer.address + 5)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_torch_tensor(self, dtype: str) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.zeros(4, 6, dtype=getattr(torch, dtype), requires_grad=True)
        assert host_buffer(tensor)[:2] == (tensor.data_ptr(), tensor.numel() * tensor.element_size())
        view = tensor.detach()[1:, ::2].t()
        assert host_buffer(view)[:2] == (view.data_ptr(), (2 * 6 + 4 + 1) * tensor.element_size())
        with pytest.raises(InvalidRangeError, match="device memory"):
            host_buffer(torch.zeros(4, device="meta"))
        with pytest.raises(InvalidRangeError, match="empty"):
            host_buffer(torch.zeros(0))
        with pytest.raises(InvalidRangeError, match="no access"):
            host_buffer(torch.eye(3).to_sparse())


class TestSize:
    def test_first_bytes(self) -> None:
        data = np.arange(10, dtype="u1")
        found = host_buffer(data[::-1], 3)
        assert bytes_of(found) == b"\0\1\2"
        assert host_buffer(data, 10)[:2] == host_buffer(data)[:2]
        assert host_buffer((4096, 10), int(np.uint8(4))).size == 4

    @pytest.mark.parametrize("size", [0, -1, 11, 1.0, "3"])
    def test_bad_size(self, size: Any) -> None:
        for buffer in (bytearray(10), (4096, 10), SimpleNamespace(data_ptr=lambda: 4096, nbytes=10)):
            with pytest.raises(InvalidRangeError if type(size) is int else TypeError, match=f"size is {size!r};"):
                host_buffer(buffer, size)


class TestRefused:
    @pytest.mark.parametrize(
        "pair",
        [
            (0, 10),
            (10, 0),
            (-1, 10),
            (10, -1),
            (TOP, 1),
            (TOP - 1, 2),
            (10, TOP),
        ],
    )
    def test_pair_that_is_no_range(self, pair: Any) -> None:
        with pytest.raises(InvalidRangeError):
            host_buffer(pair)

    @pytest.mark.parametrize("pair", [(1.5, 1), (1, 1.5), ("a", 1), (None, 1)])
    def test_pair_that_is_no_integers(self, pair: Any) -> None:
        with pytest.raises(TypeError, match=r"(address|size) is .*; it must be an integer"):
            host_buffer(pair)

    @pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros(0), np.zeros((3, 0)), memoryview(b"")])
    def test_empty(self, buffer: Any) -> None:
        with pytest.raises(InvalidRangeError, match="empty"):
            host_buffer(buffer)

    def test_closed(self) -> None:
        mapping, view, shared = mmap.mmap(-1, 4096), memoryview(b"hello"), SharedMemory(create=True, size=4096)
        mapping.close()
        view.release()
        shared.close()
        shared.unlink()
        for closed, said in ((mapping, "mmap"), (view, "memoryview"), (shared, "SharedMemory")):
            with pytest.raises(InvalidRangeError, match=said):
                host_buffer(closed)

    @pytest.mark.parametrize(
        "buffer",
        [
            SimpleNamespace(__cuda_array_interface__={"data": (4096, False)}),
            SimpleNamespace(data_ptr=lambda: 4096, nbytes=10, is_cuda=True),
            SimpleNamespace(data_ptr=lambda: 4096, nbytes=10, device=SimpleNamespace(type="xpu")),
            SimpleNamespace(data_ptr=lambda: 4096, nbytes=10, device="cuda:0"),
            SimpleNamespace(__dlpack_device__=lambda: (2, 0), __dlpack__=lambda: None),
        ],
        ids=["cuda_array_interface", "is_cuda", "device.type", "device", "dlpack"],
    )
    def test_device_memory(self, buffer: Any) -> None:
        with pytest.raises(InvalidRangeError, match=r"device memory .* needs no lock"):
            host_buffer(buffer)

    def test_tensor_without_storage(self) -> None:
        def data_ptr() -> int:
            raise RuntimeError("no storage")

        with pytest.raises(InvalidRangeError, match="no storage"):
            host_buffer(SimpleNamespace(data_ptr=data_ptr))

    def test_freed_tensor(self) -> None:
        with pytest.raises(InvalidRangeError, match="freed"):
            host_buffer(SimpleNamespace(data_ptr=lambda: 0, nbytes=10))

    @pytest.mark.parametrize("buffer", [None, 4096, 1.5, "text", [1, 2], (1, 2, 3), object(), {}])
    def test_no_buffer(self, buffer: Any) -> None:
        with pytest.raises(TypeError, match=rf"{type(buffer).__name__} is not a buffer; pass .*\(address, size\)"):
            host_buffer(buffer)

    @pytest.mark.parametrize("pointer", [ctypes.pointer(ctypes.c_int(1)), ctypes.c_void_p(4096), ctypes.c_char_p(b"a")])
    def test_pointer_object_is_not_what_it_points_to(self, pointer: Any) -> None:
        with pytest.raises(TypeError, match=r"\(address, size\)"):
            host_buffer(pointer)


class DLPackOnly:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._data.__dlpack__(**options)


class OldDLPack(DLPackOnly):
    """As before version 1.0 of the protocol, which added options and a flag for read-only memory."""

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("no such options")
        return self._data.__dlpack__()


class FakeTensor:
    """What a CPU tensor of torch offers, strides counted in elements."""

    is_cuda = False
    device = SimpleNamespace(type="cpu")

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data
        self.shape = data.shape

    def data_ptr(self) -> int:
        return self._data.ctypes.data

    def element_size(self) -> int:
        return self._data.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self._data.itemsize for stride in self._data.strides)
