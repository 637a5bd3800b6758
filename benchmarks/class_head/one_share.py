#!/usr/bin/env python3
"""What `class_share` measures, in PyTorch: one rank's share of DTensor's column parallel linear layer with loss_parallel,
on a mesh of one rank, so that nothing travels. One JSON line.

  one_share.py --classes 1000000 [--ranks 8] [--batch 256] [--width 2048] [--steps 20] [--beside MIB] [--device cuda]
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

WARM_UPS = 3


def resident_peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def measure(o):
    mesh = init_device_mesh(o.device, (1,))
    torch.manual_seed(1)
    held = torch.empty(o.beside << 20, dtype=torch.uint8, device=o.device)
    own = o.classes // o.ranks

    def parameter(*sizes):
        local = torch.empty(sizes, device=o.device).uniform_(-0.02, 0.02)
        return torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))

    weight, bias = parameter(own, o.width), parameter(own)
    features = torch.randn(o.batch, o.width, device=o.device, requires_grad=True)
    target = torch.randint(own, (o.batch,), device=o.device)
    optimizer = torch.optim.SGD([weight, bias], lr=0.05, momentum=0.9)

    def step():
        optimizer.zero_grad()
        features.grad = None
        with loss_parallel():
            F.cross_entropy(F.linear(DTensor.from_local(features, mesh, [Replicate()], run_check=False), weight, bias),
                            target).backward()
        optimizer.step()

    milliseconds, events = [], []
    for number in range(WARM_UPS + o.steps):
        if o.device == "cpu":
            begin = time.perf_counter()
            step()
            milliseconds.append(1e3 * (time.perf_counter() - begin))
        else:
            events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            events[-1][0].record()
            step()
            events[-1][1].record()
            if number == 0:
                torch.cuda.synchronize()
    if o.device != "cpu":
        torch.cuda.synchronize()
        milliseconds = [begin.elapsed_time(end) for begin, end in events]
    peak = resident_peak() if o.device == "cpu" else torch.cuda.max_memory_allocated()
    print(json.dumps({"program": "pytorch", "loss": "loss_parallel", "classes": o.classes, "ranks": o.ranks,
                      "batch": o.batch, "width": o.width, "beside_mib": held.numel() >> 20,
                      "step_ms": round(statistics.median(milliseconds[WARM_UPS:]), 3),
                      "peak_mib": round(peak / 2**20, 1)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1000000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--beside", type=int, default=0, help="MiB held besides")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    given = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    dist.init_process_group("gloo" if given.device == "cpu" else "nccl", rank=0, world_size=1)
    measure(given)
    dist.destroy_process_group()
