"""The fused steps of optimisers, which torch has as one operator over all parameters, as computations for each
parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import _get_value


def adam(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any,
         *, decoupled: bool = False, **options: Any) -> None:
    """torch._fused_adam_; with `decoupled` weight decay, torch._fused_adamw_."""
    beta1, beta2 = options["beta1"], options["beta2"]
    for i, param in enumerate(params):
        grad = _gradient(grads[i], **options)
        if options["weight_decay"] != 0 and decoupled:
            param.mul_(1 - _get_value(options["lr"]) * options["weight_decay"])
        elif options["weight_decay"] != 0:
            grad = grad.add(param, alpha=options["weight_decay"])
        exp_avgs[i].lerp_(grad, 1 - beta1)
        exp_avg_sqs[i].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if options["amsgrad"]:
            torch.maximum(max_exp_avg_sqs[i], exp_avg_sqs[i], out=max_exp_avg_sqs[i])
        step = _get_value(state_steps[i])
        most = max_exp_avg_sqs[i] if options["amsgrad"] else exp_avg_sqs[i]
        denom = (most.sqrt() / (1 - beta2**step) ** 0.5).add_(options["eps"])
        param.addcdiv_(exp_avgs[i], denom, value=-(_get_value(options["lr"]) / (1 - beta1**step)))


def adamw(*lists: Any, **options: Any) -> None:
    """torch._fused_adamw_"""
    adam(*lists, decoupled=True, **options)


def sgd(params: Any, grads: Any, momentum_buffer_list: Any, **options: Any) -> None:
    """torch._fused_sgd_"""
    momentum = options["momentum"]
    for i, param in enumerate(params):
        grad = _gradient(grads[i], **options)
        if options["weight_decay"] != 0:
            grad = grad.add(param, alpha=options["weight_decay"])
        if momentum != 0:
            buffer = momentum_buffer_list[i]
            if options["is_first_step"]:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - options["dampening"])
            grad = grad.add(buffer, alpha=momentum) if options["nesterov"] else buffer
        param.add_(grad, alpha=-_get_value(options["lr"]))


def adagrad(params: Any, grads: Any, state_sums: Any, state_steps: Any, **options: Any) -> None:
    """torch._fused_adagrad_"""
    for i, param in enumerate(params):
        grad = _gradient(grads[i], **options)
        if options["weight_decay"] != 0:
            grad = grad.add(param, alpha=options["weight_decay"])
        rate = _get_value(options["lr"]) / (1 + (_get_value(state_steps[i]) - 1) * options["lr_decay"])
        state_sums[i].addcmul_(grad, grad, value=1)
        param.addcdiv_(grad, state_sums[i].sqrt().add_(options["eps"]), value=-rate)


def _gradient(grad: Any, maximize: bool, **options: Any) -> Any:
    return -grad if maximize else grad
