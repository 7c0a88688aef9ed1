"""The start-up probe: a product whose rows depend on their company is found out and padded, or run alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from paceline.kernels import linear
from paceline.kernels.linear import make_linear, probe, reference
from paceline.kernels.linear.reference import TILE, ReferenceLinear

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def honest(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Every row by itself."""
    return torch.stack([(weight.double() @ row.double()).to(row.dtype) for row in x])


def by_size(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Another rounding for another number of rows, as BLAS libraries have."""
    return honest(x, weight) * (1 + 2**-6 * (len(x) % 3))


def by_company(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A row's result depends on what the others hold."""
    return honest(x, weight) + 2**-6 * x.abs().sum().to(x.dtype)


class Layer:
    """A product as the probe sees one."""

    in_features, out_features, kind = 24, 8, "fake"

    def __init__(self, product: Product) -> None:
        self.product, self.weight = product, torch.randn(self.out_features, self.in_features)

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.product(x, self.weight)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """What was found out about a shape is remembered: not across these tests."""
    probe._known.clear()
    reference._probed.cache_clear()
    yield
    probe._known.clear()
    reference._probed.cache_clear()


@pytest.mark.parametrize(("product", "verdict"), [(honest, True), (by_size, False), (by_company, False)])
def test_rows_that_depend_on_company_are_found_out(product: Product, verdict: bool) -> None:
    assert probe.rows_are_independent(Layer(product), torch.float32) is verdict


@pytest.mark.parametrize(
    ("product", "plan", "calls"),
    [(honest, "direct", {5}), (by_size, "tile", {TILE}), (by_company, "row", {1})],
)
def test_the_cheapest_safe_form_is_chosen(
    monkeypatch: pytest.MonkeyPatch, product: Product, plan: str, calls: set[int]
) -> None:
    seen: list[int] = []

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return product(x, weight)

    monkeypatch.setattr(reference.F, "linear", counted)
    layer = ReferenceLinear(torch.randn(8, 24), deterministic=True)
    assert layer.kind == f"torch-{plan}"
    seen.clear()
    x = torch.randn(5, 24)
    together = layer(x)
    assert set(seen) == calls
    assert all(torch.equal(layer(x[i : i + 1])[0], together[i]) for i in range(5))


def test_a_native_product_that_fails_is_replaced_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "rows_are_independent", lambda layer, dtype: False)
    weight, x = torch.randn(16, 32), torch.randn(3, 32)
    if linear.build.library("linear") is None:
        pytest.skip("there is no native product here")
    with pytest.warns(RuntimeWarning, match="shape \\(16, 32\\).*padded torch products"):
        layer = make_linear(weight, deterministic=True)
    assert isinstance(layer, ReferenceLinear) and layer.deterministic
    torch.testing.assert_close(layer(x), x @ weight.T)
    assert not isinstance(make_linear(weight, deterministic=False), ReferenceLinear)
