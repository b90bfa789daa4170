"""Tests across the packages; each package's own tests stand beside it.

Imported by pytest, and as `tests.support` by every test that needs a shared maker.
Assumes that the repository root is on the import path (`pythonpath` in pyproject.toml).
"""
