"""Rotary embeddings in every spelling, and turns that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor, fx

from pypm import RuleSet
from pypm.fx import Report, rewrite
from pypm.rules import rotary
from tests.axes import axes
from tests.rules.capture import HOOKS, WAYS_AND_HOOKS, fired

torch.set_num_threads(1)

RULES: Final = RuleSet((replace(rotary.rotary_of_both, pays="mostly"),))
"""The rule is a candidate, which the first choice would not take."""


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "FEW", 0)


B, H, G, S, D = 2, 4, 2, 5, 16
HALF: Final = D // 2
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def values(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Query [B, H, S, D] and key [B, G, S, D] laid out by token, cosine and sine [1, 1, S, D].

    No two angles are equal, so that none is taken for another.
    """
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)

    q, k = normal(B, S, H, D).transpose(1, 2), normal(B, S, G, D).transpose(1, 2)
    return [q, k, normal(1, 1, S, D), normal(1, 1, S, D)]


def slices(x: Tensor) -> Tensor:
    return torch.cat((-x[..., HALF:], x[..., :HALF]), dim=-1)


def full_slices(x: Tensor) -> Tensor:
    return torch.cat((-x[:, :, :, HALF:D], x[:, :, :, 0:HALF]), dim=3)


def chunks(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def splits(x: Tensor) -> Tensor:
    a, b = torch.split(x, HALF, dim=-1)
    return torch.cat((b.neg(), a), dim=-1)


def pieces(x: Tensor) -> Tensor:
    a = torch.split(x, [HALF, 3, HALF - 3], dim=-1)[0]
    return torch.cat((-x.split((3, 5, HALF), dim=-1)[2], a), dim=-1)


def narrowed(x: Tensor) -> Tensor:
    return torch.cat((-x.narrow(-1, HALF, HALF), x.narrow(3, 0, HALF)), dim=-1)


def neighbours(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def neighbours_by_shape(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).reshape(x.shape)


def pairs(x: Tensor) -> Tensor:
    return x.reshape(B, -1, S, HALF, 2)


def unbound(x: Tensor) -> Tensor:
    y = pairs(x).unbind(-1)
    return torch.stack((-y[1], y[0]), dim=-1).flatten(3)


def selected(x: Tensor) -> Tensor:
    y = x.unflatten(-1, (HALF, 2))
    return torch.stack((-y.select(-1, 1), y.select(-1, -2)), dim=-1).flatten(3)


def indexed(x: Tensor) -> Tensor:
    y = pairs(x)
    return torch.stack((-y[..., 1], y[..., 0]), dim=-1).reshape(B, -1, S, D)


def halves_apart(x: Tensor) -> Tensor:
    a, b = x.reshape(B, -1, S, 2, HALF).unbind(-2)
    return torch.cat((-b, a), dim=-1)


def halves_selected(x: Tensor) -> Tensor:
    y = x.unflatten(-1, (2, HALF))
    return torch.cat((-y.select(3, 1), y.select(-2, -2)), dim=-1)


QUARTERS: Final = {
    f.__name__: f
    for f in (
        slices,
        full_slices,
        chunks,
        splits,
        pieces,
        narrowed,
        neighbours,
        neighbours_by_shape,
        unbound,
        selected,
        indexed,
        halves_apart,
        halves_selected,
    )
}


def by(quarter: Callable[[Tensor], Tensor]) -> Turn:
    return lambda x, cos, sin: x * cos + quarter(x) * sin


def first_elements(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., :6], x[..., 6:]
    a = a * cos[..., :6] + torch.cat((-a[..., 3:], a[..., :3]), -1) * sin[..., :6]
    return torch.cat((a, b), -1)


def first_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., :HALF], x[..., HALF:]
    return torch.cat((a * cos[..., :HALF] + neighbours(a) * sin[..., :HALF], b), -1)


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def an_angle_a_pair(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return halves(x, cos[..., :HALF], sin[..., :HALF])


def an_angle_for_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos[..., :HALF], sin[..., :HALF]
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def columns(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As FLUX: each element has an angle of its own, taken by columns."""
    a, b = x[..., ::2], x[..., 1::2]
    first = a * cos[..., ::2] - b * sin[..., ::2]
    return torch.stack((first, a * sin[..., 1::2] + b * cos[..., 1::2]), -1).flatten(-2)


def columns_of_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    (a, b), (c, d), (s, t) = (y.chunk(2, -1) for y in (x, cos, sin))
    return torch.cat((a * c - b * s, b * d + a * t), -1)


def upcast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y, cos, sin = x.float(), cos.float(), sin.float()
    return (y * cos + slices(y) * sin).to(torch.bfloat16)


def upcast_after_the_turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = unbound(x).float()
    return (x.float() * cos.float() + y * sin.float()).to(torch.bfloat16)


TURNS: Final[dict[str, Turn]] = {
    **{name: by(quarter) for name, quarter in QUARTERS.items()},
    "sum the other way": lambda x, cos, sin: sin * slices(x) + cos * x,
    "first elements": first_elements,
    "first neighbours": first_neighbours,
    "an angle a pair": an_angle_a_pair,
    "an angle for neighbours": an_angle_for_neighbours,
    "columns": columns,
    "columns of halves": columns_of_halves,
}

OTHER_ANGLES: Final[dict[str, Turn]] = {
    "angles of a row": lambda x, cos, sin: x * cos[0, 0] + slices(x) * sin[0, 0],
    "unsqueezed": lambda x, cos, sin: (
        x * cos[:, 0].unsqueeze(1) + slices(x) * sin[:, 0].unsqueeze(1)
    ),
}


def of_both(turn: Turn) -> Callable[..., tuple[Tensor, Tensor]]:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q, cos, sin), turn(k, cos, sin)

    return function


def run(way: str, function: Callable[..., Any], args: list[Tensor]) -> tuple[Report, Any]:
    return WAYS_AND_HOOKS[way](function, args, RULES)


@axes(name=TURNS, way=["decomposed", "export", "symbolic_trace", *HOOKS])
def test_query_and_key(name: str, way: str) -> None:
    if name == "neighbours_by_shape" and way == "symbolic_trace":
        pytest.skip("the shape is a traced value, which is not known")
    args, function = values(), of_both(TURNS[name])
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-12, rtol=1e-12)


@axes(name=OTHER_ANGLES, way=["decomposed", "export"])
def test_angles_of_fewer_dimensions(name: str, way: str) -> None:
    args, function = values(), of_both(OTHER_ANGLES[name])
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-12, rtol=1e-12)


def test_a_query_alone_is_left() -> None:
    q, _, cos, sin = values()
    report, _ = run("export", TURNS["slices"], [q, cos, sin])
    assert len(report) == 0


@axes(
    turn_and_like=[
        (upcast, "slices"),
        (upcast_after_the_turn, "unbound"),
        (TURNS["slices"], "slices"),
    ],
    way=["export", "decomposed", *HOOKS],
)
def test_bfloat16(turn_and_like: tuple[Turn, str], way: str) -> None:
    """No further from float64 than eager, or than one rounding is."""
    turn, like = turn_and_like
    args, function = values(torch.bfloat16), of_both(turn)
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    exact = [TURNS[like](x.double(), args[2].double(), args[3].double()) for x in args[:2]]
    for ours, theirs, wide in zip(result, function(*args), exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - wide).abs().max() <= 1.05 * (theirs - wide).abs().max()


# --- written into every second element -----------------------------------------------------------


def written(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    out: Callable[[Tensor], Tensor] = torch.empty_like,
    *,
    order: tuple[int, int] = (0, 1),
    exchanged: bool = False,
) -> Tensor:
    """As Wan's of diffusers; `order` lists which of the two elements of a pair are written."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    parts = [a * cos - b * sin, a * sin + b * cos]
    y = out(x)
    for i in order:
        y[..., i::2] = parts[1 - i if exchanged else i]
    return y.type_as(x)


def written_backwards(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return written(x, cos, sin, torch.ones_like, order=(1, 0))


def quarter_written(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.empty_like(x)
    turned[..., ::2], turned[..., 1::2] = -x[..., 1::2], x[..., ::2]
    return x * cos + turned * sin


def quarter_written_in_integers(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.empty_like(x, dtype=torch.int32)
    turned[..., ::2], turned[..., 1::2] = -x[..., 1::2], x[..., ::2]
    return x * cos + turned * sin


def written_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return written(x, cos, sin, lambda x: torch.empty_like(x, dtype=torch.float32))


def columns_written(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b, y = x[..., ::2], x[..., 1::2], torch.empty_like(x)
    y[..., ::2] = a * cos[..., ::2] - b * sin[..., ::2]
    y[..., 1::2] = a * sin[..., 1::2] + b * cos[..., 1::2]
    return y


@axes(
    turn=[written, written_backwards, quarter_written, columns_written], way=["decomposed", "joint"]
)
def test_written_results(turn: Turn, way: str) -> None:
    args, function = values(), of_both(turn)
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-12, rtol=1e-12)


@axes(turn=[written, written_in_float32], way=["decomposed", "joint"])
def test_written_results_in_bfloat16(turn: Turn, way: str) -> None:
    """The angles are float32, as in diffusers; one rounding, as in eager."""
    args = [x.to(torch.bfloat16) for x in values()[:2]] + [x.float() for x in values()[2:]]
    function = of_both(turn)
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-2, rtol=1e-2)


def test_written_results_in_exported_programs() -> None:
    from pypm.integrations import export

    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            return of_both(written)(q, k, cos, sin)

    args = tuple(values())
    program = torch.export.export(Model(), args).run_decompositions()
    assert fired(export.rewrite(program, RULES)) == ["rotary_of_both"]
    torch.testing.assert_close(program.module()(*args), Model()(*args), atol=1e-12, rtol=1e-12)


def written_as_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin, y = cos[..., :HALF], sin[..., :HALF], torch.empty_like(x)
    y[..., :HALF], y[..., HALF:] = a * cos - b * sin, b * cos + a * sin
    return y


def written_by_thirds(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., :12:2], x[..., 1:12:2]
    cos, sin, y = cos[..., :6], sin[..., :6], torch.zeros_like(x)
    y[..., ::3], y[..., 1:-1:3] = a * cos - b * sin, (b * cos + a * sin)[..., :5]
    return y


def broadcast_by_the_write(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return written(x, cos, sin, lambda x: torch.empty(3, *x.shape, dtype=x.dtype))


def rounded_by_the_write(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return written(x, cos, sin, lambda x: torch.empty_like(x, dtype=torch.float32))


NEAR_MISSES_OF_WRITES: Final[dict[str, Turn]] = {
    "exchanged": lambda x, cos, sin: written(x, cos, sin, exchanged=True),
    "one written": lambda x, cos, sin: written(x, cos, sin, torch.zeros_like, order=(0,)),
    "the other written": lambda x, cos, sin: written(x, cos, sin, torch.zeros_like, order=(1,)),
    "one written twice": lambda x, cos, sin: written(x, cos, sin, torch.zeros_like, order=(1, 1)),
    "as halves": written_as_halves,
    "by thirds": written_by_thirds,
    "broadcast by the write": broadcast_by_the_write,
    "rounded by the write": rounded_by_the_write,
    "rounded to integers": lambda x, cos, sin: written(
        x, cos, sin, lambda x: torch.empty_like(x, dtype=torch.int32)
    ),
    "a quarter in integers": quarter_written_in_integers,
    "without imaginary parts": lambda x, cos, sin: written(x, cos + 0j, sin),
    "without imaginary parts of both": lambda x, cos, sin: written(x, cos + 1j, sin + 1j),
}


@axes(name=NEAR_MISSES_OF_WRITES, way=["decomposed", "joint"])
def test_near_misses_of_writes(name: str, way: str) -> None:
    args, function = values(), of_both(NEAR_MISSES_OF_WRITES[name])
    report, result = run(way, function, args)
    assert len(report) == 0, str(report)
    torch.testing.assert_close(result, function(*args))


def test_a_write_of_a_narrower_range() -> None:
    """Float16 cannot hold what bfloat16 can: the result is infinite, and stays so."""
    q, k, cos, sin = (x.to(torch.bfloat16) for x in values())

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return written(x, cos, sin, lambda x: torch.empty_like(x, dtype=torch.float16))

    for angles in ((cos, sin), (cos.float(), sin.float())):
        report, result = run("joint", of_both(turn), [q * 1e6, k * 1e6, *angles])
        assert len(report) == 0 and result[0].isinf().any(), str(report)


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_what_is_rounded_before_alone_is_turned_in_its_wider_type(way: str) -> None:
    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return by(slices)(x.float(), cos, sin)

    q, k, cos, sin = values()
    args, function = [q.bfloat16(), k.bfloat16(), cos.float(), sin.float()], of_both(turn)
    report, result = run(way, function, args)
    assert fired(report) == ["rotary_of_both"] and not report.refusals, str(report)
    torch.testing.assert_close(result, function(*args))


def test_layers_share_their_angles() -> None:
    """Each query goes with the key of its own layer: with another's there would be a cycle."""

    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for _ in range(3):
            q, k = of_both(TURNS["slices"])(q, k, cos, sin)
            q = torch.softmax(q @ k.repeat_interleave(2, 1).mT, -1) @ q
            k = torch.tanh(q[:, ::2] + k)
        return q + k.sum()

    args = values()
    for way in ("export", "joint"):
        report, result = run(way, function, args)
        assert fired(report) == 3 * ["rotary_of_both"], str(report)
        torch.testing.assert_close(result, function(*args), atol=1e-10, rtol=1e-10)


def longer_rows(k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    k = torch.cat((k, k[..., :6]), -1)
    return torch.cat((by(slices)(k[..., :D], cos, sin), k[..., D:]), -1)


def another_type(k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return by(slices)(k.float(), cos, sin).float()


@pytest.mark.parametrize("other", [longer_rows, another_type])
def test_query_and_key_that_differ_are_turned_where_they_agree(other: Turn) -> None:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return by(slices)(q, cos, sin), other(k, cos, sin)

    args = values()
    report, result = run("export", function, args)
    assert fired(report) == ["rotary_of_both"], str(report)
    torch.testing.assert_close(result, function(*args))


def test_gradients_pass() -> None:
    args = [x.requires_grad_() for x in values()]
    for name in ("slices", "neighbours", "first elements"):
        function = of_both(TURNS[name])
        report, result = run("pre_grad", function, args)
        assert fired(report) == ["rotary_of_both"]
        ours, theirs = (
            torch.autograd.grad(sum(x.cos().sum() for x in xs), args)
            for xs in (result, function(*args))
        )
        torch.testing.assert_close(ours, theirs)


def test_dynamic_length() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
            return of_both(TURNS["slices"])(q, k, cos, sin)

    from pypm.integrations import export

    length = torch.export.Dim("length")
    shapes = tuple({2: length} for _ in range(4))
    program = torch.export.export(Model(), tuple(values()), dynamic_shapes=shapes)
    assert fired(export.rewrite(program, RULES)) == ["rotary_of_both"]
    args = [torch.cat((x, x), 2) for x in values()]
    torch.testing.assert_close(program.module()(*args), Model()(*args))


# --- near misses ---------------------------------------------------------------------------------


def by_parts(a: slice, b: slice, sign: int = -1) -> Turn:
    return by(lambda x: torch.cat((sign * x[..., a] if sign > 0 else -x[..., a], x[..., b]), -1))


def by_columns(i: int, j: int, k: int, m: int, sign: float = 1.0) -> Turn:
    """Columns taken from i and j for the first elements, and from k and m for the second ones."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        first = a * cos[..., i::2] - b * sin[..., j::2]
        return torch.stack((first, a * sin[..., k::2] + sign * b * cos[..., m::2]), -1).flatten(-2)

    return turn


NEAR_MISSES: Final[dict[str, Turn]] = {
    "columns of the sines exchanged": by_columns(0, 1, 0, 1),
    "columns of the cosines exchanged": by_columns(1, 0, 1, 0),
    "the second elements by the first columns of sines": by_columns(0, 0, 0, 1),
    "a minus in the second elements": by_columns(0, 0, 1, 1, -1.0),
    "no minus": by(lambda x: torch.cat((x[..., HALF:], x[..., :HALF]), -1)),
    "the other minus": by(lambda x: torch.cat((x[..., HALF:], -x[..., :HALF]), -1)),
    "both minus": by(lambda x: torch.cat((-x[..., HALF:], -x[..., :HALF]), -1)),
    "halves not swapped": by(lambda x: torch.cat((-x[..., :HALF], x[..., HALF:]), -1)),
    "other halves": by(lambda x: torch.cat((-x[..., HALF - 1 : -1], x[..., :HALF]), -1)),
    "unequal parts": by(lambda x: torch.cat((-x[..., 6:], x[..., :6]), -1)),
    "joined as the other": by(
        lambda x: torch.stack((-x[..., HALF:], x[..., :HALF]), -1).flatten(-2)
    ),
    "an earlier piece": by(
        lambda x: torch.cat((-x.split([0, HALF, HALF], -1)[1], x[..., :HALF]), -1)
    ),
    "a piece of another size": by(
        lambda x: torch.cat((-x[..., HALF:], torch.split(x, [6, HALF, 2], -1)[1]), -1)
    ),
    "another half": by(lambda x: torch.cat((-x.chunk(2, -1)[0], x[..., :HALF]), -1)),
    "narrowed from elsewhere": by(
        lambda x: torch.cat((-x.narrow(-1, HALF - 1, HALF), x[..., :HALF]), -1)
    ),
    "elements by number": lambda x, cos, sin: by(
        lambda y: torch.cat((-y[..., 4:], y[..., [3, 0, 4, 1]]), -1)
    )(x[..., :8], cos[..., :8], sin[..., :8]),
    "neighbours joined as halves": by(lambda x: torch.cat((-x[..., 1::2], x[..., ::2]), -1)),
    "neighbours not swapped": by(
        lambda x: torch.stack((-x[..., ::2], x[..., 1::2]), -1).flatten(-2)
    ),
    "every third": by(lambda x: torch.cat((-x[..., 1::3], x[..., ::3], x[..., 2::3]), -1)),
    "halves apart, not swapped": by(
        lambda x: torch.cat(
            (-x.unflatten(-1, (2, HALF)).select(-2, 0), x.unflatten(-1, (2, HALF)).select(-2, 1)),
            -1,
        )
    ),
    "halves apart, joined as neighbours": by(
        lambda x: torch.stack(
            (-x.unflatten(-1, (2, HALF)).select(-2, 1), x.unflatten(-1, (2, HALF)).select(-2, 0)),
            -1,
        ).flatten(-2)
    ),
    "rows of two, not halves": by(
        lambda x: torch.cat(
            (-x.unflatten(-1, (4, HALF // 2)).select(-2, 1),
             x.unflatten(-1, (4, HALF // 2)).select(-2, 0),
             x[..., :HALF]), -1)
    ),
    "turned in another type": lambda x, cos, sin: (
        (x.double() * cos + unbound(x.tanh()).double() * sin).to(x.dtype)
    ),
    "a quarter rounded to another type": lambda x, cos, sin: (
        x.float() * cos.float() + slices(x).half() * sin.float()
    ).double(),
    "a rounded quarter, angles of no dimension": lambda x, cos, sin: (
        x.float() * cos[0, 0, 0, 0].float() + slices(x).float() * sin[0, 0, 0, 0].float()
    ).double(),
    "another dimension": by(lambda x: torch.cat((-x[:, H // 2 :], x[:, : H // 2]), 1)),
    "a difference": lambda x, cos, sin: x * cos - slices(x) * sin,
    "of another": lambda x, cos, sin: x * cos + slices(x.tanh()) * sin,
    "cosine twice": lambda x, cos, sin: x * cos + slices(x) * cos * sin,
    "one angle for all": lambda x, cos, sin: x * cos[..., :1] + slices(x) * sin[..., :1],
    "angles of no dimension": lambda x, cos, sin: x * cos[0, 0, 0, 0] + slices(x) * sin[0, 0, 0, 0],
    "a pair, one angle for all": lambda x, cos, sin: halves(x, cos[..., :1], sin[..., :1]),
    "a pair, a cosine of no dimension": lambda x, cos, sin: (
        halves(x, cos[0, 0, 0, 0], sin[..., :HALF])
    ),
    "a pair of other elements": lambda x, cos, sin: (
        torch.cat((x[..., ::2] * cos[..., :HALF] - x[..., 1::2] * sin[..., :HALF],
                   x[..., 1::2] * cos[..., :HALF] + x[..., ::2] * sin[..., :HALF]), -1)
    ),
    "a pair, minus twice": lambda x, cos, sin: (
        torch.cat((x[..., :HALF] * cos[..., :HALF] - x[..., HALF:] * sin[..., :HALF],
                   x[..., HALF:] * cos[..., :HALF] - x[..., :HALF] * sin[..., :HALF]), -1)
    ),
    "a pair, sines differ": lambda x, cos, sin: (
        torch.cat((x[..., :HALF] * cos[..., :HALF] - x[..., HALF:] * sin[..., :HALF],
                   x[..., HALF:] * cos[..., :HALF] + x[..., :HALF] * sin[..., HALF:]), -1)
    ),
}  # fmt: skip


@axes(name=NEAR_MISSES, way=["decomposed", "export", "symbolic_trace"])
def test_near_misses(name: str, way: str) -> None:
    q, k, cos, sin = values()
    q, k = q.contiguous(), torch.cat((k, k), 1)
    report, _ = run(way, of_both(NEAR_MISSES[name]), [q, k, cos, sin])
    assert len(report) == 0, str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.bool], ids=str)
def test_a_piece_from_a_place_that_is_a_tensor_of_no_integers(dtype: torch.dtype) -> None:
    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        start = torch.tensor(0, dtype=dtype)
        return x * cos + torch.cat((-x[..., HALF:], narrow(x, -1, start, HALF)), -1) * sin

    narrow = torch.ops.aten.narrow.default
    args = values()
    gm = fx.symbolic_trace(of_both(turn))
    with_start = gm(*args)
    assert len(rewrite(gm, RULES)) == 0
    assert all(map(torch.equal, gm(*args), with_start))


def test_the_quarter_turn_used_again() -> None:
    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        turned = slices(q)
        return q * cos + turned * sin, by(slices)(k, cos, sin), turned

    report, _ = run("export", function, values())
    assert (len(report), {r.kind for r in report.refusals}) == (0, {"escape"})


@pytest.mark.parametrize(
    ("part", "rest"),
    [
        (slice(0, HALF), slice(HALF - 1, D)),
        (slice(0, HALF), slice(HALF - 1, D - 1)),
        (slice(0, HALF), slice(0, HALF)),
        (slice(HALF, D), slice(0, HALF)),
    ],
)
def test_rest_that_is_not_the_rest(part: slice, rest: slice) -> None:
    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = by(chunks)(x[..., part], cos[..., :HALF], sin[..., :HALF])
        return torch.cat((turned, x[..., rest]), -1)

    args, function = values(), of_both(turn)
    report, result = run("export", function, args)
    assert [record.root for record in report.rewrites] == ["add_1"]  # the turns alone
    torch.testing.assert_close(result, function(*args))
