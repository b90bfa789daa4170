"""Loads a cubin with the CUDA driver and launches its functions, at well under a microsecond of Python per launch.

Called by humming_torch's launch path; the only file that imports cuda.bindings.driver.
Assumes that the device's primary context is the one in use (as torch does) and is current when a function is launched.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import attrs

from humming_compile.errors import DriverError

# CUfunction_attribute, CUresult and launch-parameter numbers of cuda.h; they are part of the driver's binary interface.
_MAX_THREADS_PER_BLOCK = 0
_SHARED_SIZE_BYTES = 1
_LOCAL_SIZE_BYTES = 3
_NUM_REGS = 4
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_LAUNCH_PARAM_END = 0
_LAUNCH_PARAM_BUFFER_POINTER = 1
_LAUNCH_PARAM_BUFFER_SIZE = 2
_TENSOR_MAP_SINCE = 12000  # the CUDA version whose driver brought cuTensorMapEncodeTiled
_TENSOR_MAP_BYTES = 128
_TENSOR_MAP_UINT16 = 1
_TENSOR_MAP_SWIZZLE_128B = 3
_TENSOR_MAP_L2_PROMOTION_256B = 3
_WRONG_IMAGE = {200, 209, 222}  # INVALID_IMAGE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION


@attrs.frozen(kw_only=True)
class FunctionAttributes:
    """What the driver tells of a loaded function.

    Registers and local (spilled) bytes are per thread, static shared bytes per block; `max_threads` is the largest
    block that can be launched.
    """

    registers: int
    local_bytes: int
    static_shared_bytes: int
    max_threads: int


class ArgumentBuffer:
    """The bytes of a kernel's parameters, prepared once and patched in place before each launch.

    The driver copies them at launch, so a buffer may be patched again as soon as `launch` returns; use it in one thread
    at a time. Write with `struct.pack_into(layout, buffer.view, offset, ...)`.
    """

    __slots__ = ("_array", "_extra", "_size", "extra", "view")

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ValueError(f"size of the kernel arguments is {size} bytes, wanted more than 0")
        # 64-bit items, so that the block is aligned for any member of the struct.
        self._array = (ctypes.c_uint64 * ((size + 7) // 8))()
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _LAUNCH_PARAM_BUFFER_POINTER,
            ctypes.addressof(self._array),
            _LAUNCH_PARAM_BUFFER_SIZE,
            ctypes.addressof(self._size),
            _LAUNCH_PARAM_END,
        )
        self.view: memoryview = memoryview(self._array).cast("B")[:size]
        self.extra: int = ctypes.addressof(self._extra)

    @classmethod
    def from_bytes(cls, data: bytes) -> ArgumentBuffer:
        """A buffer that begins with these bytes."""
        buffer = cls(len(data))
        buffer.view[:] = data
        return buffer

    def __len__(self) -> int:
        return self._size.value


class Driver:
    """The CUDA driver with errors in words. `bindings` is cuda.bindings.driver or an object with the same functions."""

    def __init__(self, bindings: Any = None) -> None:
        if bindings is None:
            bindings = _import_bindings()
        self.bindings = bindings
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()
        try:
            self.check("cuInit", bindings.cuInit(0))
        except (RuntimeError, OSError) as error:  # libcuda is loaded by the first call
            raise DriverError(
                "there is no CUDA driver (libcuda.so.1), so kernels can be compiled but not run: install the NVIDIA "
                f"driver, or give the container access to the GPU ({_first_line(error)})",
                call="cuInit",
            ) from error

    def check(self, call: str, result: tuple[Any, ...], explanation: str = "") -> Any:
        """The value of a driver call's result; raises DriverError when the call failed."""
        if result[0]:
            raise self.error(call, result[0], explanation)
        return result[1] if len(result) > 1 else None

    def error(self, call: str, code: Any, explanation: str = "") -> DriverError:
        """The error for a result that is not success."""
        texts = []
        for function in (self.bindings.cuGetErrorName, self.bindings.cuGetErrorString):
            status, text = function(code)
            texts.append("" if status or text is None else text.decode(errors="replace"))
        name = texts[0] or f"error {int(code)}"
        told = f"{call} failed with {name} ({texts[1] or 'no text'})"
        return DriverError(told + (f": {explanation}" if explanation else ""), code=int(code), call=call)

    def version_text(self) -> str:
        """The CUDA version that the driver supports, for example "13.0"."""
        number = int(self.check("cuDriverGetVersion", self.bindings.cuDriverGetVersion()))
        return f"{number // 1000}.{number % 1000 // 10}"

    def device_count(self) -> int:
        """Number of devices that this process may use."""
        return int(self.check("cuDeviceGetCount", self.bindings.cuDeviceGetCount()))

    def context(self, device_index: int) -> Any:
        """The primary context of a device, retained once per process."""
        with self._lock:
            if device_index not in self._contexts:
                device = self.check(
                    "cuDeviceGet", self.bindings.cuDeviceGet(device_index), f"device {device_index} was asked for"
                )
                self._contexts[device_index] = self.check(
                    "cuDevicePrimaryCtxRetain", self.bindings.cuDevicePrimaryCtxRetain(device)
                )
            return self._contexts[device_index]


