"""Rules where sizes are symbols: a guard about one that is not known does not pass."""

import torch

from pypm import pattern, rule
from pypm.fx import aten
from pypm.integrations import inductor


@pattern
def LogSoftmax(x):
    e = aten.exp(x - aten.amax(x, [-1], True))
    return aten.log(e / aten.sum(e, [-1], True))


@rule(LogSoftmax)
def for_few_rows(x):
    assert x.shape[0] < 16  # unknown where the number of rows is a symbol, so the rule holds back
    return torch.log_softmax(x, -1)


@rule(LogSoftmax)
def for_any_rows(x):
    assert x.shape[-1] == 100  # known: this size was the same in all calls
    return torch.log_softmax(x, -1)


def model(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return torch.log(e / e.sum(-1, keepdim=True))


rewriting = inductor.Pass([for_few_rows, for_any_rows])
compiled = torch.compile(model, options=rewriting.options())
for rows in (4, 8, 200):
    x = torch.randn(rows, 100)
    torch.testing.assert_close(compiled(x), model(x))

# The first graph was made for 4 rows, the second for any number: neither rule adds a guard to the
# program, so 200 rows need no third.
for report in rewriting.reports:
    print(report)
print(len(rewriting.reports), "graphs for three numbers of rows")
