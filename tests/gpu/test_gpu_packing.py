"""Rounding, packing and the quickstart on a device: the same bits as on the CPU, and the verdict of the command.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device; the quickstart also needs rich.
"""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
import torch
from humming_format.text import parse_weight
from humming_torch.convert import quantize
from humming_torch.modules import Linear
from humming_torch.pack import pack, unpack

from tests.support.tiny_gptq import write_tiny_gptq

TEXTS = ("u4g128", "u4g64z", "u4g32m:bf16", "u8g128:bf16", "u8cz:f32", "e0m3g128:bf16", "e2m1g32")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("n", "k"), [(130, 232), (576, 1536)])
def test_rounding_and_packing_give_the_bits_of_the_cpu(text: str, n: int, k: int) -> None:
    real = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    here, there = quantize(real, parse_weight(text)), quantize(real.cuda(), parse_weight(text))
    for name in ("codes", "scale", "zero_point", "minimum"):
        one, other = getattr(here, name), getattr(there, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other.cpu()), name
    assert torch.equal(here.dequantize().view(torch.int32), there.dequantize().cpu().view(torch.int32))
    packed, packed_there = pack(here), pack(there)
    for name, tensor in packed.tensors.items():
        other = packed_there.tensors[name]
        assert (tensor is None) == (other is None)
        assert tensor is None or torch.equal(tensor, other.cpu()), name
    assert torch.equal(unpack(packed_there).codes.cpu(), here.codes)


def test_packing_needs_its_output_and_one_chunk() -> None:
    """A chunk is 64 MiB unless set otherwise; all at once would take several times the output."""
    weight = quantize(torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16), parse_weight("u4g128"))
    pack(quantize(torch.randn(64, 64, device="cuda"), parse_weight("u4g128")))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    packed = pack(weight)
    extra = torch.cuda.max_memory_allocated() - before - packed.nbytes
    assert extra <= 80 << 20, f"{extra / 2**20:.0f} MiB beyond the output"


def test_a_layer_runs_in_a_thread_that_has_used_no_device() -> None:
    """The driver's launch needs a current context, which a new thread does not have."""
    layer = Linear.from_float(torch.randn(128, 256).cuda(), "u4g128").prepare(8)
    rows = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    wanted = layer(rows)
    out = torch.empty_like(wanted)
    torch.cuda.synchronize()
    failed: list[Exception] = []

    def work() -> None:
        try:
            layer(rows, out=out)
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert torch.equal(out, wanted)


def test_quickstart(tmp_path: Path) -> None:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=118)
    from humming_torch.quickstart import Quickstart

    assert Quickstart(path=write_tiny_gptq(tmp_path / "model"), device=torch.device("cuda")).run(console)
    text = console.file.getvalue()
    assert "verdict: OK" in text and torch.cuda.get_device_name() in text
    assert "torch.mm us" in text and "share of bandwidth" in text
