"""The errors that users may meet."""

from framesmith.util.errors import (
    BackendError,
    BuildError,
    CompilerMissing,
    ContradictedMark,
    ExportError,
    FramesmithError,
    ShapeError,
    Unsupported,
)

__all__ = ["BackendError", "BuildError", "CompilerMissing", "ContradictedMark", "ExportError", "FramesmithError",
           "ShapeError", "Unsupported"]
