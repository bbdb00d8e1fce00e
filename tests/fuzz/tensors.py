"""Templates of expressions over tensors.

Kinds T0, T1 and T2 are tensors of that many dimensions, each of the call's size n, so that all of them broadcast; I1
holds indices below n, B1 truth values.
"""

from __future__ import annotations

from tests.fuzz.writer import Row, rows

_POINTWISE = """
        4 (<{0}> + <{0}>)
        3 (<{0}> * <{0}>)
        2 (<{0}> - <{0}>)
        2 (<{0}> * <-3..3>)
        2 (<{0}> + <int>)
        1 (<int> - <{0}>)
        1 (<{0}> * <float>)
        1 (<{0}> / 2)
        1 (-<{0}>)
        3 torch.tanh(<{0}>)
        2 <{0}>.sin()
        1 <{0}>.relu()
        1 <{0}>.abs()
        1 torch.sigmoid(<{0}>)
        1 <{0}>.clamp(-1, 1)
        1 torch.where(<{0}> > 0, <{0}>, <{0}>)
        1 torch.maximum(<{0}>, <{0}>)
        1 <{0}>.clone()
        1 <{0}>.detach()
        1 torch.zeros_like(<{0}>)
        1 torch.full_like(<{0}>, <int>)
        1 <{0}>.masked_fill(<{0}> > 0, 0.5)
        1 (<{0}> if <bool> else <{0}>)
        1 <{0}!>.add_(1)
        1 <{0}!>.mul_(0.5)
        1 (<{0}> + <T0>)
        r1 <{0}>.to(torch.float64)
        1 <{0}>.square().float()
        1 sum([<{0}>, <{0}>])
        1 torch.nn.functional.softplus(<{0}>)
        b1 broken(<{0}>)
"""

TABLES: dict[str, list[Row]] = {kind: rows(text) for kind, text in {
    "leaf T0": """
        1 torch.tensor(0.5)
        1 torch.ones(())""",
    "leaf T1": """
        1 torch.ones(n)
        1 (torch.arange(n) * 0.5)
        1 torch.linspace(-1, 1, n)""",
    "leaf T2": """
        1 torch.zeros(n, n)
        1 torch.eye(n)""",
    "leaf I1": "1 torch.arange(n)",
    "leaf B1": "1 (torch.arange(n) > 1)",
    "T0": _POINTWISE.format("T0") + """
        2 <T1>.sum()
        1 <T1>.mean()
        1 <T2>.sum()
        1 <T1>.max()
        2 <T1>[<0..2>]
        1 <T2>[<0..2>, <0..2>]
        1 (<T1> @ <T1>)""",
    "T1": _POINTWISE.format("T1") + """
        2 <T2>[<0..2>]
        1 <T2>[:, <0..2>]
        1 <T2>[<int> % 3]
        1 <T2>.sum(<0..1>)
        1 <T2>.mean(dim=-1)
        1 <T2>.max(dim=<0..1>).values
        1 (<T2> @ <T1>)
        1 <T2>.diagonal()
        1 <T1>.flip(0)
        1 <T1>.cumsum(0)
        1 <T1>.softmax(0)
        1 <T1>.view(-1)
        1 <T1>[:]
        1 <T1>[<I1>.clamp(0, 2)]
        1 <T1>.sort()[0]
        1 torch.roll(<T1>, <1..2>)
        1 torch.cat([<T1>, <T1>])[:n]
        1 torch.stack([<T1>, <T1>]).sum(0)
        r1 <tensors!>[<0..2>]
        r1 <tensors!>[-1]
        2 sum(<tensors>, <T1>)
        1 [*<tensors>, <T1>][<-1..0>]
        r1 <tdict!>[<key>]
        1 <tdict!>.get(<key>, <T1>)
        1 <pair!>[1]
        2 <ftt!>(<T1>)
        1 <T1>.reshape(1, -1).squeeze(0)
        1 torch.nn.functional.relu(<T1>)
        1 <T1>.expand(n, n)[<0..1>]
        1 functools.reduce(lambda <bind:T1>, <bind:T1>: <T1>, <^tensors>, <^T1>)
        1 torch.tensor([<int>, <int>, <int>, <float>])[:n]
        1 <B1>.float()""",
    "T2": _POINTWISE.format("T2") + """
        2 <T2>.t()
        2 (<T2> @ <T2>)
        1 (<T2> + <T1>)
        1 <T1>.unsqueeze(<0..1>) * <T2>
        1 torch.outer(<T1>, <T1>)
        1 <T2>.softmax(-1)
        1 <T2>.transpose(0, 1).contiguous()
        1 torch.stack([<T1> for <bind:T1> in <^T2>])
        1 <T2>[::1]
        1 <T2>.triu()
        1 <T1>.expand(n, n)
        1 torch.nn.functional.layer_norm(<T2>, (n,))""",
    "I1": """
        1 torch.arange(n)
        1 ((<I1> + <int>) % n)
        1 <T1>.argsort()
        1 <I1>.flip(0)""",
    "B1": """
        2 (<T1> > <T1>)
        1 (<T1> <= <int>)
        1 (~<B1>)
        1 (<B1> & <B1>)
        1 torch.isfinite(<T1>)""",
    "tensors": """
        2 [<T1>, <T1>]
        1 [<T1> for <bind:int> in <^ints>][:4]
        1 [<T1> for <bind:T1> in <^tensors>]
        1 list(<T2>)
        1 list(<T2>.unbind(1))
        1 [*<tensors>, <T1>][:5]
        1 list(<tdict>.values())
        1 <tensors>[::-1]
        1 list(map(<ftt>, <tensors>))""",
    "tdict": """
        2 {<key>: <T1>, **<tdict>}
        1 dict(zip("abcd", <tensors>))
        1 {<str>: <T1> for <bind:str>, <bind:T1> in <^tdict>.items()}
        1 <tdict!>.copy()""",
}.items()}
