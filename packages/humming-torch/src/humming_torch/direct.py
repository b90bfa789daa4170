"""The plain eager call of a layer on a GPU: looked up once, checked in one condition, one allocation, one launch.

Called by `Linear.forward` before anything else. It answers None to a call of any other kind, which then goes through
every check of `checks.py` and through `Plan.run`: so errors have one place, and nothing is refused here.
Assumes tensors that have passed those checks before, and a plan whose launches are those of the tensors' device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from humming_kernels.launch import ARGUMENTS

from humming_torch.checks import ALIGNMENT, K_STEP
from humming_torch.launch import NO_SCRATCH, THREAD

if TYPE_CHECKING:
    from humming_torch.plan import Plan

# Looked up once: three attributes on the way to each would be a tenth of the call.
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_tracing_state: Callable[[], object] = torch._C._get_tracing_state
_is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def _stream_handle(index: int) -> int:
    """The handle of the current stream, where torch has no shorter way to it."""
    return int(torch.cuda.current_stream(index).cuda_stream)


current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_handle)
_pack = ARGUMENTS.pack_into
_Tensor = torch.Tensor
_strided = torch.strided


class DirectCall:
    """Calls of one layer with activations of one dtype; `run` makes one.

    Plain is a call with an activation that a kernel can read as it lies (contiguous, or columns of a wider matrix), on
    the layer's device, which is the current one, outside autograd and dispatch modes, for a number of tokens that was
    launched before; `out` is contiguous and has the plan's dtype.
    Replaced buffers of the module are noticed by their identity; their addresses are read anew for every call.
    """

    __slots__ = ("_addresses", "_bias", "_buffers", "_index", "_k", "_n", "_plan", "_scale", "_weight", "_zero")

    def __init__(
        self,
        plan: Plan,
        buffers: Mapping[str, torch.Tensor | None],
        weight: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> None:
        """`buffers` are the module's own, in which the other tensors must still lie for a call to be plain."""
        self._plan, self._buffers = plan, buffers
        self._index = weight.get_device()
        self._n, self._k = plan.layer.n, plan.layer.k
        self._weight, self._scale, self._zero, self._bias = weight, scale, zero, bias
        self._addresses: tuple[Callable[[], int] | None, ...] = (
            weight.data_ptr,
            scale.data_ptr,
            None if zero is None else zero.data_ptr,
            None if bias is None else bias.data_ptr,
        )

    @staticmethod
    def serves(k: int, column_order: torch.Tensor | None) -> bool:
        """Whether a layer has plain calls at all: not where activations are always copied first."""
        return k % K_STEP == 0 and column_order is None

    def run(self, activation: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
        """The result, or None, with nothing done, where the call is not a plain one."""
        buffers, index, shape, k = self._buffers, self._index, activation.shape, self._k
        if (
            type(activation) is not _Tensor
            or activation.get_device() != index
            or activation.layout is not _strided
            or activation.requires_grad
            or not shape
            or shape[-1] != k
            or buffers["weight"] is not self._weight
            or buffers["weight_scale"] is not self._scale
            or buffers["zero_point"] is not self._zero
            or buffers["bias"] is not self._bias
            or buffers["column_order"] is not None
            or _dispatch_modes()
            or _is_wrapped(activation)
            or _tracing_state() is not None
            or current_device() != index
            or index not in THREAD.bound
        ):
            return None
        plan, n = self._plan, self._n
        if len(shape) == 2:
            m = shape[0]
            size: tuple[int, ...] = (m, n)
        else:
            m = activation.numel() // k
            size = (*shape[:-1], n)
        launch = plan.launches.get(m)
        address = activation.data_ptr()
        row_stride = k if activation.is_contiguous() else _row_stride(activation, k)
        if launch is None or not row_stride or address % ALIGNMENT:
            return None
        if out is None:
            out = empty(size, plan.output_dtype)
        elif (
            type(out) is not _Tensor
            or out.dtype is not plan.output_dtype
            or out.get_device() != index
            or out.shape != size
            or not out.is_contiguous()
            or out.requires_grad
        ):
            return None
        stream = current_stream(index)
        scratch = plan.scratch(launch, stream) if launch.needs_scratch else NO_SCRATCH
        weight, scale, zero, bias = self._addresses
        arguments, box = plan.arguments, launch.tensor_box
        free = arguments.plain if box is None else arguments.mapped(address, row_stride, m, box)
        try:
            buffer = free.pop()
        except IndexError:
            buffer = arguments.new_buffer(address, row_stride, m, k, box)
        _pack(
            buffer.view,
            0,
            address,
            weight(),  # type: ignore[misc]  # never None; in one tuple with those that may be
            scale(),  # type: ignore[misc]
            zero() if zero else 0,
            bias() if bias else 0,
            out.data_ptr(),
            scratch.workspace_address,
            scratch.counters_address,
            row_stride,
            n,
            m,
            n,
            k,
            launch.units_per_tile,
            launch.units_per_block,
            0,
        )
        launch.function.launch(launch.grid, launch.threads, launch.shared_bytes, stream, buffer)
        free.append(buffer)
        return out


def _row_stride(activation: torch.Tensor, k: int) -> int:
    """Elements from row to row of a matrix that is no contiguous one; 0 where a kernel cannot read it as it lies."""
    if activation.ndim != 2:
        return 0
    rows, columns = activation.stride()
    return rows if columns == 1 and rows >= k and rows % K_STEP == 0 else 0


_empty_strided: Callable[[Any, Any, torch.dtype], torch.Tensor] | None = getattr(
    torch._C._dynamo.guards, "_empty_strided_cuda", None
)
"""What torch's own generated code allocates with: no dispatcher and no argument parser on the way."""


def empty(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised contiguous tensor on the current CUDA device."""
    if _empty_strided is None:
        return torch.empty(size, dtype=dtype, device="cuda")
    columns = size[-1]
    if len(size) == 2:
        return _empty_strided(size, (columns, 1), dtype)
    if len(size) == 3:
        return _empty_strided(size, (size[1] * columns, columns, 1), dtype)
    return _empty_strided((math.prod(size[:-1]), columns), (columns, 1), dtype).view(size)
