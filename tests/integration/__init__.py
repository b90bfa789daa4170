"""Tests that cross the packages, and tests that one package works without the others.

Run by pytest.
Assumes no GPU.
"""
