"""What the bits of a quantized checkpoint mean"""

__version__ = "0.1.0"
