"""Loading and launching, against a driver that is not there: a fake in Python, and one in C below the real bindings.

Run by pytest.
Assumes no GPU. The test with the fake library needs a C compiler and cuda-bindings.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
import time

import pytest
from humming_compile import DriverError
from humming_compile.module import ArgumentBuffer, Driver, Function, TensorMapEncoder, load_function

CUBIN = b"\x7fELF and so on"


class FakeDriver:
    """The functions of cuda.bindings.driver that are used, on two devices; what was done is kept in `calls`."""

    def __init__(self, fail: dict[str, int] | None = None, parameters: tuple[int, ...] = (24,)) -> None:
        self.fail = fail or {}
        self.parameters = parameters
        self.calls: list[tuple] = []
        self.launches: list[tuple] = []
        self.current = ["torch's context"]

    def CUfunction_attribute(self, number: int) -> int:
        return number

    def _result(self, name: str, *values: object, call: tuple = ()) -> tuple:
        self.calls.append((name, *call))
        code = self.fail.get(name, 0)
        return (code,) if not values else (code, *(values if code == 0 else [None] * len(values)))

    def cuInit(self, flags: int) -> tuple:
        return self._result("cuInit")

    def cuDriverGetVersion(self) -> tuple:
        return self._result("cuDriverGetVersion", 12090)

    def cuDeviceGetCount(self) -> tuple:
        return self._result("cuDeviceGetCount", 2)

    def cuDeviceGet(self, index: int) -> tuple:
        return (101, None) if index > 1 else self._result("cuDeviceGet", f"device {index}")

    def cuDevicePrimaryCtxRetain(self, device: str) -> tuple:
        return self._result("cuDevicePrimaryCtxRetain", f"context of {device}", call=(device,))

    def cuCtxPushCurrent(self, context: str) -> tuple:
        self.current.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple:
        return (0, self.current.pop())

    def cuModuleLoadData(self, image: bytes) -> tuple:
        return self._result("cuModuleLoadData", ("module", self.current[-1], image))

    def cuModuleUnload(self, module: tuple) -> tuple:
        return self._result("cuModuleUnload", call=(module,))

    def cuModuleGetFunction(self, module: tuple, name: bytes) -> tuple:
        return self._result("cuModuleGetFunction", ("function", name, module))

    def cuFuncGetAttribute(self, attribute: int, function: tuple) -> tuple:
        return self._result("cuFuncGetAttribute", {0: 384, 1: 1024, 3: 16, 4: 168}[attribute])

    def cuFuncSetAttribute(self, function: tuple, attribute: int, value: int) -> tuple:
        return self._result("cuFuncSetAttribute", call=(attribute, value))

    def cuFuncGetParamInfo(self, function: tuple, index: int) -> tuple:
        return (0, 8 * index, self.parameters[index]) if index < len(self.parameters) else (1, None, None)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) -> tuple:
        """Copies each parameter from where its pointer says, as the driver does."""
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        data = b"|".join(ctypes.string_at(pointers[index], size) for index, size in enumerate(self.parameters))
        self.launches.append((function[1], (gx, gy, gz), (bx, by, bz), shared, stream, extra, data))
        return (self.fail.get("cuLaunchKernel", 0),)

    def cuGetErrorName(self, code: int) -> tuple:
        return (0, b"CUDA_ERROR_OF_%d" % code)

    def cuGetErrorString(self, code: int) -> tuple:
        return (0, b"text")


def loaded(fake: FakeDriver, device: int = 0) -> Function:
    return load_function(CUBIN, "scale", device, Driver(fake))


def test_attributes_are_read() -> None:
    function = loaded(FakeDriver())
    attributes = function.attributes
    assert (attributes.registers, attributes.local_bytes) == (168, 16)
    assert (attributes.static_shared_bytes, attributes.max_threads) == (1024, 384)
    assert (function.symbol, function.device_index) == ("scale", 0)


def test_a_launch_passes_the_arguments_as_they_are_then() -> None:
    fake = FakeDriver()
    function = loaded(fake)
    arguments = ArgumentBuffer.from_bytes(struct.pack("<QQiI", 1, 2, -3, 4))
    function.launch((132, 2, 1), 256, 4096, 77, arguments)
    struct.pack_into("<i", arguments.view, 16, 5)
    function.launch((1, 1, 1), 128, 0, 0, arguments)
    assert fake.launches == [
        (b"scale", (132, 2, 1), (256, 1, 1), 4096, 77, 0, struct.pack("<QQiI", 1, 2, -3, 4)),
        (b"scale", (1, 1, 1), (128, 1, 1), 0, 0, 0, struct.pack("<QQiI", 1, 2, 5, 4)),
    ]


@pytest.mark.parametrize("size", [1, 7, 8, 20, 104])
def test_argument_buffers_keep_their_size_and_are_aligned(size: int) -> None:
    buffer = ArgumentBuffer(size)
    assert len(buffer) == len(buffer.view) == size
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))
    assert address % 64 == 0, "for tensor maps"
    with pytest.raises((ValueError, IndexError, struct.error)):
        struct.pack_into("<Q", buffer.view, size - 7, 0)
    with pytest.raises(ValueError, match="wanted more than 0"):
        ArgumentBuffer(0)


def test_each_parameter_is_copied_from_its_own_place() -> None:
    """A struct of 104 bytes and a tensor map: where sm_90a wants the second one (at 112) is the driver's affair."""
    fake = FakeDriver(parameters=(104, 128))
    function = loaded(fake)
    arguments = ArgumentBuffer(256, parameters=(0, 128))
    arguments.view[:] = bytes(range(256))
    function.launch((1, 1, 1), 128, 0, 0, arguments)
    assert fake.launches[0][-1] == bytes(range(104)) + b"|" + bytes(range(128, 256))
    assert function.parameter_bytes == (104, 128)


