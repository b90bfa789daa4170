"""NVRTC for the tests that compile.

Called by pytest.
Assumes nothing: without cuda-bindings or an NVRTC library, tests that ask for it are skipped.
"""

import pytest

from tests.support.nvrtc_direct import DirectNvrtc, direct_nvrtc


@pytest.fixture(scope="session")
def nvrtc() -> DirectNvrtc:
    found = direct_nvrtc()
    if found is None:
        pytest.skip("no NVRTC: install cuda-bindings and nvidia-cuda-nvrtc")
    return found
