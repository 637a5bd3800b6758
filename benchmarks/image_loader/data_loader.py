#!/usr/bin/env python3
"""PyTorch's DataLoader of torchvision's ImageFolder on the files and transforms of `image_loader`: a JSON line with its keys.

  data_loader.py FOLDER --workers 2 --epochs 3

Needs torch, torchvision and pillow, and nothing of autopar.
"""
import argparse
import json
import resource
import time

import torch
from torchvision import datasets, transforms


def cpu_seconds():
    """Of this process, and of workers that have ended."""
    return sum(used.ru_utime + used.ru_stime
               for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--validation", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(1)
    normalised = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    if o.validation:
        chosen = [transforms.Resize(256), transforms.CenterCrop(224), *normalised]
    else:
        chosen = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *normalised]
    images = datasets.ImageFolder(o.folder + "/train", transforms.Compose(chosen))
    loader = torch.utils.data.DataLoader(images, o.batch, shuffle=not o.validation, num_workers=o.workers,
                                         persistent_workers=True, drop_last=not o.validation)
    cpu = cpu_seconds()
    for _ in loader:
        pass
    begin, seen = time.perf_counter(), 0
    for _ in range(o.epochs):
        for batch, _ in loader:
            seen += len(batch)
    seconds = time.perf_counter() - begin
    del loader  # ends the workers
    cpu = (cpu_seconds() - cpu) * o.epochs / (o.epochs + 1)  # the first epoch is as long as the others
    print(json.dumps({"loader": "pytorch", "transform": "validation" if o.validation else "training",
                      "workers": o.workers, "images_s": round(seen / seconds, 1),
                      "images_cpu_s": round(seen / cpu, 1)}))


if __name__ == "__main__":
    main()
