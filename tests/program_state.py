"""All that a program has set in its process, besides its objects: what a compile leaves alone."""

import ctypes
import faulthandler
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings

import numpy
import torch

import framesmith

PRECISIONS = [("generic", "all"),
              *((device, what) for device in ("cuda", "mkldnn") for what in ("all", "matmul", "conv", "rnn"))]
MATHS = ctypes.CDLL("libm.so.6")


def snapshot():
    """All that is the program's, by name. Files and folders of the cache are not."""
    b, c = torch.backends, torch._C
    generators = {"torch": torch.get_rng_state().numpy().tobytes(), "python": random.getstate(),
                  "numpy": str(numpy.random.get_state())}
    if torch.cuda.is_initialized():
        generators["cuda"] = [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
    mask = os.umask(0)
    os.umask(mask)
    version = {}  # of the filters, as the registry of a module has it
    warnings.warn_explicit("", UserWarning, "", 1, registry=version)
    return {
        **generators,
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(),
                 c._is_multithreading_enabled()),
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), c._len_torch_function_stack(),
                     c._len_torch_dispatch_stack()),
        "precision": ([c._get_fp32_precision_getter(*place) for place in PRECISIONS],  # the older names may be refused
                      b.cudnn.benchmark, b.cudnn.deterministic, b.cudnn.enabled, b.mkldnn.enabled,
                      b.mkldnn.deterministic),
        "attention": (b.cuda.flash_sdp_enabled(), b.cuda.math_sdp_enabled(), b.cuda.mem_efficient_sdp_enabled(),
                      c._get_sdp_priority_order()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(),
                          torch.is_deterministic_algorithms_warn_only_enabled(),
                          torch.utils.deterministic.fill_uninitialized_memory, torch.get_deterministic_debug_mode()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": (torch.is_autocast_cache_enabled(), c._is_any_autocast_enabled()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()),
        "denormals": (torch.tensor([1e-40], device="cpu") * 1.0).item(),
        "floating point": (numpy.geterr(), MATHS.fegetround(), MATHS.fegetexcept()),
        "printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "warnings": (list(warnings.filters), version["version"], warnings.showwarning, torch.is_warn_always_enabled()),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "masked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "alarm": (signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1), faulthandler.is_enabled()),
        "process": (os.getcwd(), dict(os.environ), mask, locale.setlocale(locale.LC_ALL),
                    os.getpriority(os.PRIO_PROCESS, 0),
                    os.sched_getaffinity(0)),
        "python": (list(sys.path), list(sys.meta_path), list(sys.path_hooks), sys.getrecursionlimit(),
                   sys.getswitchinterval(), sys.flags),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, sys.gettrace(),
                  sys.getprofile(), sys.stdout,
                  sys.stderr, sys.stdin, sys.get_asyncgen_hooks(), sys.breakpointhook),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), len(gc.callbacks)),
        "logging": (logging.root.level, list(logging.root.handlers), logging.raiseExceptions,
                    logging.root.manager.disable,
                    logging.getLogger("torch").level, list(logging.getLogger("torch").handlers)),
        "hook": framesmith._C.get_callback(),
        "peers": [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules],
    }  # fmt: skip
