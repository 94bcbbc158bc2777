"""Rules inside of vLLM (0.33): a pass of its class for three of its hooks, and a plugin.

The pass is made of names of rules. vLLM spawns its workers, and what it pickles for them are these
names: each process loads the rules itself. Nothing is timed there.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, TypeAlias
from uuid import uuid4

from torch import fx

from pypm.choice import tuned, worthwhile
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.integrations.inductor import Pass
from pypm.integrations.rule_files import load_rules
from pypm.rules.vllm.collectives import declare_collectives
from pypm.torch_internals import CustomGraphPass

__all__ = ["DEFAULT", "ENVIRONMENT", "HOOK", "from_environment", "register", "vllm_pass"]

HOOK: Final = "post_grad_custom_post_pass"
"""The key of Inductor's options under which vLLM runs a pass behind its own fusions."""
DEFAULT: Final = ("pypm.rules.vllm",)
"""The rules where none are named."""
ENVIRONMENT: Final = ("PYPM_VLLM_RULES", "PYPM_VLLM_ANSWERS", "PYPM_VLLM_TOKENS")
"""Names of rules, with commas between them; the file of `pypm tune`; the least and the largest
number of tokens, as "1-512".
"""

_LOG: Final = logging.getLogger("vllm.pypm")


_MadeOf: TypeAlias = "tuple[tuple[str, ...], str | Path | None, tuple[int, int] | None, str]"


class _TokenRange(Protocol):
    """vLLM's range of numbers of tokens, for which it compiles a graph; both ends count."""

    start: int
    end: int


class _Compilation(Protocol):
    """vLLM's configuration of compilation."""

    inductor_compile_config: dict[str, CustomGraphPass]


class _Configuration(Protocol):
    """vLLM's whole configuration."""

    compilation_config: _Compilation


def vllm_pass(
    names: Sequence[str] = DEFAULT,
    answers: str | Path | None = None,
    tokens: tuple[int, int] | None = None,
    stage: str = "post_grad_post",
) -> CustomGraphPass:
    """Return a pass of vLLM's class `VllmInductorPass` that applies rules.

    Arguments:
        names: the rules, each as `pypm rewrite --rules` takes it, or the name of an entry point of
            `pypm.packs`.
        answers: a file of `pypm tune`. Without one, rewrites that may be slower are made only where
            times are kept that say that they are not.
        tokens: the least and the largest number of tokens for which the rules are applied. vLLM
            compiles a graph for ranges of tokens; by default, the rules are applied to all.
        stage: the hook of Inductor, a key of `pypm.integrations.inductor.STAGES`.

    A pass that fails leaves vLLM's graph as it was, and logs the error. Raises ImportError without
    vLLM, and PyPMError where there are no such rules, answers or stage.
    """
    return _pass_class()(tuple(names), answers, tokens, stage)


def from_environment() -> CustomGraphPass:
    """Return the pass that the variables of `ENVIRONMENT` describe. Raises as `vllm_pass` does."""
    rules, answers, tokens = (os.environ.get(name, "") for name in ENVIRONMENT)
    names = [name.strip() for name in rules.split(",") if name.strip()]
    return vllm_pass(names or DEFAULT, answers or None, _range(tokens) if tokens else None)


def register() -> None:
    """Add the pass of the environment to each configuration that vLLM makes in this process.

    The entry point `vllm.general_plugins`, which each process of vLLM calls. Without
    `PYPM_VLLM_RULES` it does nothing. A pass that a user configured at `HOOK` stays alone.
    """
    if not os.environ.get(ENVIRONMENT[0]):
        return
    config = import_module("vllm.config.vllm").VllmConfig
    found: Callable[..., None] = config.__post_init__
    if not getattr(found, _MARK, False):
        config.__post_init__ = _with_pass(found)


_MARK: Final = "__pypm_adds_a_pass__"


def _with_pass(post_init: Callable[..., None]) -> Callable[..., None]:
    @wraps(post_init)
    def added(self: _Configuration) -> None:
        options = self.compilation_config.inductor_compile_config
        if HOOK not in options:
            options[HOOK] = from_environment()
        elif not isinstance(options[HOOK], _Rewriting):
            _LOG.warning("PyPM's rules are not applied: `%s` is configured already", HOOK)
        post_init(self)

    setattr(added, _MARK, True)
    return added


class _Rewriting:
    """The part of a pass that is PyPM's; `_pass_class` joins it with vLLM's class."""

    def __init__(
        self,
        names: tuple[str, ...],
        answers: str | Path | None,
        tokens: tuple[int, int] | None,
        stage: str,
    ) -> None:
        packs = {point.name: point.value for point in entry_points(group="pypm.packs")}
        rules = load_rules([packs.get(name, name) for name in names])
        choose = worthwhile(seconds=0) if answers is None else tuned(answers=answers)
        self.pass_name = "pypm"
        self.tokens = tokens
        self.rewriting = Pass(rules, stage, choose=choose)
        self._made_of: _MadeOf = (names, answers, tokens, stage)
        self._own_key = uuid4().hex

    def apply(self, graph: fx.Graph) -> None:
        """Rewrite a graph, or leave it as it was and log the error."""
        declare_collectives()
        try:
            self.rewriting(graph)
        except Exception:
            _LOG.exception("PyPM's rules failed, and the graph is as it was")
            return
        report = self.rewriting.reports[-1]
        _match_table()[self.pass_name] += len(report)
        _LOG.debug("%s", report)

    def uuid(self) -> str:
        """Return the key of vLLM's and Inductor's caches: a hash of rules, choice, stage, versions
        and tokens.

        It is a key of this process alone where a rule holds a value without content to compare.
        """
        key = self.rewriting.uuid() or self._own_key
        return hashlib.sha256(f"{key} {self.tokens}".encode()).hexdigest()

    def is_applicable_for_range(self, compile_range: _TokenRange) -> bool:
        """Return whether the rules are applied to the graph of a range of tokens."""
        if self.tokens is None:
            return True
        return self.tokens[0] <= compile_range.start and compile_range.end <= self.tokens[1]

    def __deepcopy__(self, memo: dict[int, _Rewriting]) -> _Rewriting:
        return self

    def __reduce__(self) -> tuple[Callable[..., CustomGraphPass], _MadeOf]:
        return vllm_pass, self._made_of


@cache
def _pass_class() -> Callable[..., CustomGraphPass]:
    """Return the class of the pass: vLLM's, with the timing and dumps of its own passes."""
    theirs = _passes().VllmInductorPass
    call = theirs.time_and_log(_Rewriting.apply)
    members = {"__call__": call, "__module__": __name__}
    return type("RewritingPass", (_Rewriting, theirs), members)


def _match_table() -> dict[str, int]:
    found: dict[str, int] = _passes().VllmPatternMatcherPass.match_table
    return found


def _passes() -> ModuleType:
    return import_module("vllm.compilation.passes.vllm_inductor_pass")


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if not least.isdecimal() or not most.isdecimal():
        help = 'write the least and the largest number, as "1-512"'
        raise PyPMError(Diagnostic(f"`{ENVIRONMENT[2]}` is {text!r}, no range", help=help))
    return int(least), int(most)
