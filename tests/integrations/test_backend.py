"""The backend "pypm" of `torch.compile`, as the entry point names it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from pypm.integrations import inductor
from tests.compiled import fresh_graphs
from tests.floors import ROOT

GROUP = "torch_dynamo_backends"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "given",
    [{}, {"mode": "default"}, {"options": {"max_autotune": False, "exactness": "rounding"}}],
)
def test_the_entry_point_compiles(
    given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[inductor.Pass] = []
    to_options = inductor.Pass.options

    def kept(self: inductor.Pass, *args: object, **options: object) -> dict[str, object]:
        made.append(self)
        return to_options(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(inductor.Pass, "options", kept)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    backend = resolve_name(declared["entry-points"][GROUP]["pypm"])
    x = torch.randn(4, 8)
    with fresh_graphs(), inductor.uncached():
        compiled = torch.compile(lambda x: torch.softmax(x, -1) + 1, backend=backend, **given)  # type: ignore[call-overload]
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
    (rewriting,) = made
    assert rewriting.rules.name == "inference" and len(rewriting.reports) == 1
    assert rewriting.exactness == ("rounding" if "options" in given else "reassociated")


def test_dynamo_asks_for_the_group() -> None:
    from torch._dynamo.backends import registry

    assert f'"{GROUP}"' in Path(registry.__file__).read_text(encoding="utf-8")
