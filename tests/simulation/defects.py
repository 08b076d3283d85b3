"""Defects that the simulator must notice: realistic mistakes, planted in a copy of the source.

Several stood in the code for an hour until the simulator found them; they are marked (real).
"""

from __future__ import annotations

from tools.plant import Defect

DEFECTS = (
    Defect(
        "off by one in chunking: logits one row early",
        "core/batching.py",
        "last = start + count == len(slot.known)",
        "last = start + count >= len(slot.known) - 1",
    ),
    Defect(
        "off by one in chunking: a chunk skips its first token",
        "core/batching.py",
        "self._write_span(tick, slot, count, int(last), slot.known[start : start + count])",
        "self._write_span(tick, slot, count, int(last), slot.known[start + 1 : start + count + 1])",
    ),
    Defect(
        "reuse of the whole prompt",
        "core/kv/matching.py",
        "common = common_prefix(job.known, prefix.tokens, min(len(job.known) - 1, held))"
        "\n    if common == 0:\n        return None\n    if sequence.slot is None:",
        "common = common_prefix(job.known, prefix.tokens, min(len(job.known), held))"
        "\n    if common == 0:\n        return None\n    if sequence.slot is None:",
    ),
    Defect(
        "forgotten trim after rejected drafts",
        "core/kv/sequences.py",
        "            sequence.trim = length\n",
        "            pass\n",
    ),
    Defect(
        "leaked page",
        "core/kv/pages.py",
        "        self._let_go(table.pages)\n        slot.sequence = -1",
        "        self._let_go(table.pages[1:])\n        slot.sequence = -1",
    ),
    Defect(
        "double free of a copied page",
        "core/kv/pages.py",
        "            self._let_go([op.other])\n            table = self._tables.get(owner)",
        "            self._let_go([op.other])\n            self._blank.append(op.other)\n            table = self._tables.get(owner)",
    ),
    Defect(
        "decode after prefill",
        "core/batching.py",
        "        decode, drafts = self._plan_decode(ready)\n",
        "        decode, drafts = self._plan_decode(ready)\n        decode = decode[:1]\n",
    ),
    Defect(
        "prompts have two ticks in a row",
        "core/batching.py",
        "            self._prompts_next = False\n",
        "",
    ),
    Defect(
        "prompts take the decode rows' budget",
        "core/batching.py",
        "rows=self._budget - len(decode) - extra",
        "rows=self._budget",
    ),
    Defect(
        "head-of-line blocking by a deferred job",
        "core/admission.py",
        "            state.note(event_names.DEFERRED, job, verdict.slot, verdict.length)\n            return True",
        "            state.note(event_names.DEFERRED, job, verdict.slot, verdict.length)\n            return False",
    ),
    Defect(
        "starvation of background: no ageing admission",
        "core/queue.py",
        "return self.admissions % AGEING_PERIOD == AGEING_PERIOD - 1",
        "return self.admissions < 0",
    ),
    Defect(
        "slot time-out counted from arrival",
        "core/preemption.py",
        "if job.entered_s is not None and job.entered_s <= late_s]",
        "if job.entered_s is not None and job.arrival_s <= late_s]",
    ),
    Defect(
        "victim's rows in the batch that it is cleaned from",
        "core/batching.py",
        "        decode = [s for s in decode if s.job is not None]  # a prompt's memory may have preempted some\n",
        "",
        ("--where", "layout=unified"),
    ),
    Defect(
        "cache crossing tenants",
        "core/kv/prefix_store.py",
        "return self.scope == scope and self.owner in",
        "return self.owner in",
    ),
    Defect(
        "cache crossing salts in the page index",
        "core/kv/page_index.py",
        "|{len(scope.salt)}:{scope.salt}|",
        "|",
    ),
    Defect(
        "SAVE of a sequence whose copy is pending",
        "core/kv/sequence.py",
        "return self.can.snapshots and not sequence.unsettled and not self.is_copy_target(sequence.index)",
        "return self.can.snapshots and not sequence.unsettled",
        ("--where", "weather=storm", "--where", "share=copy", "--where", "snapshots=true"),
    ),
    Defect(
        "page reused before its fence",
        "core/kv/pages.py",
        "        if self._issued:\n            self._fenced",
        "        if self._newest_tick < 0:\n            self._fenced",
    ),
    Defect(
        "system prompt given to a request that sent another one",
        "core/cache_policies.py",
        "source.held == source.common == own",
        "source.length >= situation.cache_min_tokens",
    ),
    Defect(
        "a cancelled deferred request stays on the list",
        "core/queue.py",
        "        if job.status is Status.DEFERRED:\n            self.deferred.remove(job)\n        self.size -= 1",
        "        self.size -= 1",
    ),
    Defect(
        "a preempted request loses its text",
        "core/state.py",
        "        self.queue.add_preempted(job)\n",
        "        self.queue.add_preempted(job)\n        del job.known[job.prompt_tokens :]\n",
    ),
    Defect(
        "the oldest is preempted for memory",
        "core/victims.py",
        "if s.priority >= priority and (s is not oldest or yields_to(s, priority))]",
        "if s.priority >= priority]",
    ),
    Defect(
        "a request loses its slot to a more urgent one before it advanced",
        "core/victims.py",
        "and slot.computed - slot.started_at >= slot.tokens_min",
        "and slot.computed >= 0",
    ),
    Defect(
        "a request loses its slot to one of the same priority",
        "core/victims.py",
        "job is not None and job.priority > priority and",
        "job is not None and job.priority >= priority and",
    ),
    Defect(
        "preempted work never resumes while urgent requests wait",
        "core/queue.py",
        "aged = self.admissions - self._aged_at >= AGEING_PERIOD",
        "aged = first.priority == Priority.DEFAULT and self.admissions - self._aged_at >= AGEING_PERIOD",
    ),
    Defect(
        "a slot time-out takes the slot of a more urgent request",
        "core/preemption.py",
        "if held_s < limits.cache_slot_timeout_s or slot.priority < waiter.priority:",
        "if held_s < limits.cache_slot_timeout_s:",
    ),
    Defect(
        "the oldest gives up its slot for a turn",
        "core/time_slicing.py",
        "if slot is oldest or slot.computed - slot.started_at < short:",
        "if slot.computed - slot.started_at < short:",
    ),
    Defect(
        "a turn for a newcomer whom nobody reads along",
        "core/queue.py",
        "if job.request.streamed and job.priority != Priority.BACKGROUND:",
        "if job.priority != Priority.BACKGROUND:",
    ),
    Defect(
        "copies out of order (real)",
        "core/kv/sequences.py",
        "sorted(planned, key=lambda s: s.copy_order)",
        "sorted(planned, key=lambda s: s.index)",
        ("--where", "layout=streams", "--where", "share=copy"),
    ),
    Defect(
        "snapshot dropped while it is being restored (real)",
        "core/kv/sequences.py",
        "            self._snapshots.pin(source.place)  # making room for others must not drop it\n",
        "            pass\n",
    ),
    Defect(
        "failed operation forgotten: the slot runs on garbage",
        "core/kv/sequences.py",
        "            broken[op.sequence] = None\n",
        "",
    ),
    Defect(
        "rows of a released slot are taken for the next one's",
        "core/state.py",
        "        slot.epoch += 1\n        slot.clear()",
        "        slot.clear()",
    ),
    Defect(
        "rejected drafts count as computed",
        "core/commit.py",
        "        slot.computed = start + len(taken)\n",
        "        slot.computed = start + outputs\n",
    ),
    Defect(
        "deadlines fire late",
        "core/scheduler.py",
        "self._deadlines[0][0] <= state.now",
        "self._deadlines[0][0] <= state.now - 0.5",
    ),
    Defect(
        "places in flight are never given back",
        "core/queue.py",
        "        self._entered[job.priority] -= 1\n",
        "",
    ),
    Defect(
        "the queue's bounds hold for all priorities together",
        "core/queue.py",
        "self._entered[priority] < self._limits.in_flight_max\n",
        "sum(self._entered) < self._limits.in_flight_max\n",
    ),
    Defect(
        "leaked cells of a unified pool",
        "core/kv/cells.py",
        "            if run.holders == 0:\n                self.free += run.length",
        "            if run.holders == 0 and surplus > 0:\n                self.free += run.length",
    ),
    Defect(
        "a sliding window is cut back further than it reaches (real)",
        "core/kv/sequence.py",
        "prefix.peak - length <= self.can.rewind_tokens",
        "prefix.length - length <= self.can.rewind_tokens",
        ("--where", "layout=window"),
    ),
    Defect(
        "a hybrid model is rewound to a state behind the divergence",
        "core/kv/prefix_store.py",
        "max((c for c in self.checkpoints if c.length <= length), default=None)",
        "max(self.checkpoints, default=None)",
        ("--where", "layout=hybrid"),
    ),
    Defect(
        "a bisection blames the first of two",
        "core/recovery.py",
        "        if len(requests) == 1:\n",
        "        if len(requests) == 2:\n            return requests[0]\n        if len(requests) == 1:\n",
    ),
    Defect(
        "rows are planned on a tick that did not run (real)",
        "core/scheduler.py",
        "self._recovery.active or self._in_flight[0].void",
        "self._recovery.active",
    ),
    Defect(
        "KV of another request's decode rows is reused in deterministic mode",
        "core/kv/prefix_store.py",
        "        return min(self.shared, job.prompt_tokens)\n",
        "        return self.length\n",
        ("--where", "deterministic=true"),
    ),
    Defect(
        "pages of decode rows are shared in deterministic mode",
        "core/kv/pages.py",
        "        return min(length, table.slot.job.prompt_tokens) if self._exact else length\n",
        "        return length\n",
        ("--where", "deterministic=true", "--where", "layout=pages"),
    ),
    Defect(
        "lost decode rows are computed again as a prompt's",
        "core/state.py",
        "        slot.replay_from = job.prompt_tokens if self.exact else NEVER\n",
        "",
        ("--where", "deterministic=true"),
    ),
    Defect(
        "drafts are verified where several rows of a sequence round differently",
        "core/batching.py",
        "or state.can.rewind is Rewind.CHECKPOINT or self._exact:",
        "or state.can.rewind is Rewind.CHECKPOINT:",
        ("--where", "deterministic=true"),
    ),
    Defect(
        "a drain forgets what is queued",
        "core/scheduler.py",
        "if job.status in (Status.WAITING, Status.DEFERRED):",
        "if job.status is Status.DEFERRED:",
    ),
    Defect(
        "cancellation waits for the request to end by itself",
        "core/scheduler.py",
        "            self._asked.append(job)\n\n    def stop",
        "            pass\n\n    def stop",
    ),
)
