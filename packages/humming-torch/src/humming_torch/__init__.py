"""Quantized linear layers for PyTorch, on kernels composed and compiled on demand"""

__version__ = "0.1.0"
