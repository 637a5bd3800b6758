#!/usr/bin/env python3
"""The steps of `class_head` in PyTorch, over gloo or NCCL: a JSON line for each head and number of classes.

  dtensor.py --ranks 2 --classes 1000,100000 --head column       DTensor's ColwiseParallel and loss_parallel
  dtensor.py --ranks 2 --classes 1000,100000 --head dense        DistributedDataParallel, the head whole on each rank

The same backbone, batch, optimizer and images' sizes as `class_head` (random images). Needs torch, and nothing of autopar.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module


def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


class Backbone(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(28 * 28, width), nn.Linear(width, width)

    def forward(self, images):
        return F.relu(self.second(F.relu(self.first(images))))


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def start_of_peak(device):
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return 0
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return status("VmRSS")


def peak(device):
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else status("VmHWM")


def measure(rank, ranks, options, mesh, device, kind, classes):
    before = start_of_peak(device)
    torch.manual_seed(1)
    with device:
        backbone, head = Backbone(options.width), nn.Linear(options.width, classes)
    if kind == "dense":
        both = nn.parallel.DistributedDataParallel(nn.Sequential(backbone, head))
        optimizers = [sgd(both)]
    else:
        head = parallelize_module(head, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
        backbone = nn.parallel.DistributedDataParallel(backbone)
        optimizers = [sgd(backbone), sgd(head)]  # one steps tensors, or DTensors, but not both
    images = torch.randn(options.batch // ranks, 28 * 28, device=device)
    target = torch.randint(classes, (options.batch,), device=device)
    milliseconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if kind == "dense":
            own = target.chunk(ranks)[rank]
            loss = F.cross_entropy(both(images), own)
            loss.backward()
        else:
            features = all_gather_tensor_autograd(backbone(images), 0, mesh.get_group())
            with loss_parallel():
                logits = head(DTensor.from_local(features, mesh, [Replicate()], run_check=False))
                loss = F.cross_entropy(logits, target)
                loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        loss.item() if kind == "dense" else loss.full_tensor().item()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    most = torch.tensor([statistics.median(milliseconds), (peak(device) - before) / 2**20], dtype=torch.double,
                        device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"program": "pytorch", "head": kind, "ranks": ranks, "classes": classes, "batch": options.batch,
                          "width": options.width, "step_ms": round(most[0].item(), 2),
                          "peak_mib": round(most[1].item(), 1)}), flush=True)


def run(rank, ranks, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(1)
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", rank=rank, world_size=ranks)
    mesh = init_device_mesh(device.type, (ranks,))
    for classes in map(int, options.classes.split(",")):
        for kind in options.head.split(","):
            measure(rank, ranks, options, mesh, device, kind, classes)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--classes", default="1000,100000")
    parser.add_argument("--head", default="dense,column")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    mp.spawn(run, args=(given.ranks, given), nprocs=given.ranks)
