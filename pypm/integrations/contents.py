"""Hashes of what Python functions can reach.

Installed code (Python's library, torch, PyPM, other packages) counts by its name and version. All
other code is followed: functions with their closures, defaults and the globals that they name,
classes, modules, and the objects that these hold.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final, TypeVar

import torch

import pypm
from pypm.core.operators import Operator
from pypm.core.printing import print_pattern
from pypm.fx import Namespace
from pypm.fx.operators.declarations import declared_parts
from pypm.lang.pattern_function import PatternFunction
from pypm.torch_internals import OpOverload, OpOverloadPacket, unset_fake_temporarily

__all__ = ["Contents", "Unhashable", "is_installed_file"]


class Unhashable(Exception):
    """A value reachable from a rule's functions has no content that could be compared."""


_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...))
_NAMED: Final = (
    OpOverload, OpOverloadPacket, Operator, Namespace, torch.device, torch.dtype, torch.layout,
    torch.memory_format, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    WrapperDescriptorType,
)  # fmt: skip
"""Types of values that their text says all of."""
_OUTSIDE: Final = frozenset(
    {"datetime", "gc", "importlib", "inspect", "io", "linecache", "nt", "os", "pathlib", "pkgutil",
     "posix", "random", "runpy", "secrets", "subprocess", "sys", "time", "uuid"}
)  # fmt: skip
"""Python modules whose functions read the process, the clock, a random generator or files, or reach
modules that no code names."""
_STATES: Final = frozenset({"backends", "get_num_threads", "initial_seed", "random"})
"""Names in other installed modules that read the same."""
_FROM_OUTSIDE: Final = "depends on the process, the clock, chance or files"
_ESCAPES: Final = frozenset({"__import__", "eval", "exec", "globals", "input", "locals", "open"})
"""Builtin functions that reach values which no code names."""
_OF_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_LIMIT: Final = 50_000
"""The largest number of values to visit before giving up."""
_LARGEST: Final = 2**24
"""The largest tensor that is hashed, in bytes."""

_Key = TypeVar("_Key", bound=Hashable)


