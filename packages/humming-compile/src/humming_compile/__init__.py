"""CUDA source text in, cubin out, kept on disk"""

__version__ = "0.1.0"
