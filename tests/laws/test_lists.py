"""Laws of patterns that bind lists of steps: each alternate adds one, and the meaning takes all."""

from pypm import rule
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved
from pypm.rules.vocabulary.products import Scaled, scaled


@rule(Scaled)
def applied(x, steps):
    return scaled(x, steps) * 1.0


@rule(Scaled)
def forgotten(x, steps):
    return x * 1.0


def test_a_body_that_takes_all_steps_is_proved_and_one_that_forgets_them_is_not():
    assert isinstance(prove(applied).verdicts[0], Proved)
    assert not isinstance(prove(forgotten).verdicts[0], Proved)
