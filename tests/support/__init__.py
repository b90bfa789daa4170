"""Makers, tolerances and references that several test folders share.

Imported by tests as `tests.support.<module>`.
Assumes nothing: each module states what it needs.
"""
