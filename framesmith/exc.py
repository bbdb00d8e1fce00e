"""The errors that users may meet."""

from framesmith.util.errors import (
    BackendError,
    BuildError,
    BundleError,
    CompilerMissing,
    ContradictedMark,
    DivergedRanks,
    ExportError,
    FramesmithError,
    PackageError,
    ShapeError,
    Unsupported,
)

__all__ = ["BackendError", "BuildError", "BundleError", "CompilerMissing", "ContradictedMark", "DivergedRanks",
           "ExportError", "FramesmithError", "PackageError", "ShapeError", "Unsupported"]
