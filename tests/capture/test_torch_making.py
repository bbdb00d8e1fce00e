"""Tensors made in the frame, random numbers, dtypes and devices, the thread's torch state."""

from __future__ import annotations

import copy
import pickle

import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.agree import check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
program = Programs(check)


test_same_as_eager = program.test()


# --- factories --------------------------------------------------------------------------------------------------------
@program(X)
def factories(x):
    return (torch.arange(3), torch.arange(1, 7, 2), torch.arange(0, 1, 0.25), torch.full((2,), 3),
            torch.full((2, 2), 1.5),
        torch.zeros(2), torch.ones(2, 3),
            torch.eye(3), torch.eye(2, 3), torch.linspace(0, 1, 5), torch.logspace(0, 1, 3), torch.zeros_like(x),
            torch.full_like(x,
            2), torch.ones_like(x, dtype=torch.int),
            x.new_zeros(2), x.new_full((2,), 3), x.new_ones((1,), dtype=torch.long), x.new_tensor([1]),
            torch.zeros((2, 3),
            dtype=torch.half), torch.scalar_tensor(2.0), torch.zeros(()),
            torch.tril_indices(3, 3), torch.triu_indices(2, 3), torch.hann_window(4), torch.zeros(2, device="cpu"),
            torch.range(0,
            3) if False else 0)


@program()
def operators_of_numbers_alone():
    return torch.add(4, 3.3), torch.mul(4, 3), torch.div(4, 3), torch.sub(3, 1, alpha=2), torch.add(4, 2j), torch.add(
        2, 3) + torch.ones(2)


@program(X, raises=RuntimeError)
def a_truth_value_subtracted(x):
    return x - True


@program(X)
def is_fx_tracing(x):
    return x + int(torch.fx._symbolic_trace.is_fx_tracing())


@program()
def no_inputs():
    return torch.ones(3) + torch.arange(3)


@program()
def constants_only():
    return torch.ones(3)


@program(X)
def unfilled(x):
    y = torch.empty(3, 4)
    y.copy_(x)
    z = torch.empty_like(x)
    z[:] = 1
    w = x.new_empty((2, 2)).fill_(3)
    e = torch.empty_strided((2, 2), (1, 2)).zero_()
    return y, z, w, e


@program(X)
def of_python_data(x):
    k = 2
    return (torch.tensor(1), torch.tensor(1.5), torch.tensor(True), torch.tensor([1, 2, 3]),
            torch.tensor([[1.0, k], [3, 4]]),
        torch.tensor([]), torch.tensor(()), torch.tensor(1 + 2j),
            torch.tensor([True, False]), torch.tensor([1, 2], dtype=torch.float16), torch.tensor(x.shape),
            torch.tensor((1, 2.0)),
            torch.tensor([x.size(0), 5]), torch.tensor([1, 2]) + x.shape[0])


@program(X)
def as_tensors(x):
    return (torch.as_tensor(x) is x, torch.as_tensor([1, 2]), torch.as_tensor(3.0), torch.asarray([1, 2]),
            torch.asarray(x),
        torch.as_tensor(x, dtype=torch.float64))


@program(X, torch.tensor(2.0), torch.tensor(3))
def of_scalar_tensors(x, a, b):
    return torch.stack([a, a * 2]), torch.tensor([1, 2]).to(a) * a, x.new_tensor([1.0]) + b


@program(torch.tensor(2.0), torch.tensor(3.0))
def list_of_scalar_tensors(a, b):
    c = a * b
    return torch.tensor([a, b, c]), torch.tensor([[a, 1.0], [2.0, c]])


@program(X)
def tensor_of_a_tensor(x):
    return torch.tensor(x), torch.tensor(x, dtype=torch.float64)


@program(X)
def constants_are_fresh(x):
    y = torch.tensor([1.0, 2.0])
    y += 1
    z = torch.ones(2)
    z[0] = 5
    return y, z, torch.tensor([1.0, 2.0])


@program()
def equal_factories_are_apart():
    a = torch.zeros(2)
    b = torch.zeros(2)
    c = a
    a.add_(1)
    return a, b, c is a, a is b


