"""Defects that the client simulator must detect: realistic mistakes, planted in a copy of the source."""

from __future__ import annotations

from tools.plant import Defect

DEFECTS = (
    Defect(
        "a request that delivered something is replayed",
        "client/traffic.py",
        "if ticket.stream.delivered or ticket.replayed or self.draining:",
        "if ticket.replayed or self.draining:",
    ),
    Defect(
        "replayed as often as the worker dies, refused or not",  # the quarantine alone would prevent it, too
        "client/traffic.py",
        "        if digest and self.quarantine.standing(digest, now_s) is Standing.REFUSED:\n"
        "            self._fail(ticket, error_from(self.quarantine.refusal(digest, now_s)), now_s)\n"
        "            return\n"
        "        if ticket.stream.delivered or ticket.replayed or self.draining:",
        "        if ticket.stream.delivered or self.draining:",
        ("--seeds", "1500"),  # it takes a request that is in flight at three deaths
    ),
    Defect(
        "nothing is replayed",
        "client/traffic.py",
        "        ticket.call = None\n        self._admit(ticket, now_s)\n",
        "        ticket.call = None\n",
    ),
    Defect(
        "frames of a previous worker process are accepted",
        "client/streams.py",
        "        if stream.epoch != epoch:\n",
        "        if False:\n",
    ),
    Defect(
        "a second end is counted",
        "client/streams.py",
        "        if stream is None or stream.end is not None:\n            self.metrics.unknown_frames += 1\n            return None\n",
        "        if stream is None:\n            self.metrics.unknown_frames += 1\n            return None\n        stream.end = None\n",
    ),
    Defect(
        "a cancellation after dispatch does not reach the worker",
        "client/traffic.py",
        "        self._cancels.append(stream_id)\n        if self.batcher.in_flight",
        "        if self.batcher.in_flight",
    ),
    Defect(
        "a cancel that overtakes its request is lost",
        "client/traffic.py",
        "        if self._withdrawn.pop(stream_id, None) is call and self._has_worker:\n            self._cancels.append(stream_id)\n",
        "        self._withdrawn.pop(stream_id, None)\n",
    ),
    Defect(
        "waiting requests are forgotten when the client gives up",
        "client/traffic.py",
        "        self._refusal = error\n        for ticket in list(self._tickets.values()):\n            self._fail(ticket, error, now_s)\n",
        "        self._refusal = error\n",
    ),
    Defect(
        "a lone request is held forever",
        "client/batcher.py",
        "            return max(free_s, latest_s)  # background",
        "            return max(free_s, latest_s + 1.0)  # background",
    ),
    Defect(
        "batches mix models",
        "client/batcher.py",
        "    return (params.model_id, params.draft_model, params.guidance_mode)",
        '    return ("", params.draft_model, params.guidance_mode)',
    ),
    Defect(
        "the byte limit is not enforced",
        "client/streams.py",
        "            self._overfull.append(stream)\n",
        "            pass\n",
    ),
    Defect(
        "a reader that leaves keeps its stream slot",
        "client/streams.py",
        "        self._forget(stream)\n        return running\n",
        "        return running\n",
    ),
    Defect(
        "a second reply breaks the reader",
        "client/transport.py",
        "call = self._pending.pop(reply.id, None) if isinstance(reply.id, int) else None",
        "call = self._pending.pop(reply.id) if isinstance(reply.id, int) else None",
    ),
    Defect(
        "a worker without a connection is not killed",
        "client/supervisor.py",
        "        self._kill_at_s = now_s + EXIT_STATUS_S\n",
        "        self._kill_at_s = None\n",
    ),
    Defect(
        "a hung worker is not killed",
        "client/supervisor.py",
        "            actions += [*self._tell_lost(), *self._end(now_s, Action.ABORT)]",
        "            pass",
    ),
    Defect(
        "an abort that is ignored is not followed by a kill",
        "client/supervisor.py",
        "        self._kill_at_s = now_s + self.settings.kill_grace_s if action is Action.ABORT else None",
        "        self._kill_at_s = None",
    ),
    Defect(
        "a crash loop never ends",
        "client/supervisor.py",
        "        if self.deaths.in_a_row > self.settings.restarts_max:",
        "        if self.deaths.in_a_row > 1000:",
    ),
)
