"""What runs and what does not: the one statement of validity.
Called before anything is composed, by heuristics, tuners, layers and the support table.
Assumes nothing; every function returns all reasons, each saying what, got, wanted and what to do."""

from __future__ import annotations

from humming_format.text import format_weight
from humming_format.zero_point import ZeroPointKind

from .arch import Arch
from .components import DECODERS
from .config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig
from .errors import UnsupportedConfigError
from .launch import shared_bytes, stage_groups
from .packed_layout import BRICK_ROWS

ACTIVATIONS = ("f16", "bf16")
OUTPUTS = ("f16", "bf16", "f32")
GROUP_SCALES = ("f16", "bf16")
CHANNEL_SCALES = ("f16", "bf16", "f32")
LARGEST_N = 2**30  # counts are 32-bit integers, and rounding them up to tiles must not overflow
LARGEST_K = 2**22  # so are the offsets inside the strips of one block: 4 x 64 rows of 8 bits stay below 2^31 bytes
REGISTERS_PER_MULTIPROCESSOR = 65536
REGISTERS_PER_THREAD = 255
NAMED_BARRIERS = 15  # besides the one of the whole block


def require(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, arch: Arch) -> None:
    """Raise UnsupportedConfigError with every reason why these configs cannot run."""
    reasons = check(layer, compute, tuning, arch)
    if reasons:
        raise UnsupportedConfigError(reasons)


def check(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, arch: Arch) -> tuple[str, ...]:
    """Every reason why these configs cannot run on the target; empty when they can."""
    reasons = check_layer(layer, compute, arch)
    return reasons if reasons else check_tuning(layer, compute, tuning, arch)


def check_layer(layer: LayerConfig, compute: ComputeConfig, arch: Arch) -> tuple[str, ...]:
    """Every reason why no kernel serves this layer and computation on the target."""
    reasons: list[str] = []
    weight, scale = layer.weight, layer.weight.scale
    text = format_weight(weight)
    for name, side, largest in (("n", layer.n, LARGEST_N), ("k", layer.k, LARGEST_K)):
        if not 0 < side <= largest:
            reasons.append(f"{name} of a layer must be positive and at most {largest}; got {side}")
    if layer.operand_bits != 16:
        reasons.append(f"operands of {layer.operand_bits} bits are not served; wanted 16")
    if weight.number.name not in DECODERS:
        reasons.append(
            f"no decoder for weights of {weight.number.name} (format {text}); wanted one of {', '.join(DECODERS)}"
        )
    if weight.zero_point.kind is ZeroPointKind.CONSTANT and weight.zero_point.value != 1 << (weight.number.bits - 1):
        reasons.append(
            f"a constant zero point must be half of the codes; got {weight.zero_point.value} for {weight.number.name}, "
            f"wanted {1 << (weight.number.bits - 1)}, or store it as integer zero points ({weight.number.name}...z)"
        )
    if weight.zero_point.kind is ZeroPointKind.FLOAT:
        reasons.append(
            f"float zero points are not served; got {text}, wanted minimums (minimum = -zero * scale) or integer zero "
            "points"
        )
    if weight.outer_scale is not None:
        reasons.append(
            f"two levels of scales are not served; got {text}, wanted one level, the products rounded once where they "
            "do not fit"
        )
    if scale is None:
        reasons.append(f"weights without a scale are not served; got {text}, wanted a group or channel scale")
    elif scale.group_n != 1:
        reasons.append(
            f"scales shared along n are not served; got {text}, wanted one scale per row, which repeating the shared "
            "value gives exactly"
        )
    else:
        reasons.extend(_check_scale(layer, compute))
    if compute.activation not in ACTIVATIONS:
        reasons.append(f"activations of {compute.activation} are not served; wanted one of {', '.join(ACTIVATIONS)}")
    elif not arch.has(f"mma_sync_{compute.activation}"):
        reasons.append(f"{arch.name} has no {compute.activation} matrix multiply; use f16 activations there")
    if compute.output_number not in OUTPUTS:
        reasons.append(f"outputs of {compute.output_number} are not served; wanted one of {', '.join(OUTPUTS)}")
    elif compute.output_number == "bf16" and not arch.has("mma_sync_bf16"):
        reasons.append(f"{arch.name} has no bf16 arithmetic; use f16 or f32 outputs there")
    return tuple(reasons)


