"""What humming-format can describe and no kernel serves is refused by name, never computed as something else.

Run by pytest.
Assumes neither NVRTC nor a GPU.
"""

import pytest
from humming_format.text import parse_weight
from humming_kernels.arch import ARCHS
from humming_kernels.config import ComputeConfig, LayerConfig
from humming_kernels.rules import check_layer


@pytest.mark.parametrize("activation", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("u4g128*t", "two levels of scales are not served; got u4g128*t"),
        ("u4g128*c", "two levels of scales"),
        ("u4c*t", "two levels of scales"),
        ("e2m1g32*t", "two levels of scales"),
        ("e2m1g16:e4m3*t", "two levels of scales"),
        ("u4g128f", "float zero points are not served; got u4g128f"),
        ("u4cf:f32", "float zero points"),
        ("nf4g64", "no decoder for weights of nf4"),
        ("bnbfp4g64", "no decoder for weights of bnbfp4"),
        ("iq4nlg32", "no decoder for weights of iq4nl"),
        ("u4g32m:f32", "of f32 are not served"),
        ("e4m3b128x128:f32", "scales shared along n are not served"),
        ("e2m1g32:e8m0", "of e8m0 are not served"),
    ],
)
def test_formats_without_a_kernel_are_refused(text: str, words: str, activation: str) -> None:
    layer = LayerConfig(n=128, k=256, weight=parse_weight(text))
    for arch in ARCHS:
        assert any(words in reason for reason in check_layer(layer, ComputeConfig(activation=activation), arch))
