"""The errors that users may meet."""

from framesmith.util.errors import BackendError, BuildError, CompilerMissing, ExportError, FramesmithError, Unsupported

__all__ = ["BackendError", "BuildError", "CompilerMissing", "ExportError", "FramesmithError", "Unsupported"]