@program(X)
def parameter_in_the_frame(x):
    p = nn.Parameter(torch.ones(4))
    return x * p, p, isinstance(p, nn.Parameter)


@program(X)
def module_in_the_frame(x):
    torch.manual_seed(1)
    return nn.Linear(4, 2)(x)


@program(X)
def legacy_constructors(x):
    return (torch.Tensor(2, 3).zero_(), torch.Tensor([1, 2]), torch.FloatTensor([1.0]), torch.LongTensor([1, 2]),
            torch.Tensor().shape,
        torch.BoolTensor([True]))


@program(X)
def joined(x):
    return (torch.cat([x, x]), torch.stack((x, x), 1), torch.hstack([x, x]), torch.vstack([x, x]),
            torch.concat([x, x], dim=-1),
        torch.meshgrid(x[0], x[1], indexing="ij"), torch.cartesian_prod(x[0, :2], x[1, :2]), torch.block_diag(x, x),
        torch.column_stack((x, x)))


@program(X)
def multi_output(x):
    v, i = torch.max(x, dim=1)
    r = torch.sort(x)
    q = torch.topk(x, 2)
    return (v, i, r, r.values, q.indices, torch.svd(x).S, torch.linalg.qr(x).R, torch.frexp(x), torch.aminmax(x),
            torch.std_mean(x),
        torch.var_mean(x, 1), r[0] is r.values)


# --- random -----------------------------------------------------------------------------------------------------------
@program(X)
def random_factories(x):
    return (torch.rand(3), torch.randn(2, 2), torch.randint(0, 10, (4,)), torch.randint(5, (2,)), torch.randperm(5),
        torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 3), torch.normal(0.0, 1.0, (2,)),
            torch.normal(x, 0.1))


@program(X)
def random_in_place(x):
    y = x + 1
    y.normal_()
    z = torch.empty(3).uniform_(0, 2)
    w = torch.empty(4).bernoulli_(0.5)
    return (y, z, w, torch.empty(2).exponential_(), torch.empty(3).random_(5), torch.empty(2).cauchy_(),
            torch.empty(2).log_normal_(),
        torch.empty(2).geometric_(0.5))


@program(X)
def random_of_probabilities(x):
    p = x.sigmoid()
    return (torch.bernoulli(p), torch.multinomial(p, 2), torch.poisson(p), F.gumbel_softmax(x),
            F.gumbel_softmax(x, hard=True))


@program(X)
def unused_draws_still_advance(x):
    torch.rand(3)
    return x + torch.rand(4)


@program(X)
def dropouts(x):
    return (F.dropout(x, 0.5), F.dropout(x, 0.5, training=False), F.alpha_dropout(x, 0.3, True),
            F.dropout1d(x[None], 0.5),
        F.feature_alpha_dropout(x[None], 0.4, True), F.dropout(x, 0.0), F.dropout(x, 1.0),
        F.dropout2d(x[None, :, :, None], 0.5))


@program(X, breaks=True)
def draws_without_a_functional_form(x):
    return F.rrelu(x, training=True), torch.binomial(torch.ones(3) * 4,
                                                     torch.ones(3) * 0.5), torch.linalg.lstsq(x, x).solution


@program(X.clone())
def dropout_in_place(x):
    y = x + 1
    F.dropout(y, 0.5, True, True)
    return y, F.dropout_(x, 0.5) if hasattr(F, "dropout_") else 0


@program(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Dropout(0.1)), X)
def trained_module(m, x):
    m.train()
    y = m(x)
    return y, m[2].running_mean, m[2].num_batches_tracked


@program(X)
def attention_with_dropout(x):
    q = x.reshape(1, 1, 3, 4)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), F.scaled_dot_product_attention(q, q, q)


@program(X, torch.Generator().manual_seed(3))
def with_a_generator(x, g):
    return (torch.rand(3, generator=g), torch.randn(3, generator=g), x.clone().normal_(generator=g),
            torch.randperm(4, generator=g),
        torch.randint(9, (2,), generator=g))


