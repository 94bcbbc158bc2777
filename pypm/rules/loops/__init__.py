"""Loops that tracing unrolled, rolled up: recurrences, linear attention, RWKV-4, and cells."""

from pypm import RuleSet
from pypm.rules.loops.gru import gru_layer, last_of_gru
from pypm.rules.loops.lstm import last_of_lstm, lstm_layer
from pypm.rules.loops.recurrences import last_state, loop
from pypm.rules.loops.rnn import last_of_rnn, rnn_layer
from pypm.rules.loops.wkv import averages, averages_and_states

RECURRENCES = (loop, last_state, averages_and_states, averages)
LAYERS = (lstm_layer, last_of_lstm, gru_layer, last_of_gru, rnn_layer, last_of_rnn)
RULES = RuleSet((*RECURRENCES, *LAYERS), "loops")
