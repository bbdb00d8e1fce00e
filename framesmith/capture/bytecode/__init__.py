"""Code objects to instructions and back, by one table per Python version."""

from .assemble import assemble, instr
from .decode import Decoded, Handler, Instr, decode, decoded, localsplus_names
