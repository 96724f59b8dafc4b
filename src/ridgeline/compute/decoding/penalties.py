"""Repetition, frequency and presence penalties, in this order. Computed in float64 and rounded once.

repetition  of ids in prompt or outputs: positive logits are divided, others multiplied (Keskar et al. 2019, as in transformers)
frequency, presence  of ids in the outputs, c times: c · frequency + [c > 0] · presence is subtracted (OpenAI)
"""

import numpy as np

from ridgeline.compute.decoding.edit import Edit, Logits
from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams


def asked(row: RowParams, output: int) -> bool:
    """See `Edit.asked`."""
    sampling = row.sampling
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def apply(logits: Logits, row: RowParams, history: History | None) -> None:
    """Changes the logits of the ids in the row's history."""
    assert history is not None
    sampling = row.sampling
    ids, times = np.array(history.seen), np.array(history.times, np.float64)
    values = logits[ids].astype(np.float64)
    values = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    values -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
    logits[ids] = values.astype(np.float32)


PENALTIES = Edit(asked, apply, looks_back=True)
