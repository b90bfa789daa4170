"""Which CUDA text, which tile and which launch a quantized layer needs: composed here as plain data.
Called by humming_torch and by tooling; start at compose.compose and heuristic.choose.
Assumes humming_format descriptors; imports neither torch nor CUDA."""

__version__ = "0.1.0"
