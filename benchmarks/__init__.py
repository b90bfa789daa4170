"""Measurements of speed, one script per question; README.md says how to run them.

Run as `python -m benchmarks.<script>` from the repository root.
Assumes nothing at import: each script says what it needs.
"""
