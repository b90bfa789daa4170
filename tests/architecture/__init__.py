"""The rules of the architecture, as tests.

Run by pytest; the checks themselves are plain functions in `tests.architecture.rules`.
Assumes a git checkout: the rules about tracked files ask git which files those are.
"""
