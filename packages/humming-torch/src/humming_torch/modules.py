"""`Linear`: a quantized linear layer, from a checkpoint, from a real weight or from a saved state.

Called by users; it calls `humming_torch::dense_gemm`, or a DirectCall or its plan where nothing traces the call.
Assumes f16 or bf16 activations; inference only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from humming_format.checkpoint import Checkpoint, read_checkpoint
from humming_format.text import parse_weight
from humming_format.weight import WeightFormat

from humming_torch.checks import ACTIVATION_NAMES, check_activation, check_output, check_weight
from humming_torch.convert import quantize, read_bias, read_layer
from humming_torch.direct import DirectCall
from humming_torch.errors import ActivationError, HummingTorchError, WeightError
from humming_torch.ops.dense import Inputs
from humming_torch.pack import pack
from humming_torch.packed_weight import DOCUMENT_NAME, TENSOR_NAMES, PackedWeight, packed_of
from humming_torch.plan import Plan
from humming_torch.session import Progress, session_of

_Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def has_kernels(tensor: torch.Tensor) -> bool:
    """Whether kernels can run where the tensor is."""
    return tensor.is_cuda


class Linear(torch.nn.Module):
    """y = x @ weight.T + bias with a packed quantized weight; x is [..., k], y is [..., n].

    `dtype` is the activations' dtype (f16 or bf16) that `prepare` compiles for and that the bias has; `to(dtype)`
    changes it, and never the stored scales. `output_dtype` is the activations' dtype unless f32 is asked for.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    zero_point: torch.Tensor | None
    bias: torch.Tensor | None
    column_order: torch.Tensor | None

    def __init__(
        self, packed: PackedWeight, *, dtype: torch.dtype = torch.bfloat16, output_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if dtype not in ACTIVATION_NAMES:
            raise ActivationError(
                "no kernels for activations of this dtype", got=str(dtype), wanted="float16, bfloat16"
            )
        if output_dtype not in (None, dtype, torch.float32):
            raise ActivationError("no kernels for outputs of this dtype", got=str(output_dtype), wanted="float32")
        self.dtype = dtype
        self._output_dtype = output_dtype
        for name in (*TENSOR_NAMES, DOCUMENT_NAME):
            self.register_buffer(name, None)
        self._set(packed)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str] | Checkpoint,
        layer_name: str,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        checkpoint_format: str | None = None,
    ) -> Linear:
        """The layer of that name from a GPTQ folder or a GGUF file (or a checkpoint that was read before).

        `checkpoint_format` ("gptq" or "gptq_v2") overrides how GPTQ zero points are stored. Raises a FormatError where
        the checkpoint is damaged and a HummingTorchError where it cannot be converted exactly.
        """
        checkpoint = (
            path if isinstance(path, Checkpoint) else read_checkpoint(path, checkpoint_format=checkpoint_format)
        )
        entry = checkpoint.layer(layer_name)
        weight = read_layer(entry, device, bias=read_bias(checkpoint, entry, device))
        return cls(pack(weight), dtype=dtype)

    @classmethod
    def from_float(
        cls,
        source: torch.nn.Linear | torch.Tensor,
        format: str | WeightFormat = "u4g128",
        *,
        bias: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Linear:
        """Round a real layer or weight [n, k] to `format`, on the device it is on.

        `dtype` is the weight's own where that is f16 or bf16, else bf16.
        """
        if isinstance(source, torch.nn.Linear):
            weight, bias = source.weight, source.bias if bias is None else bias
        else:
            weight = source
        weight_format = parse_weight(format) if isinstance(format, str) else format
        canonical = quantize(weight.detach(), weight_format, None if bias is None else bias.detach())
        if dtype is None:
            dtype = weight.dtype if weight.dtype in ACTIVATION_NAMES else torch.bfloat16
        return cls(pack(canonical), dtype=dtype)

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, torch.Tensor], prefix: str = "", *, dtype: torch.dtype = torch.bfloat16
    ) -> Linear:
        """The layer whose `state_dict()` was saved, for example with safetensors, under `prefix`."""
        return cls(PackedWeight.from_state_dict(state, prefix), dtype=dtype)

    @property
    def output_dtype(self) -> torch.dtype | None:
        """The results' dtype where it is not the activations': f32 or None."""
        return self._output_dtype

    @property
    def packed(self) -> PackedWeight:
        """The packed weight, sharing this layer's tensors."""
        return packed_of(
            self.format, self.n, self.k, {name: t for name in TENSOR_NAMES if (t := self._tensor(name)) is not None}
        )

    def prepare(self, max_m: int, progress: Progress | None = None) -> Linear:
        """Compile and load the kernels for up to `max_m` tokens; returns the layer.

        After it, calls compile and load nothing and can be captured in CUDA graphs. `progress(done, total, artifact)`
        is called for each kernel compiled. On the CPU there is nothing to prepare.
        """
        if max_m < 1:
            raise HummingTorchError("prepare needs a number of tokens", got=f"max_m = {max_m}", wanted="at least 1")
        if has_kernels(self.weight):
            self._plan_of(self.dtype).prepare(max_m, progress)
        return self

    def forward(self, activation: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """activation [..., k] to [..., n]; with `out`, written there (it may be strided) and returned."""
        if not torch.compiler.is_compiling():
            direct = self._direct.get(activation.dtype)
            if direct is not None:
                result = direct.run(activation, out)
                if result is not None:
                    return result
        return self._general(activation, out)

    def _general(self, activation: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Calls of every kind, traced or not, through every check."""
        if activation.ndim == 0 or activation.shape[-1] != self.k:
            raise ActivationError(
                "activation of the wrong shape", got=str(list(activation.shape)), wanted=f"[..., {self.k}]"
            )
        shape = activation.shape[:-1]
        rows = activation if activation.ndim == 2 else activation.reshape(-1, self.k)
        if out is not None:
            self._run_into(rows, out, (*shape, self.n))
            return out
        if self._must_trace(activation):
            result: torch.Tensor = torch.ops.humming_torch.dense_gemm(*self._inputs(rows), self._output_dtype)
        else:
            result = self._run(rows, None)
        return result if activation.ndim == 2 else result.reshape(*shape, self.n)

    def extra_repr(self) -> str:
        """What `print(layer)` shows between the brackets."""
        bias = "" if self.bias is None else ", bias"
        return f"{self.k} -> {self.n}, {self._format_text}{bias}, {str(self.dtype).removeprefix('torch.')}"

    def _run_into(self, rows: torch.Tensor, out: torch.Tensor, shape: tuple[int, ...]) -> None:
        """As `forward` with `out`: a view of its rows where it has one, else through a copy."""
        if tuple(out.shape) != shape:
            raise ActivationError("out of the wrong shape", got=str(list(out.shape)), wanted=str(list(shape)))
        try:
            target = out.view(-1, self.n) if out.ndim != 2 else out
        except RuntimeError:  # strides that no [m, n] view has
            target = out.new_empty((rows.shape[0], self.n))
        if self._must_trace(rows):
            torch.ops.humming_torch.dense_gemm_out(*self._inputs(rows), target)
        else:
            self._run(rows, target)
        if target is not out and target.data_ptr() != out.data_ptr():
            out.copy_(target.reshape(out.shape))

    def _run(self, rows: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """A call that nothing traces: all checks, then the plan. The next call of its kind may be a direct one."""
        if any(held is not self._buffers[name] for name, held in zip(TENSOR_NAMES, self._held, strict=True)):
            self._hold()  # someone has swapped the module's buffers, for any tensors
            weight, weight_scale, zero_point, _, _ = self._held
            check_weight(weight, weight_scale, zero_point, self._format_text, self.n, self.k)
        weight, weight_scale, zero_point, bias, column_order = self._held
        check_activation(rows, self.n, self.k, weight.device, bias, column_order, None)
        output_dtype = None
        if out is not None:
            check_output(out, rows.shape[0], self.n, rows)
            output_dtype = out.dtype
        plan = self._plan_of(rows.dtype, output_dtype)
        result = plan.run(rows, weight, weight_scale, zero_point, bias, column_order, out)
        if rows.dtype not in self._direct and DirectCall.serves(self.k, column_order):
            used = self._plan_of(rows.dtype)
            self._direct[rows.dtype] = DirectCall(used, self._buffers, weight, weight_scale, zero_point, bias)
        return result

    def _hold(self) -> None:
        """Begin anew with the buffers as they are: no plan and no direct call knows of them yet."""
        buffers = self._buffers
        self._held: _Tensors = (
            self.weight,
            self.weight_scale,
            buffers["zero_point"],
            buffers["bias"],
            buffers["column_order"],
        )
        self._plans: dict[tuple[torch.dtype, torch.dtype], Plan] = {}
        self._direct: dict[torch.dtype, DirectCall] = {}

    def _must_trace(self, activation: torch.Tensor) -> bool:
        """Whether the call must be seen by torch's dispatcher: compiling, fake tensors, modes, autograd, no GPU."""
        return (
            torch.compiler.is_compiling()
            or type(activation) is not torch.Tensor
            or not has_kernels(activation)
            or (activation.requires_grad and torch.is_grad_enabled())
            or torch._C._len_torch_dispatch_stack() > 0
            or torch._C._functorch.is_functorch_wrapped_tensor(activation)
            or torch._C._get_tracing_state() is not None
        )

    def _inputs(self, rows: torch.Tensor) -> Inputs:
        return Inputs(
            activation=rows,
            weight=self.weight,
            weight_scale=self.weight_scale,
            zero_point=self.zero_point,
            bias=self.bias,
            column_order=self.column_order,
            format=self._format_text,
            n=self.n,
            k=self.k,
        )

    def _plan_of(self, activation: torch.dtype, output: torch.dtype | None = None) -> Plan:
        output = output or self._output_dtype or activation
        plan = self._plans.get((activation, output))
        if plan is None:
            session = session_of(self.weight.device)
            plan = session.plan(self._format_text, self.n, self.k, activation, output, self.bias is not None)
            self._plans[activation, output] = plan
        return plan

    def _tensor(self, name: str) -> torch.Tensor | None:
        return self._buffers[name]

    def _set(self, packed: PackedWeight) -> None:
        """Take over a packed weight, its bias in the activations' dtype."""
        for name, tensor in packed.tensors.items():
            self._buffers[name] = tensor
        if packed.bias is not None:
            self._buffers["bias"] = packed.bias.to(self.dtype)
        self._buffers[DOCUMENT_NAME] = packed.document_tensor()
        self.format = packed.format
        self.n, self.k = packed.n, packed.k
        self._format_text = packed.text
        self._hold()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Linear:
        """Module.to, .cuda, .half ...: a cast changes the bias and `dtype`, never the stored scales."""
        device = self.weight.device
        cast = fn(torch.empty(0, dtype=self.dtype, device=device)).dtype
        for name, tensor in self._buffers.items():
            if tensor is None or name == DOCUMENT_NAME:
                continue
            moved = fn(tensor)
            self._buffers[name] = moved if moved.dtype == tensor.dtype else tensor.to(moved.device)
        if cast in ACTIVATION_NAMES:
            self.dtype = cast
        if self.bias is not None:
            self._buffers["bias"] = self.bias.to(self.dtype)
        self._hold()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: plans belong to this process and this device."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_held", "_plans", "_direct")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._hold()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Torch's hook behind `load_state_dict`: format and layout version come from the state."""
        mine = {prefix + name for name in (*TENSOR_NAMES, DOCUMENT_NAME)}
        if not mine & state_dict.keys():
            missing_keys.extend(prefix + name for name in (DOCUMENT_NAME, "weight", "weight_scale"))
            return
        unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and key not in mine)
        try:
            packed = PackedWeight.from_state_dict(state_dict, prefix)
        except WeightError as error:
            error_msgs.append(str(error))
            return
        if (packed.n, packed.k) != (self.n, self.k):
            error_msgs.append(f"{prefix}weight is {packed.n} x {packed.k}, this layer is {self.n} x {self.k}")
            return
        self._set(packed.to(self.weight.device))