class Contents:
    """A hash of values; a repeated value counts as the number of its first visit."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, object]] = {}
        self._path: list[str] = []

    def digest(self) -> str:
        return self._digest.hexdigest()

    def say(self, *parts: object) -> None:
        for part in parts:
            text = str(part).encode(errors="surrogatepass")
            self._digest.update(b"%d:%s;" % (len(text), text))

    def add(self, value: object, name: str) -> None:
        """Add a value that is reached under this name."""
        self._path.append(name)
        try:
            self._add(value)
        except RecursionError:
            raise self._unhashable("is nested too deep") from None
        self._path.pop()

    def add_all(self, values: Iterable[object], name: str) -> None:
        found = list(values)
        self.say("all", len(found))
        for value in found:
            self.add(value, name)

    def _unhashable(self, why: str) -> Unhashable:
        first, last = self._path[0], self._path[-1]
        return Unhashable(f"{first} {why}" if first == last else f"{last} of {first} {why}")

    def _add(self, value: object) -> None:
        if type(value) in _PLAIN:
            self.say(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self.say("again", self._seen[id(value)][0])
            return
        if len(self._seen) >= _LIMIT:
            raise self._unhashable("leads to more than can be looked through")
        if not isinstance(value, (tuple, CodeType)):  # of constants, equal ones may be one or two
            self._seen[id(value)] = (len(self._seen), value)
        self.say(type(value).__qualname__)
        self._add_new(value)

    def _add_new(self, value: object) -> None:
        match value:
            case ModuleType():
                self._module(value)
            case FunctionType():
                self._function(value)
            case CodeType():
                self._code(value)
            case type():
                self._class(value)
            case MethodType():
                self.add_all((value.__func__, value.__self__), value.__func__.__qualname__)
            case BuiltinFunctionType():
                self._builtin(value)
            case property():
                self.add_all((value.fget, value.fset), "a property")
            case PatternFunction() if value.takes_patterns:
                self.say(*(alternate.source for alternate in value.alternates))
            case PatternFunction():
                self.say(*map(print_pattern, value.core))
            case torch.Tensor():
                self._tensor(value)
            case _ if isinstance(value, _NAMED):
                self.say(value)
                for part in declared_parts(value):
                    self.add(part, f"a declaration of `{value}`")
            case tuple() | list() if type(value) in (tuple, list):
                self.add_all(value, self._path[-1])
            case dict() | MappingProxyType() if type(value) in (dict, MappingProxyType):
                self._mapping(value)
            case set() | frozenset() if type(value) in (set, frozenset):
                self._set(value)
            case _ if hasattr(value, "__wrapped__") and _is_installed(type(value)):
                self.add(value.__wrapped__, self._path[-1])
            case _:
                self._object(value)

    def _mapping(self, value: Mapping[_Key, object]) -> None:
        self.say(len(value))
        for key, held in value.items():
            self.add(key, f"a key of {self._path[-1]}")
            self.add(held, f"`{key}`" if isinstance(key, str) else self._path[-1])

    def _set(self, value: Iterable[object]) -> None:
        digests = []
        for element in value:
            contents = Contents()
            contents.add(element, self._path[-1])
            digests.append(contents.digest())
        self.say(*sorted(digests))

    def _tensor(self, value: torch.Tensor) -> None:
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        if not plain or value.is_meta or value.nbytes > _LARGEST:
            raise self._unhashable("is a tensor whose values are not known, or too large")
        with unset_fake_temporarily(), torch.no_grad():
            held = torch.empty(value.shape, dtype=value.dtype, device="cpu").copy_(value)
        self.say(value.dtype, value.device, tuple(value.shape), value.stride())
        self.say(value.requires_grad, value.is_conj(), value.is_neg())
        self._mapping(vars(value))
        self._digest.update(bytes(held.reshape(-1).view(torch.uint8).tolist()))

    def _object(self, value: object) -> None:
        """Add an object: its class, and what would make another one like it."""
        self.add(type(value), f"the class of {self._path[-1]}")
        try:
            made = value.__reduce_ex__(2)
        except Exception:
            raise self._unhashable(
                f"is of type `{type(value).__name__}`, which has no content to compare"
            ) from None
        if isinstance(made, str):
            self.say(made)
        else:  # a callable, its arguments, and maybe state, items of a list and of a mapping
            self.add_all(made[:3], self._path[-1])
            for items in made[3:5]:
                self.add_all(items or (), self._path[-1])
        if not _is_installed(type(value)):  # also what its own `__reduce__` leaves out
            self._mapping({**getattr(value, "__dict__", {}), **_slots(value)})

    # --- code -----------------------------------------------------------------------------------

    def _function(self, function: FunctionType) -> None:
        name = f"`{function.__qualname__}`"
        if _is_installed(function.__code__):
            self._installed(function.__module__)
            self.say(function.__qualname__)
            if "<locals>" not in function.__qualname__:
                return
        self._mapping(vars(function))
        self.add_all((function.__defaults__, function.__kwdefaults__), f"a default of {name}")
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for free, cell in cells:
            try:
                self.add(cell.cell_contents, f"`{free}`")
            except ValueError:
                self.say("empty")
        if _is_installed(function.__code__):
            return
        self.add(function.__code__, name)
        self._read(function.__code__, function.__globals__)

    def _read(self, code: CodeType, names: Mapping[str, Any]) -> None:
        """Add the modules that code, or code inside it, imports, and the globals that it reads."""
        steps = list(dis.get_instructions(code))
        for index, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                dots = "." * steps[index - 2].argval
                module = importlib.import_module(dots + step.argval, names.get("__package__"))
                self.add(module, f"`{module.__name__}`")
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                after = takewhile(lambda step: step.opname in _OF_ATTRIBUTES, steps[index + 1 :])
                self._global(names, step.argval, *(step.argval for step in after))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._read(constant, names)

    def _global(self, names: Mapping[str, object], name: str, *attributes: str) -> None:
        """Add what code reads under a global name, and the named attributes if that is a module."""
        if name in _ESCAPES and name not in names:
            raise self._unhashable(f"calls `{name}`, which may reach anything")
        value = names.get(name, getattr(builtins, name, None))
        if isinstance(value, ModuleType) and _is_installed(value) and _STATES & {*attributes}:
            raise self._unhashable(_FROM_OUTSIDE)
        self.say(name)
        for attribute in attributes:
            if not isinstance(value, ModuleType) or _is_installed(value):
                break
            name, value = f"{name}.{attribute}", getattr(value, attribute, None)
        self.add(value, f"`{name}`")

    def _code(self, code: CodeType) -> None:
        if "__globals__" in code.co_names:
            raise self._unhashable("reads `__globals__`, which may reach anything")
        self.say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self.say(code.co_cellvars, code.co_flags, code.co_argcount, code.co_kwonlyargcount)
        self.say(code.co_exceptiontable.hex())
        self.add_all(code.co_consts, self._path[-1])

    def _module(self, module: ModuleType) -> None:
        if _is_installed(module):
            self._installed(module.__name__)
            return
        held = {n: v for n, v in vars(module).items() if not n.startswith("__")}
        self._mapping(dict(sorted(held.items())))

    def _installed(self, module: str) -> None:
        """Add a module of installed code, or something in it."""
        top = module.partition(".")[0]
        if top in _OUTSIDE:
            raise self._unhashable(_FROM_OUTSIDE)
        self.say(module, getattr(sys.modules.get(top), "__version__", ""))

    def _class(self, value: type) -> None:
        self.say(value.__module__, value.__qualname__)
        if _is_installed(value):
            self._installed(value.__module__)
            return
        self.add_all((type(value), *value.__bases__), f"a base of {value.__qualname__}")
        held = {
            n: v for n, v in vars(value).items() if n not in _OF_CLASSES and "dataclass" not in n
        }
        self._mapping(held)

    def _builtin(self, function: BuiltinFunctionType) -> None:
        self._installed(str(function.__module__))
        self.say(function.__qualname__)
        owner = function.__self__
        if owner is not None and not isinstance(owner, ModuleType):
            self.add(owner, f"the owner of `{function.__qualname__}`")


_OF_CLASSES: Final = frozenset(
    {"__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__module__", "__weakref__",
     "__firstlineno__", "__slotnames__", "__static_attributes__", "_abc_impl"}
)  # fmt: skip


def _slots(value: object) -> dict[str, object]:
    """Return what an object holds in slots, by their names; those of installed classes left out."""
    kinds = [kind for kind in type(value).__mro__ if not _is_installed(kind)]
    slots = [each for kind in kinds for each in vars(kind).values()]
    return {
        slot.__qualname__: slot.__get__(value)
        for slot in slots
        if isinstance(slot, MemberDescriptorType) and hasattr(value, slot.__name__)
    }


@cache
def _roots() -> tuple[Path, ...]:
    """Return the folders of installed code."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    packages = [Path(str(package.__file__)).parent for package in (torch, pypm)]
    return tuple({Path(str(path)).resolve() for path in (*paths, *packages)})


def _is_installed(value: ModuleType | type | CodeType) -> bool:
    """Return whether a module, a class or code comes with Python or an installed package."""
    if isinstance(value, CodeType):
        return is_installed_file(value.co_filename)
    if isinstance(value, ModuleType) and type(value) is not ModuleType:
        value = type(value)  # `torch.ops` and the like
    module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    return module.__name__ in sys.builtin_module_names if file is None else is_installed_file(file)


@cache
def is_installed_file(file: str) -> bool:
    """Return whether a file is in a folder of installed code."""
    parents = Path(file).resolve().parents
    return any(root in parents for root in _roots())
