"""Attributes and methods of tensors, indexing of all kinds, in-place operators, views and what they alias."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import framesmith
from tests.capture.agree import check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
M = torch.arange(24.0).reshape(2, 3, 4)
program = Programs(check)


test_same_as_eager = program.test()


@program(M)
def sizes(x):
    return (x.shape, x.size(), x.size(-1), x.stride(), x.stride(0), x.dim(), x.ndim, x.numel(), x.nelement(),
            x.ndimension(), len(x),
        x.shape[1:], x + 1)


@program(X)
def transposes(x):
    return x.T, x.mT, x.H, x.mH, x.t(), x.permute(1, 0), x.swapaxes(0, 1), x.transpose(0, 1) + 1


@program(M)
def properties(x):
    y = x * 2
    return (y.dtype, y.device, y.layout, y.requires_grad, y.is_leaf, y.grad, y.grad_fn, y.is_cuda, y.is_sparse,
            y.is_quantized, y.is_meta,
            y.is_nested, y.is_mkldnn, y.itemsize, y.nbytes, y.output_nr, y.retains_grad, y.is_mps, y.is_xpu, y)


@program(X)
def looked_up_statically(x):
    y = x + 1
    before = inspect.getattr_static(y, "tag", None)
    y.tag = 3
    return y, before, inspect.getattr_static(y, "tag"), inspect.getattr_static(x, "tag", None), inspect.getattr_static(
        x, "shape")


@program(X)
def methods_of_metadata(x):
    y = x.t()
    return (y.is_contiguous(), x.is_contiguous(), y.storage_offset(), x[1:].storage_offset(), x.element_size(),
            x.is_floating_point(),
            x.is_complex(), x.is_signed(), x.is_inference(), x.get_device(), x.is_same_size(y), 
            x.type(), y + 1)


@program(X)
def data_attribute(x):
    return x.data, x.data + 1, x.detach(), (x + 1).data


@program(torch.randn(3, requires_grad=True))
def of_a_leaf(w):
    y = w.data * 2
    return y, w.requires_grad, w.is_leaf, w.grad, w.grad_fn, (w * 2).requires_grad, (
        w * 2).is_leaf, w.detach().requires_grad


@program(torch.randn(2, 3, dtype=torch.complex64))
def complex_parts(z):
    return (z.real, z.imag, z.conj(), z.abs(), z.angle(), z.mH, z.is_conj(), z.conj().is_conj(), z.resolve_conj(), z.H,
        torch.view_as_real(z), z.conj().imag, z.conj().imag.is_neg(), z.conj()[0] + 1, z.conj().mul(2j), z.conj().real)


@program(torch.randn(2, 3), torch.randn(2, 3))
def complex_arithmetic(a, b):
    z = torch.complex(a, b)
    w = z * (1 + 2j) + z.conj()
    return w, w.real, torch.polar(a.abs(), b), torch.view_as_complex(torch.stack([a, b], -1)), w.abs()


@program(X)
def basic_index(x):
    return x[0], x[-1, 2], x[1:], x[:, ::2], x[..., 0], x[None], x[:, None, 1:3], x[0:0], x[(1, 2)], x[()], x[...]


@program(M, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]))
def advanced_index(x, i, j):
    return x[i], x[i, j], x[:, j], x[:, :, i], x[i, :, j], x[[0, 1]], x[[0, 1], [1, 2]], x[i[:, None], j], x[
        ..., [1, 2]], x[0, i]


@program(X.clone())
def assign_basic(x):
    x[0] = 1
    x[1, 2] = 5.0
    x[:, 1] = torch.tensor(3.0)
    x[..., 3] = x[..., 0]
    x[2:, :2] += 1
    return x


@program(X.clone(), torch.tensor([0, 2]), torch.tensor([[True, False, True, False]] * 3))
def assign_advanced(x, i, m):
    x[i] = 7
    x[i, 1] = torch.tensor([1.0, 2.0])
    x[m] = 0
    x[:, [0, 1]] *= 2
    x[x > 6] = -1
    x[[0, 1]] += 1
    return x


@program(X.clone())
def in_place(x):
    x += 1
    x -= 0.5
    x *= 2
    x /= 3
    x **= 2
    x //= 1
    x %= 3
    x.add_(1).mul_(2).clamp_(0, 1).neg_()
    return x


@program(torch.arange(6))
def in_place_integers(x):
    x &= 3
    x |= 4
    x ^= 1
    x <<= 1
    x >>= 1
    x += x
    return x, ~x


@program(X.clone(), X.clone() + 1)
def out_argument(x, y):
    torch.add(x, y, out=x)
    torch.mul(x, 2, out=y)
    z = torch.empty(3, 4)
    r = torch.exp(x, out=z)
    return r is z, r, y


@program(X.clone())
def out_of_two(x):
    v, i = torch.empty(3), torch.empty(3, dtype=torch.long)
    r = torch.max(x, 1, out=(v, i))
    return v, i, r[0] is v


@program(X)
def out_resized(x):
    z = torch.empty(0)
    torch.add(x, 1, out=z)
    return z


@program(X * 1e-4 + 1)
def out_of_another_dtype(x):
    sums = torch.cumsum(x, 0, out=torch.empty(3, 4, dtype=torch.float64))
    return sums, torch.sum(x, 1, out=torch.empty(3, dtype=torch.float64)), torch.prod(x, 0, out=torch.ones(4).double())


@program(X.sigmoid(), breaks=True)
def random_numbers_in_another_order(x):
    torch.manual_seed(1)
    return torch.bernoulli(x, out=torch.empty(4, 3).t()), torch.bernoulli(x, out=torch.empty(3, 4, dtype=torch.float64))


@program(X.clone())
def written_lists(x):
    tensors = [x, x + 1]
    again = torch._foreach_mul_(tensors, 2)
    return again is tensors, again, torch._foreach_add_((x,), 1)


@program(X)
def input_is_returned(x):
    return x, [x], x.view(-1), x.reshape(3, 4), x.contiguous(), x.to(torch.float32), x.float(), x[:], x.expand(3, 4)


@program(X)
def returned_unchanged(x):
    return (x.contiguous() is x, x.to("cpu") is x, x.to(torch.float32) is x, x.float() is x, x.cpu() is x,
        x.requires_grad_(False) is x, x + 1)


@program(X.clone())
def views_see_writes(x):
    v = x.view(-1)
    w = x.t()
    x.add_(1)
    v[0] = 9
    w[1].zero_()
    return v, w, x


@program(X)
def views_of_fresh_tensors(x):
    y = x + 1
    v = y.view(-1)
    v.mul_(2)
    return y, v, y[0]


@program(X.clone())
def copy_and_fill(x):
    x.copy_(torch.ones(4))
    y = torch.empty_like(x).fill_(3)
    x[0].fill_(2)
    x[1].zero_()
    return x, y, x.fill_diagonal_(5)


@program(torch.randn(4, 4), torch.tensor([0, 2]), torch.randn(2, 4))
def index_methods(x, i, s):
    a = x.clone().index_copy_(0, i, s)
    b = x.clone().index_add_(0, i, s)
    c = x.clone().index_fill_(1, i, 4)
    d = x.clone().scatter_(0, torch.zeros(1, 4, dtype=torch.long), 5.0)
    e = x.clone().scatter_add_(0, torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4))
    f = x.clone().masked_fill_(x > 0, 1).masked_scatter_(x < 0, torch.arange(16.0))
    g = x.clone().index_put_((i, i), torch.ones(2), accumulate=True)
    h = x.clone().put_(i, torch.ones(2))
    return a, b, c, d, e, f, g, h, x.take(i), x.gather(0, torch.zeros(1, 4, dtype=torch.long)), x.index_select(1, i)


@program(X)
def iteration(x):
    a, b, c = x
    total = 0
    for row in x:
        total = total + row
    return a, b + c, total, [r.sum() for r in x], list(x)[0], [*x][1], len(x), sum(x), max(1, 2)


@program(X)
def enumerate_and_zip(x):
    return [i * r for i, r in enumerate(x)], [a + b for a,
                                              b in zip(x, x.flip(0))], list(reversed(x)), tuple(map(torch.sum, x))


@program(torch.tensor(3.0), raises=TypeError)
def iterate_scalar(x):
    return list(x)


@program(torch.tensor(3.0), raises=TypeError)
def len_of_scalar(x):
    return len(x)


@program(X, raises=AttributeError)
def no_such_attribute(x):
    return x.nothing_of_that_name


@program(X)
def has_attribute(x):
    return hasattr(x, "shape"), hasattr(x, "foo"), getattr(x, "foo", 3), hasattr(x, "grad_fn"), x.dtype, x + 1


@program(X)
def own_attributes(x):
    y = x + 1
    y.tag = "t"
    y.other = [1, y.tag]
    z = y.tag
    del y.other
    return y, z, hasattr(y, "other")


@program(X)
def attribute_set_on_input(x):
    x.tag = 3
    return x + x.tag


@program(X)
def attribute_set_on_input_view(x):
    v = x[0]
    v.tag = 3
    return v


@program(X)
def keys_and_identity(x):
    y = x + 1
    d = {x: 1, y: 2, "k": x}
    s = {x, y, x}
    return (d[x], d[y], len(s), x in s, x is y, x is x, y is not None, x is None, d.get(x), (x in d), [x, y].index(x),
            id(x) == id(x),
        hash(x) == hash(x))


@program(X)
def comparisons(x):
    return x == 1, x != x, x < 0.5, x >= 0, x == None, x != None, x is not None, x > 1, x.eq(0)  # noqa: E711


@program(X)
def reflected_operators(x):
    return (1 + x, 2 - x, 3 * x, 1 / x, 2**x, 7 // (x + 3), 5 % (x + 3), -x, +x, abs(x), x @ x.T, [1.0] * 2, x**2,
            x**-1,
        pow(x, 2), divmod(7, 2))


@program(torch.arange(5))
def integer_operators(x):
    return x & 1, x | 2, x ^ 3, ~x, x << 1, x >> 1, 1 << x, x // 2, x % 2, x / 2, -x, 3 & x, x ** 2, 2 ** x


@program(X)
def types_of_tensors(x):
    return (isinstance(x, torch.Tensor), type(x) is torch.Tensor, torch.is_tensor(x), torch.is_tensor(3), isinstance(x,
        torch.nn.Parameter), x.__class__, isinstance(x, torch.FloatTensor), x + 1)


@program(X)
def casts(x):
    return (x.int(), x.long(), x.half(), x.bfloat16(), x.double(), x.bool(), x.to(torch.int8), x.type(torch.float64),
        x.type_as(torch.ones(1, dtype=torch.int)), x.to(x.double()), x.to("cpu", torch.half), x.char(), x.short(),
            x.byte(), x.cfloat())


@program(X)
def shape_methods(x):
    s = x.shape
    return (s.numel(), len(s), s[0], s[-1], s[:1], s + (1,), list(s), s == (3, 4), s.index(4), s.count(3),
            torch.Size([1, 2]),
        tuple(s), s * 2, (1, *s), isinstance(s, tuple), isinstance(s, torch.Size), max(s), x + 1)


@program(M)
def view_methods(x):
    return (x.view(2, -1), x.reshape(-1), x.flatten(1), x.unflatten(2, (2, 2)), x.squeeze(), x.unsqueeze(0),
            x.expand(2, 3, 4),
        x.narrow(1, 0, 2),
            x.select(0, 1), x.unfold(2, 2, 1), x.movedim(0, 2), x.diagonal(), x.view(torch.int32), x.view_as(x),
            x.expand_as(x),
            x.chunk(2), x.split(2, 1),
            x.tensor_split(2), x.unbind(1), x.swapdims(0, 1), x.as_strided((2, 2), (1, 2)), x.hsplit(3),
            x.repeat(1, 2, 1), x.ravel(),
            x.mT, x.adjoint())


@program(torch.randn(3, 4))
def reductions(x):
    return (x.sum(), x.mean(0), x.max(), x.max(1), x.min(0).values, x.argmax(), x.std(), x.var(1), x.norm(), x.prod(),
            x.all(),
        x.any(), x.cumsum(0), x.sort(),
            x.topk(2), x.median(), x.median(0), x.aminmax(), x.logsumexp(0), x.softmax(0), x.kthvalue(1), x.mode(),
            x.amax((0, 1)),
            x.argsort(), x.quantile(0.5), x.nansum(), x.count_nonzero())


@program(X.clone())
def resize_in_place(x):
    y = x + 1
    y.resize_(2, 6)
    return y


@program(X.clone())
def transposed_in_place(x):
    y = x + 1
    y.t_()
    y.unsqueeze_(0)
    y.squeeze_()
    return y.transpose_(0, 1)


@program(X.clone(), breaks=True)
def transposed_input_in_place(x):
    x.t_()
    return x + 1


@program(X.clone(), X.clone(), breaks=True)
def data_is_set(x, y):
    x.data = y
    return x + 1


@program(X.clone())
def data_is_written(x):
    x.data.add_(1)
    x.data[0] = 4
    return x + 1


@program(X)
def set_requires_grad(x):
    y = x + 1
    y.requires_grad = False
    y.requires_grad_(False)
    return y


@program(X, breaks=True)
def turn_requires_grad_on(x):
    y = x + 1
    y.requires_grad_(True)
    return y, y.requires_grad


@program(X, breaks=True)
def turn_requires_grad_on_by_attribute(x):
    y = x + 1
    y.requires_grad = True
    return y


@program(X, breaks=True)
def hash_is_the_address(x):
    return hash(x) == id(x), x.__hash__() == id(x), hash((x, 1)) == hash((id(x), 1)), {x: 1}[x], x + 1


@program(X)
def bound_methods(x):
    f = x.add
    g = torch.Tensor.mul
    return f(1), g(x, 2), x.add.__name__, callable(f), torch.Tensor.add(x, 3), x.sum()


@program(X)
def unbound_descriptors(x):
    return torch.Tensor.dim(x), torch.Tensor.__add__(x, 1), torch.Tensor.size(x, 0), x.__len__(), x.__getitem__(
        0), x.__add__(1)


@program(X, breaks=True, raises=RuntimeError)
def deleted(x):
    y = x + 1
    del y.data


@program(X)
def grad_is_set(x):
    x.grad = x + 1
    return x.grad


@program(X)
def clones(x):
    return (x.clone(), x.clone(memory_format=torch.contiguous_format), x.t().clone(), x.t().contiguous(),
            x.new_tensor([1.0, 2.0]),
        x.to(torch.float32, copy=True))


@program(torch.randn(2, 3, 4, 4))
def memory_formats(x):
    y = x.to(memory_format=torch.channels_last)
    return (y, y.is_contiguous(memory_format=torch.channels_last), y + 1, y.contiguous(),
        x.contiguous(memory_format=torch.channels_last), torch.empty_like(y).stride())


@program(X, raises=RuntimeError)
def shape_errors(x):
    return x.view(5)


@program(X, raises=IndexError)
def index_error(x):
    return x[5]


@program(X, torch.randn(5, 6))
def caught_error(x, y):
    try:
        return x @ y
    except RuntimeError as e:
        return x + 1, str(e)


@program(X, torch.randn(5), raises=RuntimeError)
def errors_of_operators(x, y):
    return x + y


@program(X, raises=TypeError)
def type_error(x):
    return x.add("a")


@program(torch.tensor([0, 3, 0, 2]))
def data_sized_of_constants(x):
    c = torch.tensor([0, 3, 0, 2])
    m = torch.arange(4) > 1
    c[0] = 1
    return (c.nonzero(), c[m], x[m], torch.where(m), x[m, None], c.unique(), int(c.sum()), c.max().item(), c.bincount(),
        [x + i for i in c.tolist()])


@program(X)
def name_attributes(x):
    y = x + 1
    return y.name, y.volatile


@program(X, breaks=True)
def base_of_a_view(x):
    y = x[0]
    return y._is_view(), y._base is x, y + 1


@program(X.clone(), breaks=True)
def versions(x):
    before = x._version
    x.add_(1)
    return x._version - before, x


@program(X)
def swapped(x):
    a, b = x + 1, x + 2
    a, b = b, a
    return a, b


@program(X.clone())
def set_item_from_list(x):
    x[0] = torch.tensor([1.0, 2, 3, 4])
    x[1, 1:3] = torch.tensor([8, 9])
    x[2] = torch.ones(1)
    return x


@program(X.clone(), raises=RuntimeError)
def set_item_wrong(x):
    x[0] = torch.ones(3)


@program(torch.randn(4), torch.tensor(2))
def index_by_scalar_tensor(x, i):
    return x[i], x[i - 1], x[i.long()]


@program([1, 2, 3, 4], torch.tensor(2))
def list_index_by_tensor(xs, i):
    return xs[i] + i


@program(X)
def item_of_input(x):
    return x.sum().item() + 1, x * 2


@program(X, breaks=True)
def list_of_input(x):
    y = x * 2
    return y.tolist(), y


@program(X, breaks=True)
def truth_of_input(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


@program(X, breaks=True)
def int_of_input(x):
    n = int(x.abs().sum())
    return float(x.sum()), n, bool(x.any()), complex(x[0, 0]), x * n


@program(torch.tensor([0, 3, 0, 2]))
def data_sized(x):
    return (x.nonzero(), x.unique(), x[x > 0], torch.masked_select(x, x > 1), torch.where(x),
            torch.unique_consecutive(x),
        x.argwhere(), x.bincount(), x.repeat_interleave(x))


@program(X, breaks=True)
def boolean_index(x):
    y = x * 2
    return y[y > 0], y[x > 0].sum()


@program(X, breaks=True)
def equality_of_data(x):
    return torch.equal(x, x.clone()), torch.allclose(x, x + 1), x.equal(x)


@program(X)
def text_of_data(x):
    return str(x), repr(x + 1), f"{x.sum():.2f}", f"{x}"


@program(X, breaks=True)
def membership_in_data(x):
    return 1.0 in x, x + 1


@program(X)
def items_of_constants(x):
    k = torch.tensor(3)
    n = torch.tensor([1, 2, 3])
    if torch.tensor(True):
        x = x + k.item()
    return x * int(k) + n.tolist()[1], float(torch.tensor(2.5)), bool(torch.tensor([0])), [0, 1, 2, 3][k]


@program(X, breaks=True)
def hook_on_tensor(x):
    y = (x + 1).requires_grad_()
    y.register_hook(lambda g: g * 2)
    return y


@program(X)
def numpy_of_input(x):
    y = x + 1
    return y.numpy(), y


@program(X, breaks=True)
def address(x):
    return x.data_ptr() == x.data_ptr(), x.untyped_storage().nbytes(), x + 1


@program(X, breaks=True)
def dlpack(x):
    y = torch.from_dlpack(torch.to_dlpack(x + 1))
    return y, torch.from_dlpack(x + 2)


@program(X, breaks=True)
def shared_memory(x):
    y = (x + 1).share_memory_()
    return y.is_shared(), y


@program(X)
def not_shared(x):
    return x.is_pinned(), x + 1


@program(X)
def apply_chain(x):
    return x.add(1).mul(2).relu().sum(-1, keepdim=True).expand(3, 4).contiguous().view(12).reshape(4, 3).T


@program(X.clone(), X.clone()[0])
def written_twice(x, y):
    x.add_(y)
    y.mul_(2)
    x[0].copy_(y)
    return x.sum(), y


def rows(x):
    y = x * 2
    return x[1], x.t(), y


def test_views_of_inputs_that_begin_elsewhere() -> None:
    base = torch.arange(24.0).reshape(6, 4)
    for backend in ("eager", "native"):
        fast = framesmith.compile(rows, backend=backend, fullgraph=True)
        for start in (0, 2, 3):
            with torch.no_grad():
                want, got = rows(base[start:start + 3]), fast(base[start:start + 3])
            assert all(torch.equal(a, b) and a.storage_offset() == b.storage_offset() for a,
                       b in zip(want, got, strict=True))
            assert got[0].data_ptr() == want[0].data_ptr()


def overlapping(x, y):
    x.add_(1)
    return y + 1


def test_arguments_that_share_memory() -> None:
    base = torch.arange(8.0)
    check(overlapping, base, base[2:6])
    check(overlapping, base, base)
    check(overlapping, base[:4], base[4:])


REPLACED = ["__mul__", "__rmul__", "__iadd__", "__getitem__", "__lt__", "add", "T", "mean"]


def test_replaced_methods_of_tensors_are_seen():
    """In a process of its own: an operator that was replaced once leaves another slot in the class
    (`PySequence_Check`)."""
    command = [sys.executable, "-m", "tests.capture.test_torch_attributes"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr


def _replace_and_compare(name, monkeypatch):
    def program(x):
        y = x.clone()
        y += 1
        return x * 2, 2 * x, y[0], x < 1, x.add(1), x.T, x.mean()

    compiled = framesmith.compile(program, backend="eager")
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(2):
        compiled(x)
    own = getattr(torch.Tensor, name)
    fresh = property(lambda self: self + 7) if name == "T" else lambda self, *args: own(self, *args) + 5
    monkeypatch.setattr(torch.Tensor, name, fresh)
    for expected, found in zip(program(x), compiled(x), strict=True):
        assert torch.equal(expected, found)
    monkeypatch.undo()
    for expected, found in zip(program(x), compiled(x), strict=True):
        assert torch.equal(expected, found)


if __name__ == "__main__":
    for each in REPLACED:
        with pytest.MonkeyPatch.context() as patch:
            _replace_and_compare(each, patch)
