"""Counterfactuals: right, in a process of their own, within a budget."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from ledgers import LIMITS, STEP, TOKEN, Ask, serve, shape

from ridgeline.engine.executor import ExecutorInfo
from ridgeline.observe import alone
from ridgeline.observe.alone import Counterfactuals
from ridgeline.sim.fleet.alone import NICENESS


def test_a_counterfactual_is_simulated_in_a_process_with_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nicer than the server; gone when it exceeds its budget, and with the server. The next question starts another."""
    ledger, kv = serve([Ask(0.1 * each, 150 + 10 * each, 20) for each in range(12)], replace(LIMITS, depth=1)), shape()
    info = ExecutorInfo(kv, 1 << 31, LIMITS.max_model_len, LIMITS.rows, "", 0, 0)
    record = ledger.find("r3")
    assert record is not None
    asked = Counterfactuals()
    found = asked.alone(ledger, record, info)
    assert found is not None and 0 < found.cached_ttft <= found.ttft < found.total
    assert 0.99 * (STEP + 180 * TOKEN) <= found.ttft <= 1.01 * (2 * STEP + 180 * TOKEN)
    assert asked._process is not None
    process = asked._process.pid
    assert os.getpriority(os.PRIO_PROCESS, process) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    monkeypatch.setattr(alone, "BUDGET_SECONDS", 0.0)
    os.kill(process, signal.SIGSTOP)  # as one that simulates for ever
    monkeypatch.setattr("ridgeline.text.sandbox_process.STALL_SECONDS", 0.1)
    assert asked.alone(ledger, record, info) is None and not Path(f"/proc/{process}").exists()
    monkeypatch.undo()
    assert asked.alone(ledger, record, info) == found
    asked.close()
    asked.close()
