"""One way to say that a rule found nothing: all its sentences are the failure's text.

Called by every test of this folder.
Assumes problems as sentences that need no traceback.
"""

from collections.abc import Sequence

import pytest


def nothing_wrong(problems: Sequence[str]) -> None:
    """Fail with every problem on a line of its own."""
    if problems:
        pytest.fail("\n".join(("", *problems)), pytrace=False)
