"""Torch operators of the package, under `torch.ops.humming_torch`.

Importing a file of this folder registers its operators; `humming_torch` does so on import.
Assumes torch.library.
"""
