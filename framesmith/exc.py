"""The errors that users may meet."""

from framesmith.util.errors import BuildError, CompilerMissing, FramesmithError, Unsupported

__all__ = ["BuildError", "CompilerMissing", "FramesmithError", "Unsupported"]
