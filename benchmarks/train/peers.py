#!/usr/bin/env python3
"""The works of `train` in PyTorch, in the settings that its users choose: one JSON line with the keys of `train`.

  peers.py gpt --mode fsdp --keep --compile --reduce bf16     FSDP2 on all GPUs here
  peers.py resnet50 --mode ddp --compile                      DistributedDataParallel
  peers.py mlp --mode pipeline --micro 8                      1F1B, a stage a rank
  peers.py gpt --mode eager --ranks 1                         one process
  peers.py mlp --small --device cpu --mode ddp --ranks 2      seconds on two cores, over gloo

Needs torch, and nothing of autopar.
"""
import argparse
import json
import os
import resource
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(count)])

    def parts(self):
        return list(self.layers)

    def repeated(self):
        return self.layers

    @staticmethod
    def loss(y, wanted):
        return F.mse_loss(y.float(), wanted)


class Block(nn.Module):
    def __init__(self, width, heads, causal, dropout, written):
        super().__init__()
        self.heads, self.causal, self.dropout, self.written = heads, causal, dropout, written
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, q, k, v, p):
        if not self.written:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
        if self.causal:
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return F.dropout(torch.softmax(scores, -1), p, self.training) @ v

    def forward(self, x):
        b, s, h = x.shape
        p = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.ln1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = self.attention(q, k, v, p)
        y = x + F.dropout(self.proj(a.transpose(1, 2).reshape(b, s, h)), p, self.training)
        return y + F.dropout(self.fc2(F.gelu(self.fc1(self.ln2(y)))), p, self.training)


class Embedding(nn.Module):
    def __init__(self, words, width, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, text):
        return self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))


class Transformer(nn.Module):
    def __init__(self, words, width, layers, heads, length, causal, dropout, written):
        super().__init__()
        self.embedding = Embedding(words, width, length)
        self.blocks = nn.ModuleList([Block(width, heads, causal, dropout, written) for _ in range(layers)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))

    def parts(self):
        return [self.embedding, *self.blocks, self.head]

    def repeated(self):
        return self.blocks

    @staticmethod
    def loss(y, wanted):
        return F.cross_entropy(y.flatten(0, 1).float(), wanted.flatten())


class Bottleneck(nn.Module):
    def __init__(self, channels, planes, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != 4 * planes:
            narrow = nn.Conv2d(channels, 4 * planes, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y)).relu_()
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return y.relu_()


class ResNet(nn.Module):
    def __init__(self, blocks, planes, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, planes, 7, 2, 3, bias=False), nn.BatchNorm2d(planes),
                                  nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        layers, channels, features = [], planes, 8 * planes * 4
        for group, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(channels, planes, 2 if group > 0 and i == 0 else 1))
                channels = 4 * planes
            planes *= 2
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))

    def parts(self):
        return [self.stem, *self.blocks, self.head]

    def repeated(self):
        return self.blocks

    @staticmethod
    def loss(y, wanted):
        return F.cross_entropy(y.float(), wanted)


