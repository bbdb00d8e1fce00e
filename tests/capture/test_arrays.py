"""NumPy code in captured programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import framesmith
from tests.capture.agree import agree, check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
A = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)
ARRAYS = [A, A.astype(np.float64), np.arange(12).reshape(3, 4) - 5, (np.arange(12) % 7).astype(np.int8).reshape(3, 4)]
program = Programs(check)
SHARED = []


def of_arrays(fn):
    SHARED.append(fn)
    return fn


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: str(a.dtype))
@pytest.mark.parametrize("fn", SHARED, ids=lambda fn: fn.__name__)
def test_same_as_numpy(fn, array):
    agree(fn, X, array)


test_same_as_eager = program.test()


@of_arrays
def between_tensors_and_arrays(x, n):
    return x.numpy() * 2 + 1, (x.numpy() + n).sum(), torch.from_numpy(n) * x, np.asarray(x).mean(axis=0), np.array(
        x) is x, torch.tensor(n)


@of_arrays
def arithmetic(x, n):
    return n + 1, 2.5 - n, n * n, n / 3, 3 / (n + 100), -n, abs(n), n**2.0, n >= 0, n == n, n + 1.5, 5 - n


@of_arrays
def universal_functions(x, n):
    return (np.greater(x, n), np.add(x, n), np.exp(n), np.sqrt(abs(n)), np.maximum(n, 0), np.arctan2(n, 2.0),
            np.isnan(n), np.tanh(x),
            np.logical_and(n, n > 1),
            np.log1p(abs(n)), np.square(n), np.minimum(n, n + 1), np.where(n > 0, n, 0), np.clip(n, -1, 1))


@of_arrays
def reductions(x, n):
    return (n.sum(), n.sum(axis=0), n.mean(), n.mean(axis=1, keepdims=True), n.std(), n.var(axis=1, ddof=1),
            n.max(axis=0),
            n.min(), n.argmax(), n.argmin(axis=1), (n > 0).any(), (n > 0).all(axis=0), n.prod(axis=1), n.cumsum(),
            np.sum(n, axis=(0, 1)),
            np.amax(n))


@of_arrays
def elements(x, n):
    return (n[0], n[1, 2], type(n[1, 2]), n[:, 1], n[..., 0], n[None, 1:], n[0:2, ::2], n[-1, -1], n[np.array([0, 2])],
            n.shape, n.dtype,
            n.ndim, n.size, len(n), n.T, [row[0] for row in n], n.strides, n.nbytes, isinstance(n, np.ndarray))


@of_arrays
def assignments(x, n):
    n[0] = 5
    n[1, 1] += 2
    n *= 2
    m = n[2:]
    m -= 1
    m[0, :2] = n[0, 2:]
    return n, m, x + 1


@of_arrays
def shapes_and_types(x, n):
    return (np.concatenate([n, n], axis=1), np.stack([n, n]), n.astype(np.int64), n.astype("float16"),
            np.transpose(n, (1, 0)),
            n.ravel(), n.flatten(), n.copy(), n.squeeze(), np.expand_dims(n, 0), np.zeros_like(n), n.swapaxes(0, 1),
            n.reshape(4, 3),
            n.reshape((2, -1)))


@of_arrays
def scalars(x, n):
    s = n.sum()
    return s, s * 2, s + 1.5, type(s), n * s, np.sqrt(abs(s)), s.dtype, s == s


@of_arrays
def made_arrays(x, n):
    return np.zeros(4) + x.numpy()[0], np.arange(4) * n, np.ones((3, 4), dtype=np.float32) * n, np.array(
        [1, 2, 3, 4]) + n, np.eye(4)


@of_arrays
def products(x, n):
    return n @ n.T, np.dot(n, n[0]), np.matmul(n, n.T)


@program(X)
def memory_is_shared(x):
    y = x.numpy()
    y += 1
    z = np.asarray(x)
    z[0] = 0
    return x, y


@program(X, A)
def a_tensor_over_an_array(x, n):
    y = torch.from_numpy(n)
    y.add_(x)
    n[0] = 7
    return y, n


@program(X)
def log_sum_exp(x):
    n = np.asarray(x)
    high = n.max(axis=1, keepdims=True)
    return np.log(np.sum(np.exp(n - high), axis=1)) + high[:, 0]


@program(X, A, breaks=True)
def decisions(x, n):
    return n + 1 if n.sum() > 0 else n - 1


@program(X, A, breaks=True)
def masks(x, n):
    return n[n > 0], x + 1


@program(X, A, breaks=True)
def python_values(x, n):
    return n.tolist(), n[0, 0].item(), x * 2


@program(X, A, breaks=True)
def tensors_with_arrays(x, n):
    return x * n


@program(X, A, breaks=True)
def what_does_not_map(x, n):
    return np.partition(n, 2), n[::-1], x + 1


@program(X, A, breaks=True, raises=IndexError)
def numpys_errors(x, n):
    return n[5]


@program(X, ARRAYS[3], raises=OverflowError)
def a_number_that_does_not_fit(x, n):
    n[0] = 300
    return n


@program(X, ARRAYS[2], breaks=True)
def integers_divided_by_zero(x, n):
    with np.errstate(all="ignore"):
        return n // 0, x


@program(torch.ones(2, requires_grad=True), breaks=True)
def of_a_tensor_that_requires_grad(x):
    return x.numpy()


def test_arrays_that_no_tensor_may_have():
    fast = framesmith.compile(lambda n: n + 1, backend="eager")
    still = A.copy()
    still.flags.writeable = False
    for n in (A, A[::-1], still, A.astype(">f4"), A.astype(np.uint16), A.astype(np.longdouble)):
        got = fast(n)
        assert got.dtype == (n + 1).dtype and np.array_equal(got, n + 1)


def test_guards_of_arrays():
    fast = framesmith.compile(lambda n: n * 2, backend="eager")
    for n in (A, A[:2], A.astype(np.float64), A.T, torch.ones(2), 3, A):
        got, want = fast(n), n * 2
        assert type(got) is type(want) and np.array_equal(np.asarray(got), np.asarray(want))


def test_arrays_that_share_memory():
    def run(x, n, m):
        m += 1
        return n * 2 + x.numpy()

    fast = framesmith.compile(run, backend="eager")
    for start in (0, 6, 2):
        want, got = np.arange(12.0), np.arange(12.0)
        one, two = (f(torch.ones(4), a[:4], a[start:start + 4]) for f, a in ((run, want), (fast, got)))
        assert np.array_equal(one, two) and np.array_equal(want, got)
    x = torch.ones(4)
    assert np.array_equal(fast(x, x.numpy(), x.numpy()), np.full(4, 6, np.float32))


def test_native_code():
    n = A.astype(np.float64)
    got, want = framesmith.compile(log_sum_exp)(X), log_sum_exp(X)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(framesmith.compile(arithmetic)(X, n)[3], n / 3)
