"""The table of targets against the CUDA programming guide, NVRTC and the assembler.

Run by pytest.
Assumes the guide's table of technical specifications per compute capability, restated in FACTS.
"""

import pytest
from humming_kernels.arch import ARCHS, arch_of_capability, find_arch
from humming_kernels.errors import KernelError, UnknownArchError

from tests.support.kernel_cases import MULTIPROCESSORS
from tests.support.nvrtc_direct import DirectNvrtc, NvrtcRefusedError

# Capability -> KiB of shared memory that one block may use, KiB of a multiprocessor.
FACTS = {
    (7, 5): (64, 64),
    (8, 0): (163, 164),
    (8, 6): (99, 100),
    (8, 7): (163, 164),
    (8, 9): (99, 100),
    (9, 0): (227, 228),
    (10, 0): (227, 228),
    (10, 3): (227, 228),
    (12, 0): (99, 100),
    (12, 1): (99, 100),
}

# Four f32 sums, four registers of A, two of B.
ROW_COLUMN = "{f, f, f, f}, {r, r, r, r}, {r, r}, {f, f, f, f}"

# Family -> one instruction of it; unit_of declares its registers.
INSTRUCTIONS = {
    "mma_sync_f16": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {f, f, f, f}, {r, r}, {r}, {f, f, f, f};",
    "mma_sync_int8": "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {r, r}, {r}, {r}, {r, r};",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r, r2, r3, r4}, [r5];",
    "mma_sync_bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " + ROW_COLUMN + ";",
    "mma_sync_fp8": "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 " + ROW_COLUMN + ";",
    "cp_async": "cp.async.cg.shared.global [r], [l], 16;",
    "cache_hint": "createpolicy.fractional.L2::evict_first.b64 l, 1.0;",
    "wgmma": "wgmma.fence.sync.aligned;",
    "bulk_copy": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [l], 16, [r];",
    "tensor_map": "prefetch.tensormap [l];",
    "cluster": "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 40;",
    "tcgen05": "tcgen05.wait::ld.sync.aligned;",
    "mma_block_scale": (
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
        + ROW_COLUMN
        + ", r, {h, h}, r, {h, h};"
    ),
}


def unit_of(instruction: str) -> str:
    body = (
        "{.reg .f32 f; .reg .b32 r, r2, r3, r4, r5; .reg .b64 l; .reg .b16 h; "
        f"mov.f32 f, 0f00000000; mov.b32 r, 0; mov.b32 r5, 0; mov.b64 l, 0; mov.b16 h, 0; {instruction}}}"
    )
    return f'extern "C" __global__ void __launch_bounds__(128) kernel() {{ asm volatile("{body}" ::: "memory"); }}'


def test_the_table_holds_the_facts():
    assert {arch.capability: (arch.shared_memory, arch.shared_memory_per_multiprocessor) for arch in ARCHS} == {
        capability: (block * 1024, total * 1024) for capability, (block, total) in FACTS.items()
    }


def test_names_and_numbers_follow_the_capability():
    """From compute capability 9.0 on, kernels use features of one architecture alone: the suffix a."""
    for arch in ARCHS:
        major, minor = arch.capability
        assert arch.name == f"sm_{major}{minor}" + ("a" if major >= 9 else "")
        assert arch.number == 10 * major + minor
        assert find_arch(arch.name) is arch and arch_of_capability(major, minor) is arch
    assert [arch.number for arch in ARCHS] == sorted({arch.number for arch in ARCHS})


@pytest.mark.parametrize("name", ["sm_90", "sm_70", "", "90a", "sm_130a"])
def test_an_unknown_target_lists_the_known_ones(name):
    with pytest.raises(UnknownArchError, match="sm_75, sm_80") as caught:
        find_arch(name)
    assert repr(name) in str(caught.value) and isinstance(caught.value, KernelError)


@pytest.mark.parametrize("capability", [(7, 0), (9, 1), (13, 0), (0, 0)])
def test_an_unknown_capability_lists_the_known_ones(capability):
    with pytest.raises(UnknownArchError, match="{}.{}".format(*capability)) as caught:
        arch_of_capability(*capability)
    assert "12.1" in str(caught.value)


def test_every_target_has_devices_in_the_test_table():
    assert list(MULTIPROCESSORS) == [arch.name for arch in ARCHS]


def test_families_of_later_generations_are_kept():
    """What mma.sync kernels stand on is never lost; wgmma and tcgen05 are of one generation."""
    kept = {"mma_sync_f16", "mma_sync_bf16", "ldmatrix", "cp_async", "cache_hint"}
    for arch in ARCHS[1:]:
        assert kept <= arch.families, arch.name
    assert [arch.name for arch in ARCHS if arch.has("wgmma")] == ["sm_90a"]
    assert [arch.name for arch in ARCHS if arch.has("tcgen05")] == ["sm_100a", "sm_103a"]
    assert [arch.name for arch in ARCHS if arch.has("mma_block_scale")] == ["sm_120a", "sm_121a"]


@pytest.mark.parametrize("family", sorted(INSTRUCTIONS))
def test_families_are_what_the_assembler_takes(nvrtc: DirectNvrtc, family):
    taken, listed = [], []
    for arch in ARCHS:
        if not nvrtc.knows(arch.name):
            continue
        if arch.has(family):
            listed.append(arch.name)
        try:
            nvrtc.build(unit_of(INSTRUCTIONS[family]), {}, arch.name)
        except NvrtcRefusedError as error:
            assert "ptxas" in str(error) or "not supported" in str(error), error
        else:
            taken.append(arch.name)
    assert listed == taken


@pytest.mark.parametrize(
    ("family", "instruction"),
    [
        ("mma_sync_int4", "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {r, r}, {r}, {r}, {r, r};"),
        ("mbarrier", ".reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [r], r;"),
    ],
)
def test_a_listed_family_assembles(nvrtc: DirectNvrtc, family, instruction):
    """These the assembler also takes where the table does not list them (int4 is emulated after Ada)."""
    for arch in ARCHS:
        if arch.has(family) and nvrtc.knows(arch.name):
            nvrtc.build(unit_of(instruction), {}, arch.name)
