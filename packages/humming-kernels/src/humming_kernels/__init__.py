"""Which CUDA text, which tile and which launch a quantized layer needs"""

__version__ = "0.1.0"
