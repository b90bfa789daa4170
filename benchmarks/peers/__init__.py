"""Other people's kernels, measured beside ours; each is optional and absent ones are named, not faked.

Called by benchmarks.dense.
Assumes that a peer is used through its public interface alone.
"""
