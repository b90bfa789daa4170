"""The one kernel argument of a dense launch, patched in place, and the launch itself.

Called by `Plan.run`.
Assumes the field order of `humming_kernels.launch`; the lock keeps two threads from mixing their arguments.
"""
