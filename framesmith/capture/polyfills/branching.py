"""Optimisers of torch that branch on their state: both paths are computed, and data selects one."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import _get_value, _to_scalar


def radam(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, state_steps: Any, *, beta1: Any, beta2: Any,
          lr: Any, weight_decay: Any,
          eps: Any, decoupled_weight_decay: Any, maximize: Any, **rest: Any) -> None:
    """torch.optim.radam._single_tensor_radam: the rectified step is taken from about the fifth on."""
    lr = _to_scalar(lr)
    rho_inf = 2 / (1 - beta2) - 1
    for i, param in enumerate(params):
        grad = _real(grads[i] if not maximize else -grads[i])
        param, exp_avg, exp_avg_sq = _real(param), _real(exp_avgs[i]), _real(exp_avg_sqs[i])
        state_steps[i].add_(1)
        step = state_steps[i].double()  # what follows of it is arithmetic of Python floats in eager
        if weight_decay != 0:
            if decoupled_weight_decay:
                param.mul_(1 - lr * weight_decay)
            else:
                grad = grad.add(param, alpha=weight_decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction = 1 - beta2**step
        rho = rho_inf - 2 * step * (beta2**step) / correction
        # NaN where it is not taken
        rect = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        plain = exp_avg / (1 - beta1**step) * lr
        rectified = plain * (exp_avg_sq.sqrt().add_(eps).reciprocal() * correction**0.5) * rect
        param.add_(torch.where(rho > 5.0, rectified, plain), alpha=-1.0)


def asgd(params: Any, grads: Any, axs: Any, mus: Any, etas: Any, state_steps: Any, *, lambd: Any, lr: Any, t0: Any,
         alpha: Any,
         weight_decay: Any, maximize: Any, **rest: Any) -> None:
    """torch.optim.asgd._single_tensor_asgd: the average is the parameter until averaging begins."""
    lr = _to_scalar(lr)
    for i, param in enumerate(params):
        grad = _real(grads[i] if not maximize else -grads[i])
        param, ax, mu = _real(param), _real(axs[i]), mus[i]
        state_steps[i].add_(1)
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        eta = _get_value(etas[i])
        param.mul_(1 - lambd * eta)
        param.add_(grad, alpha=-eta)
        ax.copy_(torch.where(mu != 1, ax + param.sub(ax).mul_(mu), param))
        step = state_steps[i].double()
        etas[i].copy_(lr / ((1 + lambd * lr * step) ** alpha))
        mu.copy_((step - t0).clamp(min=1).reciprocal())


def _real(x: Any) -> Any:
    return torch.view_as_real(x) if torch.is_complex(x) else x
