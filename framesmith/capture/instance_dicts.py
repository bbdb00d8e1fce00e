"""Instance dicts as values: a dict reached by a path of its own is identified with its object, and writes to it are
writes to the object."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .session import Session
from .sources import Attr, Source


class Spaces(Session):
    """The part of the session that knows whose instance dict a dict is."""

    def __init__(self) -> None:
        self._owners: dict[int, t.Object] = {}
        """Objects from outside, by the addresses of their instance dicts."""
        self._views: dict[int, t.InstanceDict] = {}

    def instance_dict(self, obj: t.Object) -> t.InstanceDict:
        """`obj.__dict__`"""
        found = self._views.get(id(obj))
        if found is None:
            found = self._views[id(obj)] = t.InstanceDict(obj)
        return found

    def register_owner(self, obj: t.Object) -> None:
        """Register an object from outside as the owner of its instance dict. A module and its compiled view share
        one."""
        at = id(obj.own)
        if at in self.seen or at in self._owners and not isinstance(obj, t.Module):
            raise Unsupported("an instance dict that is used apart from its object")
        self._owners[at] = obj

    def as_instance_dict(self, value: dict[Any, Any], source: Source | None) -> t.Tracker | None:
        """Return a dict from outside as the instance dict of a known object; None if it belongs to none."""
        owner = self._owners.get(id(value))
        if owner is None:
            return None
        if owner.source is None:
            self.guard(source, "id", value)
        else:
            self.guard(source, "same", Attr(owner.source, "__dict__"))
        return self.instance_dict(owner)