class Function:
    """One loaded kernel. Made by `load_function`; stays loaded until `unload`."""

    def __init__(self, driver: Driver, context: Any, module: Any, handle: Any, symbol: str, device_index: int) -> None:
        self._driver = driver
        self._context = context
        self._module = module
        self._handle = handle
        self._launch = driver.bindings.cuLaunchKernel
        self.symbol = symbol
        self.device_index = device_index
        self.attributes = FunctionAttributes(
            registers=self._attribute(_NUM_REGS),
            local_bytes=self._attribute(_LOCAL_SIZE_BYTES),
            static_shared_bytes=self._attribute(_SHARED_SIZE_BYTES),
            max_threads=self._attribute(_MAX_THREADS_PER_BLOCK),
        )

    def allow_shared_bytes(self, count: int) -> None:
        """Lets launches ask for up to `count` bytes of dynamic shared memory; needed above 48 KiB."""
        attributes = self._driver.bindings.CUfunction_attribute
        self._driver.check(
            "cuFuncSetAttribute",
            self._driver.bindings.cuFuncSetAttribute(self._handle, attributes(_MAX_DYNAMIC_SHARED_SIZE_BYTES), count),
            f"{self.symbol} wants {count} bytes of dynamic shared memory beside "
            f"{self.attributes.static_shared_bytes} static ones, more than device {self.device_index} has",
        )

    def launch(
        self, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, arguments: ArgumentBuffer
    ) -> None:
        """Enqueues one launch on `stream` (a CUstream as a number; 0 is the default stream).

        `grid` counts blocks, `block` threads. The function's device must be the current one. Raises DriverError when
        the driver refuses the launch; errors of the kernel itself show in later calls.
        """
        result = self._launch(
            self._handle, grid[0], grid[1], grid[2], block, 1, 1, shared_bytes, stream, 0, arguments.extra
        )
        if result[0]:
            raise self._driver.error(
                "cuLaunchKernel",
                result[0],
                f"launch of {self.symbol} with grid {grid}, {block} threads, {shared_bytes} bytes of dynamic shared "
                f"memory and {len(arguments)} bytes of arguments on device {self.device_index}",
            )

    def unload(self) -> None:
        """Unloads the kernel; launches that have not ended must have been waited for, and none may follow."""
        with _Current(self._driver, self._context):
            self._driver.check("cuModuleUnload", self._driver.bindings.cuModuleUnload(self._module))

    def _attribute(self, number: int) -> int:
        attribute = self._driver.bindings.CUfunction_attribute(number)
        return int(
            self._driver.check("cuFuncGetAttribute", self._driver.bindings.cuFuncGetAttribute(attribute, self._handle))
        )


class _Current:
    """Makes a context current in a `with` block and leaves the one before it as it was."""

    def __init__(self, driver: Driver, context: Any) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        self._driver.check("cuCtxPushCurrent", self._driver.bindings.cuCtxPushCurrent(self._context))

    def __exit__(self, *_: object) -> None:
        self._driver.check("cuCtxPopCurrent", self._driver.bindings.cuCtxPopCurrent())


