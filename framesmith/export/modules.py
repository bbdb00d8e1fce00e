"""Programs as modules: one with all of the state, or a tree of modules as the original was."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from framesmith.export.program import STATE, Runnable


def register(root: nn.Module, path: str, kind: str, x: torch.Tensor) -> None:
    """Put a tensor at a path, with modules on the way."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, nn.Module())
        root = getattr(root, parent)
    if kind == "parameter":
        root.register_parameter(name, x if isinstance(x, nn.Parameter) else nn.Parameter(x, x.is_floating_point()))
    else:
        root.register_buffer(name, x, persistent=kind == "buffer")


class ExportedModule(nn.Module):
    """A program with its state as parameters and buffers, of the names that they have in the original."""

    def __init__(self, program: Runnable) -> None:
        super().__init__()
        self._program = program
        self._graph = fx.GraphModule(nn.Module(), program.graph)
        for i in program.inputs:
            if i.kind in STATE:
                register(self, i.target, i.kind, program.state[i.target])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self._program
        leaves = program.bind(args, kwargs)
        given = [leaves[i.target] if i.kind == "input" else attrgetter(i.target)(self) for i in program.inputs]
        out = self._graph(*given)
        return program.finish(out, leaves, lambda path: attrgetter(path)(self))


# --- a tree of modules

class Unflattened(nn.Module):
    """The root of an unflattened program: `call` runs its graph, in which the modules are called."""

    def __init__(self, program: Runnable, graph: fx.GraphModule) -> None:
        super().__init__()
        self._program = program
        self.__dict__["_graph"] = graph
        for name, child in graph.named_children():
            self.add_module(name, child)
        for name, x in list(graph.named_parameters(recurse=False)):
            self.register_parameter(name, x)
        for name, buffer in list(graph.named_buffers(recurse=False)):
            self.register_buffer(name, buffer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self._program
        leaves = program.bind(args, kwargs)
        out = self.__dict__["_graph"](*[leaves[i.target] for i in program.inputs if i.kind == "input"])
        return program.finish(out, leaves, lambda path: attrgetter(path)(self))


def unflattened(program: Runnable) -> nn.Module:
    """Return the program as a tree of modules."""
    places = {i.name: i for i in program.inputs}
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    owner = {node: places[node.name] for node in program.graph.nodes if node.op == "placeholder"}
    scope = _Scope(program, "", 1, owner)
    arguments = [n for n in owner if owner[n].kind == "input"]
    returned = next(n for n in program.graph.nodes if n.op == "output").args[0]
    return Unflattened(program, scope.build(nodes, arguments, list(returned)))  # type: ignore[arg-type]


class _Scope:
    """Makes the module of one call of a module: `path` its own, `depth` how many modules are around what it calls."""

    def __init__(self, program: Runnable, path: str, depth: int, owner: dict[fx.Node, Any]) -> None:
        self.program = program
        self.path = path
        self.depth = depth
        self.owner = owner
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[fx.Node, fx.Node] = {}

    def build(self, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[Any]) -> fx.GraphModule:
        for node in inputs:
            self.values[node] = self.graph.placeholder(node.name)
        inside = set(nodes)
        for call, part in self._parts(nodes):
            if call is None:
                for node in part:
                    self.values[node] = self._copied(node)
            else:
                self._child(call, part, inside)
        self.graph.output(tuple([self._value(v) for v in outputs]))
        return fx.GraphModule(self.root, self.graph)

    def _parts(self, nodes: list[fx.Node]) -> Iterator[tuple[tuple[str, int] | None, list[fx.Node]]]:
        """Runs of nodes of one call of a module below, and of nodes of this one."""
        part: list[fx.Node] = []
        last: Any = None
        for node in nodes:
            modules = node.meta.get("modules", ())
            call = modules[self.depth] if len(modules) > self.depth else None
            if part and call != last:
                yield last, part
                part = []
            part.append(node)
            last = call
        if part:
            yield last, part

    def _child(self, call: tuple[str, int], part: list[fx.Node], inside: set[fx.Node]) -> None:
        path = call[0]
        mine = set(part)
        taken = dict.fromkeys(a for n in part for a in n.all_input_nodes if a not in mine)
        state = [a for a in taken if a in self.owner and self.owner[a].kind in STATE
                 and str(self.owner[a].target).startswith(path + ".")]
        inputs = [a for a in taken if a not in state]
        outputs = [n for n in part if any(u not in mine for u in n.users)]
        child = _Scope(self.program, path, self.depth + 1, self.owner).build(part, inputs, list(outputs))
        name = self._place(path, child)
        made = self.graph.call_module(name, tuple([self._value(v) for v in inputs]))
        for k, node in enumerate(outputs):
            self.values[node] = self.graph.call_function(_item, (made, k))

    def _place(self, path: str, child: nn.Module) -> str:
        """Add a child at its path below this module; further calls of it get a number."""
        name = path.removeprefix(self.path + ".") if self.path else path
        *parents, last = name.split(".")
        at: nn.Module = self.root
        for parent in parents:
            if not hasattr(at, parent):
                at.add_module(parent, nn.Module())
            at = getattr(at, parent)
        number, free = 0, last
        while isinstance(getattr(at, free, None), fx.GraphModule):
            number += 1
            free = f"{last}@{number}"
        if isinstance(old := getattr(at, free, None), nn.Module):  # what has only held others so far
            for key, inner in old.named_children():
                child.add_module(key, inner)
        at.add_module(free, child)
        return ".".join([*parents, free])

    def _value(self, x: Any) -> Any:
        """Return the node for a value in this module's graph; a tensor of the state is read."""
        if not isinstance(x, fx.Node):
            return x
        if x not in self.values:
            i = self.owner[x]
            path = str(i.target)
            name = path.removeprefix(self.path + ".") if self.path else path
            register(self.root, name, i.kind, self.program.state[i.target])
            self.values[x] = self.graph.get_attr(name)
        return self.values[x]

    def _copied(self, node: fx.Node) -> fx.Node:
        made = self.graph.node_copy(node, self._value)
        made.meta = dict(node.meta)
        return made


def _item(values: Any, k: int) -> Any:
    return values[k]
