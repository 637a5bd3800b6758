"""python_load.py ROOT PROGRAM: runs the Python lines of docs/guide.md that load an exported file into a torch module.

PROGRAM is export_net. Ends with 77, which CTest takes for skipped, where Python lacks torch or safetensors.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import safetensors  # noqa: F401
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 10)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.norm(self.words(tokens)))


def lines_of(guide):
    """The block that calls load_file."""
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", guide.read_text(), re.S) if "load_file(" in b]
    return block


root, program = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
with tempfile.TemporaryDirectory() as folder:
    told = subprocess.run([program, "net.safetensors"], cwd=folder, check=True, capture_output=True, text=True).stdout
    expected = torch.tensor([float(line) for line in told.split()])
    worst = 0.0
    for file in ("net.safetensors", "net.safetensors.d/model.safetensors"):  # an export, and a checkpoint
        net = Net()
        lines = lines_of(root / "docs" / "guide.md").replace('"net.safetensors"', repr(f"{folder}/{file}"))
        exec(lines, {"net": net})  # the guide's own lines
        with torch.no_grad():
            made = net.eval()(torch.arange(8) % 7).flatten()
        worst = max(worst, (made - expected).abs().max().item())
    print(f"largest difference {worst:.3g} of {expected.abs().max().item():.3g}")
    sys.exit(0 if len(expected) == 80 and worst <= 1e-5 else 1)
