"""Named models, 50 steps over two and four processes under DDP and FSDP2: losses and parameters are eager's, bit for
bit where eager's operators run the graphs; kernels of our own sum in another order."""

import functools
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import framesmith
from benchmarks.models import DLRM
from framesmith.distributed.work import blocks_of
from framesmith.util import events

from .test_fully_shard import full, sharded
from .world import PRELOADED, World

STEPS, BATCH, LENGTH, WORDS = 50, 2, 8, 61
TRANSFORMERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
                "vocab_size": WORDS}
PRELOADED += ["benchmarks.models", "timm.models.resnet",
              *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama"))]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def processes(request):
    made = World(request.param)
    yield made
    made.close()


class Causal(nn.Module):
    """The loss of a language model of transformers, in the dtype of its logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        logits = self.model(ids).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Squared(nn.Module):
    """The squared results of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *given):
        return (self.model(*given) ** 2).mean()


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return Causal(BertForMaskedLM(BertConfig(**TRANSFORMERS)))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return Causal(GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=WORDS, n_positions=LENGTH)))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return Causal(LlamaForCausalLM(LlamaConfig(**TRANSFORMERS, num_key_value_heads=1)))


def resnet():
    from timm.models.resnet import BasicBlock, ResNet

    return Squared(ResNet(BasicBlock, [2, 2, 2, 2], num_classes=4, channels=(4, 8, 16, 32), stem_width=4))


def ids(generator):
    return (torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator),)


def images(generator):
    return (torch.randn(BATCH, 3, 64, 64, generator=generator, dtype=torch.float64),)


def features(generator):
    return (torch.randn(BATCH, 13, generator=generator, dtype=torch.float64),
            torch.randint(0, 50, (3, 4 * BATCH), generator=generator), torch.arange(0, 4 * BATCH, 4).repeat(3, 1))


MODELS = {"BERT": (bert, ids), "GPT-2": (gpt2, ids), "Llama": (llama, ids), "ResNet-18": (resnet, images),
          "DLRM": (lambda: Squared(DLRM(3, 50, 16)), features)}


def fully_sharded(model):
    for block in blocks_of(model):
        sharded(block)
    return sharded(model)


WRAPPERS = {"DDP": DistributedDataParallel, "FSDP2": fully_sharded}


def trained(name, wrapper, compiled):
    """Losses, then parameters and buffers. Each rank has a batch for even and one for odd steps."""
    build, batch = MODELS[name]
    torch.manual_seed(0)
    model = WRAPPERS[wrapper](build().double().train())
    call = compiled(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    for step in range(STEPS):
        given = batch(torch.Generator().manual_seed(100 * (step % 2) + dist.get_rank()))
        torch.manual_seed(100 * step + dist.get_rank())
        loss = call(*given)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.detach())
    return [*found, *[full(x.detach()) for x in model.state_dict().values()]]


@functools.cache
def trained_in_eager(name, wrapper):
    """What both back ends are compared with, once in the processes of a world."""
    return trained(name, wrapper, lambda model: model)


def same_training(name, wrapper, backend):
    seen = []
    with warnings.catch_warnings(), events.on_event(seen.append):
        warnings.simplefilter("ignore", FutureWarning)
        found = trained(name, wrapper, lambda model: framesmith.compile(model, backend=backend))
    framesmith.reset()
    expected = trained_in_eager(name, wrapper)
    assert expected[STEPS - 1] < expected[0], "the model learns nothing"
    near = {"rtol": 1e-6, "atol": 1e-7} if name == "Llama" else {"rtol": 1e-9, "atol": 1e-12}  # norms of float32
    tolerance = {"rtol": 0, "atol": 0} if backend == "aot_eager" else near
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    assert not [e for e in seen if isinstance(e, events.Fallback)]
    assert [e for e in seen if isinstance(e, events.CompileEnded)]


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_eagers(processes, name, wrapper, backend):
    processes.run(same_training, name, wrapper, backend)
