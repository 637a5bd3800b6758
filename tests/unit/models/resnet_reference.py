#!/usr/bin/env python3
"""Outputs, losses and gradients of torchvision's ResNets, for resnet_test.cpp: resnet_reference.json.

  python3 resnet_reference.py > resnet_reference.json        needs torch 2.11, torchvision 0.26, numpy

Parameters, buffers and images are numbers that a formula gives in both languages.
"""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet


def numbers(key, count):
    """In [-0.5, 0.5): number j of sequence `key`."""
    bits = (np.arange(count, dtype=np.int64) * 2654435761 + key * 40503 + 12345) % 2**32
    return bits / 2.0**32 - 0.5


def narrow(block, layers, planes, classes):
    """torchvision's ResNet with `planes` in place of 64 channels."""
    net = ResNet(block, layers, num_classes=classes)
    net.inplanes = planes
    net.conv1 = torch.nn.Conv2d(3, planes, 7, 2, 3, bias=False)
    net.bn1 = torch.nn.BatchNorm2d(planes)
    for group, count in enumerate(layers):
        made = net._make_layer(block, planes << group, count, stride=1 if group == 0 else 2)
        setattr(net, f"layer{group + 1}", made)
    net.fc = torch.nn.Linear(8 * planes * block.expansion, classes)
    return net


@torch.no_grad()
def fill(net):
    for key, (name, tensor) in enumerate(net.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        values = numbers(key, tensor.numel())
        if tensor.dim() == 4:
            values = values * (24 / (tensor.shape[0] * tensor.shape[2] * tensor.shape[3])) ** 0.5
        elif name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
            values = 1 + 0.5 * values
        else:
            values = 0.4 * values
        tensor.copy_(torch.from_numpy(values).view(tensor.shape))


def network(name, block, layers, planes):
    classes, size = 5, 64
    net = narrow(block, layers, planes, classes).double()
    fill(net)
    images = torch.from_numpy(numbers(1000, 3 * 3 * size * size)).view(3, 3, size, size) * 4
    labels = torch.tensor([1, 4, 0])
    net.eval()
    judged = net(images)
    net.train()
    loss = F.cross_entropy(net(images), labels, label_smoothing=0.1)
    loss.backward()
    gradients = {}
    for name_, parameter in net.named_parameters():
        flat = parameter.grad.flatten()
        weights = torch.from_numpy(numbers(7, flat.numel()))
        gradients[name_] = [flat.norm().item(), flat.dot(weights).item(), flat[0].item(), flat[-1].item()]
    return {"name": name, "layers": layers, "planes": planes, "bottlenecks": block is Bottleneck, "classes": classes,
            "size": size, "labels": labels.tolist(), "label_smoothing": 0.1,
            "shapes": [[n, list(t.shape)] for n, t in net.state_dict().items()],
            "judged": judged.flatten().tolist(), "loss": loss.item(), "gradients": gradients}


def counts():
    """Parameters of ResNets of full size, `planes` of them 64 times the width factor."""
    found = {}
    with torch.device("meta"):
        for depth, block, layers in [(18, BasicBlock, [2, 2, 2, 2]), (34, BasicBlock, [3, 4, 6, 3]),
                                     (50, Bottleneck, [3, 4, 6, 3]), (101, Bottleneck, [3, 4, 23, 3]),
                                     (152, Bottleneck, [3, 8, 36, 3])]:
            for factor in [1, 2, 4, 8]:
                net = narrow(block, layers, 64 * factor, 1000)
                name = f"resnet{depth}" + (f"x{factor}" if factor > 1 else "")
                found[name] = sum(p.numel() for p in net.parameters())
    return found


if __name__ == "__main__":
    json.dump({"parameters": counts(),
               "networks": [network("resnet18", BasicBlock, [2, 2, 2, 2], 4),
                            network("resnet50", Bottleneck, [1, 2, 1, 1], 4)]}, sys.stdout)
    print()