@pytest.mark.parametrize(
    ("size", "offsets"), [(256, (0,)), (255, (0, 128)), (256, (0, 96)), (300, (0, 128, 256)), (104, (0,))]
)
def test_a_buffer_for_another_kernel_is_refused(size: int, offsets: tuple[int, ...]) -> None:
    fake = FakeDriver(parameters=(104, 128))
    function, buffer = loaded(fake), ArgumentBuffer(size, parameters=offsets)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"parameters of 104, 128 bytes, but the argument buffer has {size} bytes"):
            function.launch((1, 1, 1), 128, 0, 0, buffer)
    assert not fake.launches


def test_a_buffer_goes_from_kernel_to_kernel_and_is_checked_for_each() -> None:
    small, same, large = (loaded(FakeDriver(parameters=sizes)) for sizes in ((8,), (8,), (16,)))
    buffer = ArgumentBuffer(8)
    for function in (small, same, small):
        function.launch((1, 1, 1), 32, 0, 0, buffer)
    with pytest.raises(ValueError, match="parameters of 16 bytes"):
        large.launch((1, 1, 1), 32, 0, 0, buffer)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_driver_that_cannot_tell_the_parameters_launches_unchecked(is_known: bool) -> None:
    class Old(FakeDriver):
        def cuFuncGetParamInfo(self, function: tuple, index: int) -> tuple:
            if is_known:
                return (801, None, None)
            raise RuntimeError('Function "cuFuncGetParamInfo" not found')

    fake = Old()
    function = loaded(fake)
    function.launch((1, 1, 1), 32, 0, 0, ArgumentBuffer(24))
    assert function.parameter_bytes is None and len(fake.launches) == 1


