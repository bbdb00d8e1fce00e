"""Trackers: the interpreter's representations of values, one file a family."""

from .arrays import Array
from .base import NULL, Args, Bound, CapturedError, Handled, Holder, Kwargs, Lasti, Null, Tracker, by_class
from .checked import CheckedIter, Walk, Way
from .chosen import Chosen
from .constants import CHANGES, FALSE, NONE, TRUE, Const, boolean
from .data import Data, Draw, ListSeen
from .deques import Deque
from .dicts import ClassDict, Dict, DictView, Proxy
from .errors import Error, FrameEnd, Traceback
from .functions import Address, AddressKey, ByRow, Cell, Function, Method, Partial, held
from .functorch_values import Handed, Inner, Pullback
from .instance import InstanceDict
from .iterators import Backward, Generator, Iter, Lazy, Outside, SeqIter, Until, steps
from .keys import Hashed, Number, lasts
from .made import MadeClass, Wrapped
from .modes import FunctionsGuard, InferenceGuard
from .modules import Module
from .objects import DELETED, Object
from .rounds import (
    BranchApart,
    FilledList,
    FilledTuple,
    FirstRoundApart,
    GrowingList,
    LoopIterator,
    LoopUnrolled,
    Place,
    Plan,
    Range,
    RangeIterator,
    SplitItems,
    StackedItems,
    counted,
    enumerated,
    over_slices,
    progression,
    zipped,
)
from .sequences import List, Sequence, Slice, Tuple, is_own_sequence, is_plain_tuple
from .sets import SameElements, Set
from .statics import Builtin, Class, Disabled, PyModule, Scripted, Static
from .supers import Super, super_of
from .symbolic_number import SymbolicNumber, present_value, symbolic
from .symbolic_size import Sym
from .tensors import Tensor, TensorMethod, is_accessor, is_users
from .weak import WeakRef
from .wrapper_tensors import WrapperTensor
