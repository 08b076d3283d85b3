"""Two planted defects for each state machine: mistakes that are easy to make, and the machine that must see them."""

from __future__ import annotations

from typing import NamedTuple

from tools.plant import Defect


class Planted(NamedTuple):
    machine: str  # the test file, beside this one
    defect: Defect


def _planted(machine: str, name: str, file: str, before: str, after: str) -> Planted:
    return Planted(f"test_{machine}.py", Defect(name, file, before, after))


PLANTED = (
    _planted(
        "sequences_streams",
        "off by one in a trim",
        "core/kv/filling.py",
        "target.trim = length",
        "target.trim = length + 1",
    ),
    _planted(
        "sequences_streams",
        "a resident prefix of another scope is found",
        "core/kv/matching.py",
        "        or not sequence.readable\n        or not prefix.visible_to(job.scope, job.id)\n",
        "        or not sequence.readable\n",
    ),
    _planted(
        "sequences_unified",
        "a restore takes cells that nobody counts",
        "core/kv/filling.py",
        "self._cells.grow(target.index, length)",
        "pass",
    ),
    _planted(
        "sequences_unified",
        "a shared run is freed when the first holder lets go",
        "core/kv/cells.py",
        "tail.holders = run.holders",
        "tail.holders = 1",
    ),
    _planted(
        "pages",
        "a page is reused before its fence",
        "core/kv/pages.py",
        "if self._issued:",
        "if False:",
    ),
    _planted(
        "pages",
        "the source of a page copy is never let go",
        "core/kv/pages.py",
        "            self._let_go([op.other])\n        elif",
        "            pass\n        elif",
    ),
    _planted(
        "queue",
        "the ageing admission is dropped",
        "core/queue.py",
        "return self.admissions % AGEING_PERIOD == AGEING_PERIOD - 1",
        "return self.admissions < 0",
    ),
    _planted(
        "queue",
        "returns from a turn do not count (real)",
        "core/queue.py",
        "self.admissions += counted and job.time_sliced and not self.is_ageing_admission",
        "pass",
    ),
    _planted(
        "queue",
        "the bound is one for all priorities",
        "core/queue.py",
        "self._entered[priority] < self._limits.in_flight_max\n",
        "sum(self._entered) < self._limits.in_flight_max\n",
    ),
    _planted(
        "policy_none",
        "a finished text stays for others",
        "core/cache_policies.py",
        "return computed if self.keeps_resident else 0",
        "return computed",
    ),
    _planted(
        "policy_none",
        "what a preempted request leaves is for everybody",
        "core/state.py",
        "private=not self.policy.keeps_resident",
        "private=False",
    ),
    _planted(
        "policy_system_prompt",
        "any snapshot will do",
        "core/cache_policies.py",
        "exact = source.kind is PrefixKind.SNAPSHOT and source.held == source.common == own",
        "exact = source.kind is PrefixKind.SNAPSHOT",
    ),
    _planted(
        "policy_system_prompt",
        "the salt does not divide a tenant",
        "core/kv/prefix_store.py",
        "return self.scope == scope and self.owner",
        "return self.scope.group == scope.group and self.owner",
    ),
    _planted(
        "policy_incremental",
        "a deferred request has no time-out",
        "core/preemption.py",
        "        waiters = [*state.queue.deferred, *state.queue.waiting()]\n        late = ",
        "        waiters = list(state.queue.waiting())\n        late = ",
    ),
    _planted(
        "policy_incremental",
        "a deferred request blocks those behind it",
        "core/admission.py",
        "state.note(event_names.DEFERRED, job, verdict.slot, verdict.length)\n            return True",
        "state.note(event_names.DEFERRED, job, verdict.slot, verdict.length)\n            return False",
    ),
    _planted(
        "policy_prefix",
        "the whole prompt is reused",
        "core/kv/matching.py",
        "common = job.cut(common_prefix(job.known, prefix.tokens, min(len(job.known) - 1, held)))"
        "\n    if common == 0:\n        return None\n    if sequence.slot is None:",
        "common = job.cut(common_prefix(job.known, prefix.tokens, min(len(job.known), held)))"
        "\n    if common == 0:\n        return None\n    if sequence.slot is None:",
    ),
    _planted(
        "policy_prefix",
        "equal prompts are computed side by side",
        "core/cache_policies.py",
        "if coming is not None and situation.patient and coming.length - have",
        "if coming is not None and coming.length < 0 and coming.length - have",
    ),
)