@pytest.mark.parametrize("offsets", [(), (8, 8), (-1, 4), (0, 16), (8, 0)])
def test_offsets_of_parameters_are_checked(offsets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising and within the buffer"):
        ArgumentBuffer(16, parameters=offsets)


def test_each_device_has_its_context_and_the_current_one_is_left_alone() -> None:
    fake = FakeDriver()
    driver = Driver(fake)
    functions = [load_function(CUBIN, "scale", device, driver) for device in (0, 1, 0, 1)]
    assert fake.current == ["torch's context"]
    assert [function._module[1] for function in functions] == [f"context of device {index}" for index in (0, 1, 0, 1)]
    retained = [call[1] for call in fake.calls if call[0] == "cuDevicePrimaryCtxRetain"]
    assert retained == ["device 0", "device 1"], "retained once per process and device"
    functions[1].unload()
    assert fake.calls[-1] == ("cuModuleUnload", functions[1]._module) and fake.current == ["torch's context"]


def test_shared_memory_is_asked_for() -> None:
    fake = FakeDriver()
    loaded(fake).allow_shared_bytes(200_000)
    assert fake.calls[-1] == ("cuFuncSetAttribute", 8, 200_000)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("cuModuleLoadData", 209, r"another GPU or made by a newer NVRTC than the driver \(CUDA 12.9\)"),
        ("cuModuleLoadData", 2, "loading scale on device 0"),
        ("cuModuleGetFunction", 500, "the cubin has no function 'scale'"),
        ("cuFuncGetAttribute", 1, "cuFuncGetAttribute failed with CUDA_ERROR_OF_1"),
        ("cuFuncSetAttribute", 1, "wants 99999 bytes of dynamic shared memory beside 1024 static ones"),
        ("cuLaunchKernel", 701, r"launch of scale with grid \(3, 1, 1\), 64 threads, 7 bytes"),
        ("cuInit", 100, "cuInit failed with CUDA_ERROR_OF_100"),
    ],
)
def test_errors_of_the_driver_have_words(call: str, code: int, words: str) -> None:
    fake = FakeDriver(fail={call: code})
    with pytest.raises(DriverError, match=words) as caught:
        function = loaded(fake)
        function.allow_shared_bytes(99999)
        function.launch((3, 1, 1), 64, 7, 0, ArgumentBuffer(24))
    assert (caught.value.code, caught.value.call) == (code, call)
    assert fake.current == ["torch's context"], "also when loading fails"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.code) == (str(caught.value), code)


def test_a_symbol_that_is_missing_leaves_no_module_loaded() -> None:
    fake = FakeDriver(fail={"cuModuleGetFunction": 500})
    with pytest.raises(DriverError):
        loaded(fake)
    assert any(call[0] == "cuModuleUnload" for call in fake.calls)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DriverError, match="device 7 was asked for"):
        loaded(FakeDriver(), device=7)


def test_a_missing_driver_is_told() -> None:
    class NoDriver(FakeDriver):
        def cuInit(self, flags: int) -> tuple:
            raise RuntimeError("libcuda.so.1: cannot open shared object file\nmore")

    with pytest.raises(DriverError, match="can be compiled but not run: install the NVIDIA driver") as caught:
        Driver(NoDriver())
    assert "\n" not in str(caught.value)


def test_a_launch_costs_little_python() -> None:
    """All but the driver's own call: a guard against accidents, an order of magnitude above what is measured."""

    class Quick(FakeDriver):
        def cuLaunchKernel(self, *_: object) -> tuple:
            return (0,)

    function, arguments = loaded(Quick(parameters=(104,))), ArgumentBuffer(104)
    best = min(_seconds_of(function, arguments) for _ in range(5))
    assert best / 2000 < 5e-6


def _seconds_of(function: Function, arguments: ArgumentBuffer) -> float:
    started = time.perf_counter()
    for _ in range(2000):
        function.launch((132, 1, 1), 256, 4096, 77, arguments)
    return time.perf_counter() - started