def _check_scale(layer: LayerConfig, compute: ComputeConfig) -> list[str]:
    weight, scale = layer.weight, layer.weight.scale
    if scale is None:
        return []
    text = format_weight(weight)
    name = scale.number.name
    reasons = []
    if name not in (GROUP_SCALES if layer.scale_is_grouped else CHANNEL_SCALES):
        kind = "group scales, and channel scales with a minimum," if layer.scale_is_grouped else "channel scales"
        wanted = GROUP_SCALES if layer.scale_is_grouped else CHANNEL_SCALES
        reasons.append(f"{kind} of {name} are not served; got {text}, wanted one of {', '.join(wanted)}")
    if scale.group_k is not None and not stage_sizes(scale.group_k):
        reasons.append(
            f"scale groups of {scale.group_k} along k are not served; wanted a multiple of 16 that divides or is "
            f"divided by a stage of {', '.join(map(str, STAGE_SIZES))}"
        )
    minimum = weight.zero_point.number
    if minimum is not None and minimum.name != name:
        reasons.append(f"minima must have the number of their scales; got {minimum.name} and {name} in {text}")
    return reasons


STAGE_SIZES = (64, 128, 192)
"""Lengths of a pipeline stage along k."""


def stage_sizes(group_k: int | None) -> tuple[int, ...]:
    """The stage sizes that go with a scale group: whole groups in a stage or whole stages in a group."""
    if group_k is None:
        return STAGE_SIZES
    if group_k % 16:
        return ()
    return tuple(size for size in STAGE_SIZES if size % group_k == 0 or group_k % size == 0)


def scale_places(layer: LayerConfig, compute: ComputeConfig) -> tuple[ScalePlace, ...]:
    """Where the scale of a layer may be multiplied, the most exact place first."""
    if not layer.scale_is_grouped:
        return (ScalePlace.EPILOGUE,)
    if layer.weight.zero_point.kind is ZeroPointKind.MINIMUM:
        return (ScalePlace.OPERAND,)
    scale = layer.weight.scale
    if scale is not None and scale.number.name == "bf16" and compute.activation == "f16":
        return (ScalePlace.ACCUMULATOR,)  # a bf16 scale may lie outside the range of f16
    return (ScalePlace.ACCUMULATOR, ScalePlace.OPERAND)


POSITIVE_FIELDS = (
    "block_n",
    "block_m",
    "stage_k",
    "warps_n",
    "warps_m",
    "warps_k",
    "raster_m",
    "blocks_per_multiprocessor",
)


