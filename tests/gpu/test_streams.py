"""Streams, events, device guards and copies between host and device in captured code: as in eager, in one graph or with
clean breaks."""

import warnings

import pytest
import torch

import framesmith

from .agree import whole_graph

pytestmark = pytest.mark.gpu
D = "cuda"
LONG = 20_000_000  # cycles


def agree(fn, *inputs, calls=3):
    """`fn` compiled gives what it gives in eager, call after call, and nothing falls back."""
    framesmith.reset()
    compiled = framesmith.compile(fn)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="framesmith")
        for _ in range(calls):
            expected, got = fn(*inputs), compiled(*inputs)
            torch.cuda.synchronize()
            torch.testing.assert_close(got, expected)


def test_a_stream_chosen_in_captured_code():
    side = torch.cuda.Stream()

    def fn(x):
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            z = (y + 1).exp()
            z.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        return z * 3 + y

    agree(fn, torch.randn(1 << 16, device=D))


def test_a_stream_as_a_context():
    side = torch.cuda.Stream()

    def fn(x):
        with side:
            side.wait_stream(torch.cuda.default_stream())
            y = x.sin() + 1
        torch.cuda.default_stream().wait_stream(side)
        return y * 2

    agree(fn, torch.randn(1 << 16, device=D))


def test_what_is_queued_in_a_stream_is_in_that_stream():
    side = torch.cuda.Stream()

    def fn(x):
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            return (x * 2).exp() + 1

    x = torch.randn(1 << 16, device=D)
    torch.cuda.synchronize()
    framesmith.reset()
    compiled = framesmith.compile(fn)
    for call in range(3):
        y = compiled(x)
        # the first call compiles meanwhile
        assert call == 0 or not side.query() and torch.cuda.current_stream().query()
        side.synchronize()
        torch.testing.assert_close(y, (x * 2).exp() + 1)


def test_events():
    def fn(x):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        y = (x * 2).relu()
        end.record()
        end.synchronize()
        return y + 1, start.elapsed_time(end) >= 0

    agree(fn, torch.randn(1 << 10, device=D))


def test_a_device_guard():
    def fn(x):
        with torch.cuda.device(0):
            y = x.exp() + torch.ones(3, device=D)
        with torch.device(D):
            return y + torch.arange(3)

    agree(fn, torch.randn(3, device=D))


def test_memory_that_another_stream_uses_stays():
    """A result's memory is not given to others before the stream that it was recorded for has read it."""
    side = torch.cuda.Stream()

    def fn(x):
        y = x * 2 + 1
        y.record_stream(side)
        return y

    x = torch.randn(1 << 20, device=D)
    framesmith.reset()
    compiled = framesmith.compile(fn)
    for _ in range(3):
        y = compiled(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            total = y.sum()
        del y
        for _ in range(3):
            torch.full_like(x, 7.0)
        side.synchronize()
        torch.testing.assert_close(total, (x * 2 + 1).sum())


def test_copies_to_and_from_pinned_memory():
    def fn(x, host):
        y = host.to(D, non_blocking=True) * 2 + x
        back = torch.empty(y.shape, pin_memory=True)
        back.copy_(y, non_blocking=True)
        torch.cuda.synchronize()
        return y, back.clone()

    host = torch.randn(1 << 12).pin_memory()
    agree(fn, torch.randn(1 << 12, device=D), host)


def test_copies_between_host_and_device():
    def fn(x, host):
        down = (x * 2).cpu() + host
        up = host.cuda() + down.to(x.device)
        return down, up, up.to("cpu", torch.float64), host.to(x), x.new_tensor([1.0, 2.0]), torch.as_tensor(
            [1, 2], device=D)

    x, host = torch.randn(40, device=D), torch.randn(40)
    agree(fn, x, host)
    whole_graph(lambda x, host: (x * 2).cpu() + host, x, host)


def test_a_written_host_tensor():
    def fn(x, host):
        host.add_(x.cpu())
        return x * 2 + host.to(D)

    x = torch.randn(9, device=D)
    mine, theirs = torch.zeros(9), torch.zeros(9)
    framesmith.reset()
    compiled = framesmith.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, mine), fn(x, theirs))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
                                   torch.int32, torch.int16,
                                   torch.int8, torch.uint8, torch.bool])
def test_numbers_of_the_host_are_read_in_each_call(dtype):
    """By the kernel's arguments: nothing is copied to the device."""
    def fn(x, n, total):
        total.add_(1)
        return x * n, x + n.to(D), torch.where(x > 0, x, n), x.sum() * total

    x = torch.randn(33, device=D)
    framesmith.reset()
    compiled = framesmith.compile(fn)
    mine, theirs = torch.tensor(0.0), torch.tensor(0.0)
    for value in (3, 0, 1, 5):
        n = torch.tensor(value).to(dtype)
        torch.testing.assert_close(compiled(x, n, mine), fn(x, n, theirs))
        torch.testing.assert_close(mine, theirs)
    whole_graph(lambda x, n: x * n + n.to(D), x, torch.tensor(2).to(dtype))


def test_a_number_of_the_host_costs_no_copy():
    def fn(x, n):
        return x * n + 1

    x, n = torch.randn(64, device=D), torch.tensor(2.0)
    framesmith.reset()
    compiled = framesmith.compile(fn)
    compiled(x, n)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as told:
        compiled(x, n)
        torch.cuda.synchronize()
    names = [e.key for e in told.key_averages()]
    assert not any("Memcpy" in name for name in names), names


def test_gradients_with_a_number_of_the_host():
    def fn(x, n):
        return (x * n).square().sum()

    framesmith.reset()
    compiled = framesmith.compile(fn)
    for value in (2.0, 3.0):
        n = torch.tensor(value)
        grads = []
        for f in (fn, compiled):
            x = torch.linspace(0, 1, 17, device=D).requires_grad_()
            f(x, n).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
