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
_INVALID_VALUE = 1
_MAX_THREADS_PER_BLOCK = 0
_SHARED_SIZE_BYTES = 1
_LOCAL_SIZE_BYTES = 3
_NUM_REGS = 4
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_ARGUMENT_ALIGNMENT = 64  # bytes; tensor maps, the strictest parameters, want it
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

    `parameters` are the offsets at which the kernel's parameters begin in the buffer, in their order; one struct at 0
    unless told. Choose them as suits the writer: the driver copies each parameter to where the target wants it, which
    is not the same for every target. Each parameter has the bytes up to the next one, the last those up to the end.

    The driver copies at launch, so a buffer may be patched again as soon as `launch` returns; use it in one thread at a
    time. Write with `struct.pack_into(layout, buffer.view, offset, ...)`. The view is aligned for any parameter.
    """

    __slots__ = ("_memory", "_pointers", "checked", "parameters", "pointers", "view")

    def __init__(self, size: int, parameters: tuple[int, ...] = (0,)) -> None:
        if size <= 0:
            raise ValueError(f"size of the kernel arguments is {size} bytes, wanted more than 0")
        ends = (*parameters[1:], size)
        if (
            not parameters
            or parameters[0] < 0
            or any(begin >= end for begin, end in zip(parameters, ends, strict=True))
        ):
            raise ValueError(
                f"offsets of the kernel parameters are {parameters} in a buffer of {size} bytes, wanted one or more, "
                "from 0, rising and within the buffer"
            )
        self._memory = (ctypes.c_char * (size + _ARGUMENT_ALIGNMENT))()
        skipped = -ctypes.addressof(self._memory) % _ARGUMENT_ALIGNMENT
        start = ctypes.addressof(self._memory) + skipped
        self._pointers = (ctypes.c_void_p * len(parameters))(*(start + offset for offset in parameters))
        self.view: memoryview = memoryview(self._memory).cast("B")[skipped : skipped + size]
        self.parameters = parameters
        self.pointers: int = ctypes.addressof(self._pointers)
        self.checked: tuple[int, ...] | None = None
        """The sizes of parameters that this buffer was last found to hold; written by `Function.launch`."""

    @classmethod
    def from_bytes(cls, data: bytes, parameters: tuple[int, ...] = (0,)) -> ArgumentBuffer:
        """A buffer that begins with these bytes."""
        buffer = cls(len(data), parameters)
        buffer.view[:] = data
        return buffer

    def __len__(self) -> int:
        return len(self.view)

    def holds(self, sizes: tuple[int, ...]) -> bool:
        """Whether there is a parameter for each of these sizes in bytes, and each has room for its bytes."""
        ends = (*self.parameters[1:], len(self.view))
        return len(sizes) == len(self.parameters) and all(
            begin + size <= end for begin, end, size in zip(self.parameters, ends, sizes, strict=True)
        )


class Driver:
    """The CUDA driver with errors in words. `bindings` is cuda.bindings.driver or an object with the same functions."""

    def __init__(self, bindings: Any = None) -> None:
        if bindings is None:
            bindings = _import_bindings()
        self.bindings = bindings
        self._contexts: dict[int, Any] = {}
        self._parameter_bytes: dict[tuple[int, ...], tuple[int, ...]] = {}
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

    def parameter_bytes(self, function: Any) -> tuple[int, ...] | None:
        """The size of each parameter of a function, the same object for the same sizes; None before CUDA 12.4."""
        sizes: list[int] = []
        try:
            while True:
                status, _, size = self.bindings.cuFuncGetParamInfo(function, len(sizes))
                if status:
                    break
                sizes.append(int(size))
        except RuntimeError:  # the bindings know the call, the driver does not
            return None
        if int(status) != _INVALID_VALUE:  # what it says when there is no further parameter
            return None
        with self._lock:
            return self._parameter_bytes.setdefault(tuple(sizes), tuple(sizes))


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
        self.parameter_bytes = driver.parameter_bytes(handle)

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
        the driver refuses the launch, ValueError when `arguments` is not laid out for this kernel; errors of the kernel
        itself show in later calls.
        """
        if arguments.checked is not self.parameter_bytes:
            self._check_arguments(arguments)
        result = self._launch(
            self._handle, grid[0], grid[1], grid[2], block, 1, 1, shared_bytes, stream, arguments.pointers, 0
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

    def _check_arguments(self, arguments: ArgumentBuffer) -> None:
        """Keeps the driver from reading past the end of a buffer that was made for another kernel."""
        sizes = self.parameter_bytes
        if sizes is not None and not arguments.holds(sizes):
            wanted, found = (", ".join(map(str, numbers)) for numbers in (sizes, arguments.parameters))
            raise ValueError(
                f"{self.symbol} takes parameters of {wanted or 'no'} bytes, but the argument buffer has "
                f"{len(arguments)} bytes with parameters at {found}: make it with {len(sizes)} offsets, "
                "ArgumentBuffer(size, parameters=offsets)"
            )
        arguments.checked = sizes

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
