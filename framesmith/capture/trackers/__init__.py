"""What the interpreter holds in place of values, one file a family."""

from .base import NULL, Bound, CapturedError, Handled, Lasti, Null, Tracker
from .constants import FALSE, NONE, TRUE, Const, boolean
from .dicts import Dict, DictView, stored_key
from .errors import Error, Traceback
from .functions import Cell, Function, Method, Partial
from .instance import InstanceDict
from .iterators import Generator, Iter, Lazy, Outside, SeqIter, enumerated, filtered, mapped, zipped
from .keys import Hashed, Number
from .late import Late, late
from .modes import InferenceGuard
from .modules import Module
from .objects import DELETED, Object, Super
from .sequences import List, Sequence, Slice, Tuple
from .sets import SameElements, Set
from .statics import Builtin, Class, Disabled, PyModule, Static
from .tensors import Sym, Tensor, TensorMethod

__all__ = [
    "Bound", "Builtin", "CapturedError", "Cell", "Class", "Const", "DELETED", "Dict", "DictView", "Disabled", "Error", "FALSE",
    "Function", "Generator", "Handled", "Hashed", "InferenceGuard", "InstanceDict", "Iter", "Lasti", "Late", "Lazy", "List", "Method",
    "Module", "NONE", "NULL", "Null", "Number", "Object", "Outside", "Partial", "PyModule", "SameElements", "SeqIter", "Sequence",
    "Set", "Slice", "Static", "Super", "Sym", "TRUE", "Tensor", "TensorMethod", "Traceback", "Tracker", "Tuple", "boolean",
    "enumerated", "filtered", "late", "mapped", "stored_key", "zipped",
]