@program(X, breaks=True)
def generator_in_the_frame(x):
    g = torch.Generator()
    g.manual_seed(5)
    return x + torch.rand(4, generator=g), g.initial_seed()


@program(X, breaks=True)
def seeded(x):
    torch.manual_seed(3)
    a = torch.rand(3)
    torch.manual_seed(3)
    return a, torch.rand(3), torch.initial_seed(), x + 1


@program(X, breaks=True)
def rng_state(x):
    s = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(s)
    return a, torch.rand(3), x + 1


@program(X, breaks=True)
def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(9)
        a = x + torch.rand(4)
    return a, torch.rand(2)


# --- state ------------------------------------------------------------------------------------------------------------
@program(X)
def questions(x):
    return (torch.is_grad_enabled(), torch.get_default_dtype(), torch.jit.is_scripting(), torch.jit.is_tracing(),
        torch.cuda.is_available(), torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.cuda.device_count(), torch.is_autocast_enabled(),
            torch.is_autocast_enabled("cpu"), torch.backends.cudnn.enabled,
            torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available(), torch.backends.cudnn.is_available(),
            torch.get_float32_matmul_precision(), torch.get_default_device(), torch.is_storage(x), x + 1)


@program(X)
def more_questions(x):
    return (torch.backends.cuda.matmul.allow_tf32, torch.backends.mps.is_available(), torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic, torch.get_num_threads(),
            torch.backends.openmp.is_available(), torch.backends.cuda.is_built(), torch.distributed.is_available(),
            torch.__version__ >= "2", torch.version.cuda, torch.is_warn_always_enabled(),
            torch.backends.cuda.flash_sdp_enabled(), torch.is_anomaly_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            x + 1)


@program(X)
def dtype_questions(x):
    return (torch.finfo(x.dtype).min, torch.finfo(torch.half).eps, torch.iinfo(torch.int8).max, torch.result_type(x, 1),
        torch.promote_types(torch.half, torch.float), torch.can_cast(torch.float, torch.int),
            torch.broadcast_shapes((3, 1), (4,)), torch.float32.is_floating_point, torch.int8.itemsize,
            x.dtype == torch.float32,
            x.dtype in (torch.half, torch.float32), torch.device("cpu"),
            torch.device("cpu", 0), x.device.type, x.device.index, x.device == torch.device("cpu"), str(x.device),
            str(x.dtype),
            torch.float.to_complex(), x.dtype.is_signed, torch.is_floating_point(x), torch.is_complex(x),
            torch.finfo(torch.float32).tiny, torch.iinfo(torch.int64).min, repr(torch.float16),
            torch.get_default_dtype().itemsize,
            torch.is_nonzero(torch.tensor(1)))


@program(X, breaks=True)
def default_dtype_inside(x):
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(2)
    torch.set_default_dtype(torch.float32)
    return y, torch.zeros(2), x + 1


@program(X)
def default_dtype_left(x):
    torch.set_default_dtype(torch.float64)
    return torch.ones(2), torch.tensor(1.5), x + 1


@program(X)
def default_device_context(x):
    with torch.device("cpu"):
        return torch.ones(2), x + 1


@program(X)
def meta_device_context(x):
    with torch.device("meta"):
        y = torch.ones(2)
    return y.device, x + 1, y.shape


@program(X)
def meta_tensors(x):
    y = torch.ones(2, device="meta")
    return (y + 1).shape, y.is_meta, x.to("meta").shape, x + 1


@program(X)
def default_device_is_set(x):
    torch.set_default_device("cpu")
    y = torch.ones(2)
    torch.set_default_device(None)
    return y, x + 1


@program(X)
def deterministic(x):
    return torch.are_deterministic_algorithms_enabled(), x.cumsum(0)


@program(X, breaks=True)
def deterministic_is_set(x):
    torch.use_deterministic_algorithms(True)
    return x.cumsum(0)


@program(X, breaks=True)
def threads_are_set(x):
    torch.set_num_threads(torch.get_num_threads())
    return x + 1


@program(X)
def print_options(x):
    torch.set_printoptions(precision=4)
    return x + 1


