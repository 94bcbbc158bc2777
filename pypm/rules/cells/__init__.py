"""LSTMs and GRUs written by hand: cells in a loop that tracing unrolled, as one operator again."""

from pypm import RuleSet
from pypm.rules.cells.gru import gru_layer, last_of_gru
from pypm.rules.cells.lstm import last_of_lstm, lstm_layer

RULES = RuleSet((lstm_layer, last_of_lstm, gru_layer, last_of_gru), "cells")
