"""An exported program: rewritten for any batch size, saved, loaded, and run elsewhere."""

import tempfile
from pathlib import Path

import torch

from pypm.integrations import export
from pypm.rules import attention


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind()
        return torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v


model = Attention().eval()
shapes = {"x": {0: torch.export.Dim("batch")}}
program = torch.export.export(model, (torch.randn(2, 6, 16),), dynamic_shapes=shapes)
report = export.rewrite(program, attention.RULES)
print(report)
print(f"{report.count('sdpa')} attention in {len(program.graph.nodes)} nodes")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.pt2"
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()

for batch in (2, 5):
    x = torch.randn(batch, 6, 16)
    torch.testing.assert_close(loaded(x), model(x))
print("outputs agree with eager's for two batch sizes")