def test_the_real_bindings_are_called_as_they_want_to_be(fake_driver: dict[str, str], run_script) -> None:
    """cuda.bindings.driver itself, over a libcuda.so.1 that is made here."""
    done = run_script(
        """
        import struct, sys
        from humming_compile import DriverError
        from humming_compile.module import ArgumentBuffer, default_driver, load_function
        print(default_driver().version_text(), default_driver().device_count())
        function = load_function(b"\\x7fELF", "scale", 0)
        print(function.attributes)
        function.allow_shared_bytes(5000)
        arguments = ArgumentBuffer.from_bytes(struct.pack("<qq", 40, 2), parameters=(0, 8))
        sys.stdout.flush()
        function.launch((132, 2, 1), 256, 4096, 77, arguments)
        for step in (
            lambda: function.launch((1, 1, 1), 1, 0, 9, arguments),
            lambda: load_function(b"\\x7fELF", "absent", 0),
            lambda: load_function(b"garbage", "scale", 0),
            lambda: load_function(b"\\x7fELF", "scale", 1),
            lambda: function.allow_shared_bytes(99999),
        ):
            try:
                step()
            except DriverError as error:
                print(error.call, error.code)
        function.unload()
        """,
        environment={**fake_driver, "FAKE_PARAMETERS": "2"},
    )
    assert done.stdout.splitlines() == [
        "13.0 1",
        "FunctionAttributes(registers=104, local_bytes=103, static_shared_bytes=101, max_threads=100)",
        "132 2 1 256 1 1 4096 77 40 2",
        "1 1 1 1 1 1 0 9 40 2",
        "cuLaunchKernel 400",
        "cuModuleGetFunction 500",
        "cuModuleLoadData 200",
        "cuDeviceGet 101",
        "cuFuncSetAttribute 1",
    ], done.stderr


def test_a_hundred_thousand_launches_leave_nothing_behind(fake_driver: dict[str, str], run_script) -> None:
    """With the real bindings: neither memory nor files, while grids, arguments and tensor maps change."""
    done = run_script(
        """
        import os, resource, struct
        from humming_compile.module import ArgumentBuffer, TensorMapEncoder, load_function
        function, encoder = load_function(b"\x7fELF", "scale", 0), TensorMapEncoder()
        arguments = ArgumentBuffer(256, parameters=(0, 128))
        def launches(count):
            for index in range(count):
                struct.pack_into("<q", arguments.view, 0, index)
                if index % 4 == 0:
                    arguments.view[128:] = encoder.encode(16 * index, 1 + index % 300, 4096, 8192, 16, 64)
                function.launch((1 + index % 300, 1, 1), 256, 4096, 8, arguments)
        def held():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        launches(5000)
        before, peak = held(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        launches(100_000)
        print(held() == before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak)
        """,
        environment={**fake_driver, "FAKE_PARAMETERS": "2"},
    )
    same, grown = done.stdout.split()
    assert same == "True" and int(grown) < 1024, done.stderr


def test_tensor_maps_are_asked_for_in_the_driver_s_order(fake_driver: dict[str, str], run_script) -> None:
    """The sides of a map go from the innermost outwards: columns, then rows."""
    done = run_script(
        """
        import struct
        from humming_compile import DriverError
        from humming_compile.module import TensorMapEncoder
        encoder = TensorMapEncoder()
        map = encoder.encode(0x7000, rows=17, columns=4096, row_bytes=8192, box_rows=16, box_columns=64)
        print(len(map), *struct.unpack("<6Q", map[:48]))
        try:
            encoder.encode(0x7008, rows=17, columns=4096, row_bytes=8192, box_rows=16, box_columns=64)
        except DriverError as error:
            print(error.call, error.code, "at 0x7008" in str(error))
        """,
        environment=fake_driver,
    )
    address, columns, rows, row_bytes, box_columns, box_rows = 0x7000, 4096, 17, 8192, 64, 16
    assert done.stdout.splitlines() == [
        f"128 {address} {columns} {rows} {row_bytes} {box_columns} {box_rows}",
        "cuTensorMapEncodeTiled 1 True",
    ], done.stderr


def test_a_driver_without_tensor_maps_is_told() -> None:
    class Old(FakeDriver):
        def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple:
            return (500, None, None)

    with pytest.raises(DriverError, match="update it to CUDA 12 or later"):
        TensorMapEncoder(Driver(Old()))
