"""Torch's operators: their schemas, the targets that call them, their effects."""

from typing import TYPE_CHECKING

from pypm.moved import names_of

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__)
