"""Errors of calls on fakes: eager's own, or ours."""

from __future__ import annotations

_OWN = __file__.rsplit("/", 2)[0]
_FAULTS = (AssertionError, AttributeError, KeyError, NameError, TypeError)
_NO_DATA = "data is not allocated yet"
"""What C++ says of a fake whose elements it asks for."""


def is_own_fault(error: Exception) -> bool:
    """Return whether an error in a call on fakes says that we cannot record it, rather than what eager would say."""
    if _NO_DATA in str(error):
        return True
    if not isinstance(error, _FAULTS) or error.__traceback__ is None:
        return False
    tb = error.__traceback__
    while tb.tb_next is not None:
        tb = tb.tb_next
    code = tb.tb_frame.f_code
    return tb is not error.__traceback__ and code.co_filename.startswith(_OWN) and code.co_name != "true_error"