class Trained(nn.Module):
    """A model with its loss inside: what DistributedDataParallel and FSDP2 wrap."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, wanted):
        for part in self.model.parts():
            x = part(x)
        return self.model.loss(x, wanted)


def sizes(o):
    """Arguments of the model, samples of a rank: as works.hpp."""
    if o.work == "mlp":
        return (Mlp, (512, 10) if o.small else (5000, 100), 64)
    if o.work in ("gpt", "bert24", "bert"):
        causal, dropout = o.work == "gpt", 0.0 if o.work == "gpt" else 0.1
        shape = (50304, 2048, 24, 16, 1024) if causal else (30522, 2048, 96 if o.work == "bert" else 24, 32, 512)
        if o.layers:
            shape = (*shape[:2], o.layers, *shape[3:])
        return (Transformer, (*((1000, 256, 4, 4, 128) if o.small else shape), causal, dropout, o.written_attention), 8)
    if o.small:
        return (ResNet, ([1, 1, 1, 1], 16 if o.work == "resnet50" else 32, 100), 16)
    if o.work == "resnet50":
        return (ResNet, ([3, 4, 6, 3], 64, 1000), 256)
    wide = o.work == "resnet152x8"
    return (ResNet, ([3, 8, 36, 3], 512 if wide else 256, 1000), 16 if wide else 32)


def inputs(o, arguments, samples, device):
    if o.work == "mlp":
        return torch.randn(samples, arguments[0], device=device), torch.randn(samples, arguments[0], device=device)
    if o.work in ("gpt", "bert24", "bert"):
        text = torch.randint(arguments[0], (samples, arguments[4] + 1), device=device)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    pixels = 64 if o.small else 224
    images = torch.randn(samples, 3, pixels, pixels, device=device).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(arguments[2], (samples,), device=device)


def optimizer_of(o, parameters, device):
    fused = device.type == "cuda"
    if o.work in ("gpt", "bert24", "bert"):
        return torch.optim.AdamW(parameters, 1e-4, fused=True)
    return torch.optim.SGD(parameters, 1e-3, fused=fused)


def filled(module, device):
    """Memory and values for a module made without either."""
    module.to_empty(device=device)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    for name, buffer in module.named_buffers():
        nn.init.constant_(buffer, 1 if "var" in name else 0)
    return module


def whole_model_step(o, kind, arguments, samples, device):
    """One process, DistributedDataParallel, FSDP2."""
    low = torch.bfloat16 if o.precision == "bf16" else None
    if o.mode == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        with torch.device("meta"):
            model = kind(*arguments)
        if o.compile:
            for i, block in enumerate(model.repeated()):
                model.repeated()[i] = torch.compile(block)
        reduce = torch.bfloat16 if o.reduce == "bf16" else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce) if low else MixedPrecisionPolicy()
        if o.checkpoint:
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
            for i, block in enumerate(model.repeated()):
                model.repeated()[i] = checkpoint_wrapper(block)
        trained = Trained(model)
        for block in model.repeated():
            fully_shard(block, mp_policy=policy, reshard_after_forward=not o.keep)
        fully_shard(trained, mp_policy=policy)
        filled(trained, device)
    else:
        with device:
            model = kind(*arguments)
        if kind is ResNet:
            model = model.to(memory_format=torch.channels_last)
        trained = Trained(model)
        if o.compile:
            trained = torch.compile(trained)
        if o.mode == "ddp":
            on = [device] if device.type == "cuda" else None
            trained = nn.parallel.DistributedDataParallel(trained, device_ids=on, gradient_as_bucket_view=bool(on))
    x, y = inputs(o, arguments, samples, device)
    optimizer = optimizer_of(o, trained.parameters(), device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device.type, low) if low and o.mode != "fsdp" else nullcontext():
            loss = trained(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Autocast(nn.Module):
    def __init__(self, inner, low):
        super().__init__()
        self.inner, self.low = inner, low

    def forward(self, x):
        with torch.autocast(x.device.type, self.low) if self.low else nullcontext():
            return self.inner(x)


def pipeline_step(o, kind, arguments, samples, device, rank):
    """1F1B with a stage a rank, parts dealt out evenly; the batch is that of all ranks."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    with torch.device("meta"):
        model = kind(*arguments)
    parts, last = model.parts(), o.ranks - 1
    cuts = [len(parts) * i // o.ranks for i in range(o.ranks + 1)]
    mine = filled(nn.Sequential(*parts[cuts[rank]:cuts[rank + 1]]), device)
    low = torch.bfloat16 if o.precision == "bf16" else None
    stage = PipelineStage(Autocast(mine, low), rank, o.ranks, device)
    schedule = Schedule1F1B(stage, o.micro, loss_fn=model.loss)
    x, y = inputs(o, arguments, samples * o.ranks, device)
    optimizer = optimizer_of(o, mine.parameters(), device)

    def step():
        optimizer.zero_grad()
        losses = []
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == last else {}))
        optimizer.step()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step


