"""Marks everything in this folder `gpu` and skips it, with the reason, where there is no CUDA device.

Called by pytest.
Assumes that test modules here import without a device.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs a CUDA device, torch sees none")
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(skip)
