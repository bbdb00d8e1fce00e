"""Where programs that tests start find their modules."""

import os
from pathlib import Path


def python_path(*first: str | Path) -> str:
    """The value of PYTHONPATH by which a program looks into these folders before those of this process."""
    return os.pathsep.join(filter(None, [*map(str, first), os.environ.get("PYTHONPATH")]))