def train(rank, o):
    cpu = o.device == "cpu"
    if cpu:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // o.ranks))
    device = torch.device("cpu") if cpu else torch.device("cuda", rank)
    torch.manual_seed(1)
    if not cpu:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    if o.ranks > 1 or o.mode in ("fsdp", "pipeline"):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29531")
        on = None if cpu else device
        dist.init_process_group("gloo" if cpu else "nccl", rank=rank, world_size=o.ranks, device_id=on)
    begin = time.perf_counter()
    kind, arguments, samples = sizes(o)
    samples = o.batch or samples
    if o.mode == "pipeline":
        step = pipeline_step(o, kind, arguments, samples, device, rank)
    else:
        step = whole_model_step(o, kind, arguments, samples, device)

    def wait():
        if not cpu:
            torch.cuda.synchronize()

    step()
    wait()
    setup = time.perf_counter() - begin
    for _ in range(2):
        step()
    wait()
    if not cpu:
        torch.cuda.reset_peak_memory_stats()
    seconds, used = [], []
    for _ in range(o.steps):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        loss = step()
        wait()
        now = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append(time.perf_counter() - start)
        used.append(now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime)
    line = {"work": o.work, "mode": o.mode, "small": o.small, "ranks": o.ranks, "batch": o.ranks * samples,
            "precision": o.precision, "compile": o.compile, "steps": o.steps, "setup_s": setup}
    if o.mode == "fsdp":
        line |= {"keep": o.keep, "reduce": o.reduce}
    if o.mode == "pipeline":
        line |= {"schedule": "1F1B", "micro": o.micro}
    if o.layers:
        line["layers"] = o.layers
    if o.written_attention:
        line["written_attention"] = True
    if not cpu:
        start = time.perf_counter()
        for _ in range(o.steps):
            step()
        wait()
        line["loop_ms"] = 1e3 * (time.perf_counter() - start) / o.steps
        peak = torch.tensor([torch.cuda.max_memory_allocated() / 2**30], device=device)
        if dist.is_initialized():
            dist.all_reduce(peak, dist.ReduceOp.MAX)
        line["peak_gib"] = peak.item()
    median = statistics.median(seconds)
    line |= {"device": "cpu" if cpu else torch.cuda.get_device_name(device), "step_ms": 1e3 * median,
             "cpu_ms": 1e3 * statistics.median(used), "samples_s": o.ranks * samples / median, "loss": loss.item()}
    if rank == (o.ranks - 1 if o.mode == "pipeline" else 0):  # of a pipeline the last rank has the loss
        print(json.dumps(line), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["gpt", "bert24", "bert", "resnet50", "resnet152x4", "resnet152x8", "mlp"])
    parser.add_argument("--mode", choices=["eager", "ddp", "fsdp", "pipeline"], default="eager")
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs here; 1 on CPUs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--batch", type=int, default=0, help="samples of a rank")
    parser.add_argument("--layers", type=int, default=0, help="of gpt and bert, instead of the work's own")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=["module", "tf32", "bf16"], default="")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile: FSDP2's a block at a time")
    parser.add_argument("--keep", action="store_true", help="FSDP2 keeps parameters between forward and backward")
    parser.add_argument("--checkpoint", action="store_true", help="FSDP2 recomputes each block in its backward")
    parser.add_argument("--reduce", choices=["fp32", "bf16"], default="fp32", help="FSDP2's sums of gradients")
    parser.add_argument("--micro", type=int, default=8, help="micro-batches of a pipeline")
    parser.add_argument("--written-attention", action="store_true")
    o = parser.parse_args()
    if not o.precision:
        o.precision = "module" if o.device == "cpu" else "tf32" if o.work == "mlp" else "bf16"
    if not o.ranks:
        o.ranks = 1 if o.device == "cpu" or o.mode == "eager" else torch.cuda.device_count()
    return o


if __name__ == "__main__":
    chosen = options()
    if chosen.ranks == 1:
        train(0, chosen)
    else:
        torch.multiprocessing.spawn(train, (chosen,), nprocs=chosen.ranks)