def load_function(cubin: bytes, symbol: str, device_index: int, driver: Driver | None = None) -> Function:
    """Loads `cubin` on a device and returns its function `symbol`.

    The current device of the calling thread is left as it was. Raises DriverError without a driver, for a cubin of
    another GPU and for a symbol that the cubin lacks.
    """
    used = default_driver() if driver is None else driver
    context = used.context(device_index)
    with _Current(used, context):
        result = used.bindings.cuModuleLoadData(cubin)
        explanation = f"loading {symbol} on device {device_index}"
        if result[0] and int(result[0]) in _WRONG_IMAGE:
            explanation += (
                f": the cubin is for another GPU or made by a newer NVRTC than the driver (CUDA {used.version_text()}) "
                "takes"
            )
        module = used.check("cuModuleLoadData", result, explanation)
        result = used.bindings.cuModuleGetFunction(module, symbol.encode())
        if result[0]:
            used.bindings.cuModuleUnload(module)
        handle = used.check("cuModuleGetFunction", result, f"the cubin has no function {symbol!r}")
        return Function(used, context, module, handle, symbol, device_index)


class TensorMapEncoder:
    """Makes tensor maps (CUtensorMap) of row-major matrices of 16-bit values, read in boxes with the 128-byte swizzle.

    What lies outside the matrix is read as zero. A map holds addresses and sizes alone: making one touches no memory of
    the device, and it stays good for as long as the matrix stays where it is.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        used = default_driver() if driver is None else driver
        found = used.bindings.cuGetProcAddress(b"cuTensorMapEncodeTiled", _TENSOR_MAP_SINCE, 0)
        address = used.check("cuGetProcAddress", found, "the driver has no tensor maps: update it to CUDA 12 or later")
        integer, pointer = ctypes.c_uint32, ctypes.c_void_p
        # In the order of cuda.h: map, type, rank, address, sides, strides, box, steps, interleave, swizzle, L2, fill.
        kinds = (pointer, integer, integer, *(pointer,) * 5, *(integer,) * 4)
        self._encode = ctypes.CFUNCTYPE(integer, *kinds)(int(address))
        self._driver = used
        self._sides = (ctypes.c_uint64 * 2)()
        self._strides = (ctypes.c_uint64 * 1)()
        self._box = (integer * 2)()
        self._steps = (integer * 2)(1, 1)
        self._memory = ctypes.create_string_buffer(2 * _TENSOR_MAP_BYTES)
        start = ctypes.addressof(self._memory)
        self._map = start + -start % 64  # the driver wants maps at multiples of 64 bytes
        self._lock = threading.Lock()

    def encode(self, address: int, rows: int, columns: int, row_bytes: int, box_rows: int, box_columns: int) -> bytes:
        """The 128 bytes of the map of [rows, columns] at `address`, rows `row_bytes` apart.

        The address and `row_bytes` are multiples of 16. Raises DriverError when the driver refuses.
        """
        with self._lock:
            self._sides[:] = [columns, rows]
            self._strides[0] = row_bytes
            self._box[:] = [box_columns, box_rows]
            code = self._encode(
                self._map,
                _TENSOR_MAP_UINT16,
                2,
                address,
                ctypes.addressof(self._sides),
                ctypes.addressof(self._strides),
                ctypes.addressof(self._box),
                ctypes.addressof(self._steps),
                0,  # no interleave
                _TENSOR_MAP_SWIZZLE_128B,
                _TENSOR_MAP_L2_PROMOTION_256B,
                0,  # outside: zeros
            )
            if code:
                raise self._driver.error(
                    "cuTensorMapEncodeTiled",
                    self._driver.bindings.CUresult(code),
                    f"matrix of {rows} x {columns} 16-bit values at {address:#x}, rows {row_bytes} bytes apart, "
                    f"boxes of {box_rows} x {box_columns}",
                )
            return ctypes.string_at(self._map, _TENSOR_MAP_BYTES)


def default_driver() -> Driver:
    """The driver of this machine, initialised once per process. Raises DriverError when there is none."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Driver()
        return _default


def _import_bindings() -> Any:
    try:
        from cuda.bindings import driver  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise DriverError(
            f"cuda-bindings cannot be imported ({_first_line(error)}): pip install cuda-bindings", call="import"
        ) from error
    return driver


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


_default: Driver | None = None
_default_lock = threading.Lock()