def check_tuning(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, arch: Arch) -> tuple[str, ...]:
    """Every reason why a tuning does not fit a layer that check_layer accepts."""
    reasons: list[str] = []
    for name in POSITIVE_FIELDS:
        if getattr(tuning, name) < 1:
            reasons.append(f"{name} must be positive; got {getattr(tuning, name)}")
    if tuning.stages < 2:
        reasons.append(f"a pipeline has a stage in use and one in flight, so 2 stages or more; got {tuning.stages}")
    if tuning.split_k < 0:
        reasons.append(f"split_k must be 0 (Stream-K) or the number of blocks of a tile; got {tuning.split_k}")
    if reasons:
        return tuple(reasons)
    if tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        reasons.extend(_check_specialized(tuning, arch))
    if tuning.cluster_k not in (1, 2):
        reasons.append(f"cluster_k is 1 or 2; got {tuning.cluster_k}")
    elif tuning.cluster_k == 2:
        if tuning.pipeline is not Pipeline.WARP_SPECIALIZED:
            reasons.append(
                "only warp-specialised kernels exchange sums in a cluster; got cluster_k = 2 with multistage"
            )
        if tuning.is_split or tuning.block_m % 16:
            reasons.append(
                "a cluster halves k and the tokens of a tile, so split_k is 1 and block_m a multiple of 16; got "
                f"split_k = {tuning.split_k}, block_m = {tuning.block_m}"
            )
    if tuning.block_n % (16 * tuning.warps_n) or (tuning.block_n % BRICK_ROWS and BRICK_ROWS % tuning.block_n):
        reasons.append(
            f"block_n must be 16, 32 or a multiple of {BRICK_ROWS}, with 16 rows or more for each of the warps_n "
            f"warps; got block_n = {tuning.block_n}, warps_n = {tuning.warps_n}"
        )
    if tuning.block_m % (8 * tuning.warps_m):
        reasons.append(
            f"block_m must be a multiple of 8 x warps_m; got block_m = {tuning.block_m}, warps_m = {tuning.warps_m}"
        )
    if tuning.stage_k not in stage_sizes(layer.group_k):
        reasons.append(
            f"stage_k must be one of {', '.join(map(str, stage_sizes(layer.group_k)))} for scale groups of "
            f"{layer.group_k}; got {tuning.stage_k}"
        )
    if tuning.threads > 1024:
        reasons.append(f"a block has at most 32 warps; got {tuning.threads // 32}, lower warps_n, warps_m or warps_k")
    if tuning.warps_n * tuning.warps_m > 1 and tuning.warps_k > NAMED_BARRIERS:
        reasons.append(f"groups of several warps need a barrier each, at most {NAMED_BARRIERS}; got {tuning.warps_k}")
    if tuning.scale_place not in scale_places(layer, compute):
        places = ", ".join(place.name for place in scale_places(layer, compute))
        reasons.append(
            f"scale_place must be one of {places} for {format_weight(layer.weight)} with {compute.activation} "
            f"activations; got {tuning.scale_place.name}"
        )
    if reasons:
        return tuple(reasons)
    shared = shared_bytes(layer, tuning)
    if shared > arch.shared_memory:
        reasons.append(
            f"shared memory of a block on {arch.name} is {arch.shared_memory} bytes; this tuning needs {shared}, lower "
            "stages, block_m, block_n or warps_k"
        )
    reserved = arch.shared_memory_per_multiprocessor - arch.shared_memory  # by the system, for each block
    together = tuning.blocks_per_multiprocessor * (shared + reserved)
    if tuning.blocks_per_multiprocessor > 1 and together > arch.shared_memory_per_multiprocessor:
        reasons.append(
            f"shared memory of a multiprocessor of {arch.name} is {arch.shared_memory_per_multiprocessor} bytes; "
            f"{tuning.blocks_per_multiprocessor} blocks of this tuning need {together}, lower blocks_per_multiprocessor"
        )
    if tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        return tuple(reasons)  # its registers are fixed by setmaxnreg; 256 tokens fit
    registers = estimated_registers(layer, tuning) + (8 if arch.number >= 100 else 0)  # Blackwell's ptxas takes more
    threads = tuning.threads * tuning.blocks_per_multiprocessor
    limit = min(REGISTERS_PER_THREAD, REGISTERS_PER_MULTIPROCESSOR // threads)
    if registers > limit:
        reasons.append(
            f"a thread may have {limit} registers here; this tuning needs about {registers}, lower the tile of a warp "
            "or the number of warps"
        )
    return tuple(reasons)


def _check_specialized(tuning: TuningConfig, arch: Arch) -> list[str]:
    reasons = []
    if not arch.has("wgmma"):
        reasons.append(
            f"warp-specialised kernels need wgmma, which {arch.name} does not have; use the multistage pipeline"
        )
    fixed = {"block_n": 128, "warps_n": 8, "warps_m": 1, "blocks_per_multiprocessor": 1}
    wrong = [f"{name} = {getattr(tuning, name)}" for name, value in fixed.items() if getattr(tuning, name) != value]
    if wrong:
        wanted = ", ".join(f"{name} = {value}" for name, value in fixed.items())
        reasons.append(f"warp-specialised kernels have {wanted}; got {', '.join(wrong)}")
    if tuning.warps_k != 1 and (tuning.warps_k != 2 or tuning.cluster_k != 2 or tuning.block_m > 64):
        reasons.append(
            "warp-specialised kernels have warps_k = 1, or 2 with cluster_k = 2 and up to 64 tokens; got "
            f"warps_k = {tuning.warps_k}, cluster_k = {tuning.cluster_k}, block_m = {tuning.block_m}"
        )
    if tuning.block_m > 256:
        reasons.append(f"a wgmma has at most 256 tokens; got block_m = {tuning.block_m}")
    if tuning.scale_place is ScalePlace.ACCUMULATOR:
        reasons.append("warp-specialised kernels multiply group scales onto the operand; got scale_place = ACCUMULATOR")
    if tuning.stage_k % 128 and tuning.stage_k != 64:
        reasons.append(f"warp-specialised kernels have stages of 64 or 128 k; got stage_k = {tuning.stage_k}")
    return reasons


def estimated_registers(layer: LayerConfig, tuning: TuningConfig) -> int:
    """Registers that a thread needs: sums, tokens, codes, group values, and what ptxas of CUDA 12.9 to 13.5 was seen to
    add for addresses, for several groups in a stage, for codes whose sign is moved or that fill a byte."""
    atoms = tuning.block_n // 16 // tuning.warps_n
    tiles = tuning.block_m // 8 // tuning.warps_m
    sums = 4 * atoms * tiles * (2 if tuning.scale_place is ScalePlace.ACCUMULATOR else 1)
    group_values = {ScalePlace.EPILOGUE: 0, ScalePlace.ACCUMULATOR: 2, ScalePlace.OPERAND: 4}[tuning.scale_place]
    registers = sums + 4 * tiles + 4 * atoms + group_values * atoms + 56
    if sums >= 64:
        accumulator = tuning.scale_place is ScalePlace.ACCUMULATOR
        registers += (32 if accumulator else 16) * (stage_groups(layer, tuning) > 1) + 16 * layer.weight.number.signed
        registers += 32 * (accumulator and tiles >= 8) + 16 * (layer.weight.number.bits == 8 and atoms * tiles >= 32)
    return registers


__all__ = [
    "check",
    "check_layer",
    "check_tuning",
    "estimated_registers",
    "require",
    "scale_places",
    "stage_sizes",
]
