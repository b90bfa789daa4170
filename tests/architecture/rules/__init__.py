"""Checks that take a tree and return the sentences that say what is wrong with it.

Called by the tests of this folder, on the repository and on small bad trees that prove each rule can fail.
Assumes nothing about the installed packages, except for `light_import`, which imports the tree it is given.
"""