@program(X, breaks=True)
def pickled(x):
    return pickle.loads(pickle.dumps(x)), x + 1


@program(X)
def copied(x):
    y = x + 1
    return copy.copy(y), copy.deepcopy(y), copy.deepcopy([y, y]), copy.deepcopy(x)


@program(X)
def nested_containers(x):
    return {"a": [x + 1, (x, {"b": x * 2})], "c": x.shape}, [x + 1] * 2


@program(X)
def same_tensor_twice(x):
    y = x + 1
    return y, y, [y], y is y, y.view(-1), y[0]


@program(X)
def windows_and_special(x):
    return (torch.special.erf(x), torch.special.expit(x), torch.special.logit(x.sigmoid()), torch.special.i0(x),
            torch.special.xlogy(x,
        x + 2), torch.special.gammaln(x + 3), torch.special.entr(x + 2), torch.special.log_softmax(x, 1),
            torch.special.zeta(x + 3,
        x + 2))


@program(torch.randn(3, 3) + 3 * torch.eye(3))
def linear_algebra(a):
    s = a @ a.T
    return (torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.norm(a), torch.linalg.solve(a, s),
            torch.linalg.cholesky(s),
        torch.linalg.eigvalsh(s), torch.linalg.matrix_norm(a), torch.linalg.vector_norm(a),
            torch.linalg.svdvals(a), torch.linalg.slogdet(a), torch.linalg.pinv(a), torch.linalg.matrix_power(a, 2),
            torch.linalg.multi_dot([a, a, s]), torch.linalg.cross(a, s), torch.linalg.lu(a), torch.linalg.cond(a),
            torch.einsum("ij,jk", a, s), torch.trace(a), torch.matrix_exp(a), torch.logdet(s),
            torch.cdist(a, s))


@program(torch.randn(4, 8))
def fourier(x):
    return (torch.fft.fft(x), torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fft2(x),
            torch.fft.fftshift(x),
        torch.fft.fftfreq(8), torch.fft.ifft(torch.fft.fft(x)).real, torch.fft.rfftn(x),
            torch.fft.hfft(torch.fft.rfft(x)))


@program(torch.randn(64))
def short_time_fourier(x):
    return (torch.stft(x, 16, return_complex=True, window=torch.hann_window(16)),
            torch.istft(torch.stft(x, 16, return_complex=True,
        window=torch.hann_window(16)), 16, window=torch.hann_window(16)))


@program(X, breaks=True)
def sparse(x):
    s = x.to_sparse()
    return s.to_dense(), torch.sparse.mm(s, x.T), s._nnz() if hasattr(s, "_nnz") else 0


@program(X, breaks=True)
def sparse_of_its_parts(x):
    index = torch.tensor([[0, 1], [1, 1]])
    s = torch.sparse_coo_tensor(index, x[0, :2], (2, 3))
    return s.to_dense() + 1, (s * 2).to_dense(), s.is_sparse


@program(X, breaks=True)
def made_in_a_layout(x):
    y = torch.zeros(2, 3, layout=torch.sparse_coo)
    z = x.new_zeros((2, 3), layout=torch.sparse_coo)
    return y.layout, z.is_sparse, y.to_dense() + x.sum(), torch.ones(2, layout=torch.strided)


@program(X, breaks=True)
def quantized(x):
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    return q.dequantize(), q.int_repr()


@program(X, breaks=True)
def nested_tensor(x):
    n = torch.nested.nested_tensor([x[0], x[1, :2]])
    return n.to_padded_tensor(0.0), x + 1


@program(X)
def from_numpy_made(x):
    return torch.from_numpy(x.numpy()), x + 1


@program(X, breaks=True)
def leaves_that_require_grad(x):
    with torch.enable_grad():
        delta = torch.zeros_like(x, requires_grad=True)
        loss = (x + delta).square().sum()
    made = torch.tensor([1.0, 2.0], requires_grad=True), x.new_ones(2, requires_grad=True)
    return delta, loss, made, made[0] * 2, torch.zeros(2, requires_grad=False)
