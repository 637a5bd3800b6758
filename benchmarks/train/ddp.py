#!/usr/bin/env python3
"""The small works of `train` in PyTorch on CPUs: on one process, or on two under DistributedDataParallel over gloo.

ddp.py WORK [--ranks 2] [--steps 20]: one JSON line, with the keys of `train`. Needs torch, and nothing of autopar.
"""
import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(count)])

    def forward(self, x, wanted):
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, wanted)


class Block(nn.Module):
    def __init__(self, width, heads, causal, dropout):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, h = x.shape
        p = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.ln1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        y = x + F.dropout(self.proj(a.transpose(1, 2).reshape(b, s, h)), p, self.training)
        return y + F.dropout(self.fc2(F.gelu(self.fc1(self.ln2(y)))), p, self.training)


class Transformer(nn.Module):
    def __init__(self, words, width, layers, heads, length, causal, dropout):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, causal, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text, wanted):
        x = self.words(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


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
        self.conv1, self.bn1 = nn.Conv2d(3, planes, 7, 2, 3, bias=False), nn.BatchNorm2d(planes)
        layers, channels, classes_of = [], planes, 8 * planes * 4
        for group, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(channels, planes, 2 if group > 0 and i == 0 else 1))
                channels = 4 * planes
            planes *= 2
        self.blocks, self.fc = nn.Sequential(*layers), nn.Linear(classes_of, classes)

    def forward(self, images, wanted):
        x = F.max_pool2d(self.bn1(self.conv1(images)).relu_(), 3, 2, 1)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)
        return F.cross_entropy(self.fc(x), wanted)


def made(work):
    """Model, a process's batch, optimizer: as works.hpp with --small."""
    if work == "mlp":
        model = Mlp(512, 10)
        return model, torch.randn(64, 512), torch.randn(64, 512), torch.optim.SGD(model.parameters(), 1e-3)
    if work in ("gpt", "bert24"):
        model = Transformer(1000, 256, 4, 4, 128, work == "gpt", 0.0 if work == "gpt" else 0.1)
        text = torch.randint(1000, (8, 129))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        return model, text[:, :-1].contiguous(), text[:, 1:].contiguous(), optimizer
    model = ResNet([1, 1, 1, 1], 16 if work == "resnet50" else 32, 100)
    images = torch.randn(16, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    return model, images, torch.randint(100, (16,)), torch.optim.SGD(model.parameters(), 1e-3)


def median(values):
    return sorted(values)[len(values) // 2]


def train(rank, ranks, work, steps, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, x, y, optimizer = made(work)
    if ranks > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29531")
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model)
    seconds, cpu = [], []
    for _ in range(steps + 3):
        begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        now = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append(time.perf_counter() - begin)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    step = median(seconds[3:])
    if rank == 0:
        print(json.dumps({"work": work, "mode": "DDP, gloo" if ranks > 1 else "PyTorch", "small": True, "device": "cpu",
                          "ranks": ranks, "batch": ranks * len(x), "threads": threads, "step_ms": 1e3 * step,
                          "cpu_ms": 1e3 * median(cpu[3:]), "samples_s": ranks * len(x) / step, "loss": loss.item()}))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["gpt", "bert24", "resnet50", "resnet152x4", "mlp"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    threads = max(1, len(os.sched_getaffinity(0)) // options.ranks)
    if options.ranks == 1:
        train(0, 1, options.work, options.steps, threads)
    else:
        torch.multiprocessing.spawn(train, (options.ranks, options.work, options.steps, threads), nprocs=options.ranks)
