"""Defects that the simulator of the cluster must notice, planted in a copy of the source."""

from __future__ import annotations

from tools.plant import Defect

POLICY = "cluster/policy"
CLUSTER_DEFECTS = (
    Defect(
        "a router that forgets what it sent",
        f"{POLICY}/routing.py",
        "        self._prefixes.remember(replica_id, hint.blocks, replica.prefill_until_s"
        " + replica.wait_s)\n",
        "",
    ),
    Defect(
        "digests are not read",
        f"{POLICY}/routing.py",
        "            self._prefixes.correct(report.replica_id, digest, recent_s)\n",
        "            pass\n",
    ),
    Defect(
        "a tenant's service is counted twice",
        f"{POLICY}/counters.py",
        "            mine = own.get(tenant, NONE)\n",
        "            mine = NONE\n",
    ),
    Defect(
        "service elsewhere is added at every exchange",
        "core/fairness.py",
        "        self.foreign_seen = total\n",
        "",
    ),
    Defect(
        "a cancelled request is sent again after a loss",
        f"{POLICY}/failover.py",
        "    if cancelled or delivered >= max_tokens:",
        "    if delivered >= max_tokens:",
        arguments=("--seed", "200"),  # rare: a client has to leave just when its replica dies
    ),
    Defect(
        "the scheduler loses cancels",
        "core/scheduler.py",
        "            job.cancelled = reason\n            self._asked.append(job)\n",
        "            job.cancelled = reason\n",
    ),
    Defect(
        "hashes without the tenant's scope",
        "core/blocks.py",
        "hashlib.blake2b(scope.text.encode(), ",
        "hashlib.blake2b(scope.salt.encode(), ",
    ),
    Defect(
        "a stream that lost its replica starts again from its prompt",
        f"{POLICY}/failover.py",
        "    return AfterLoss.CONTINUE if determined else AfterLoss.FAIL\n",
        "    return AfterLoss.RESEND if determined else AfterLoss.FAIL\n",
    ),
    Defect(
        "the router's memory is not bounded",
        f"{POLICY}/prefixes.py",
        "        while len(held) > self._limits[replica]:",
        "        while len(held) > (1 << 40):",
    ),
    Defect(
        "ended requests are counted as running",
        f"{POLICY}/routing.py",
        'replica_id, tenant = self._sent.pop(request_id, ("", ""))',
        'replica_id, tenant = self._sent.get(request_id, ("", ""))',
    ),
    Defect(
        "scaling down without a delay",
        f"{POLICY}/scaling.py",
        "now - state.below_since_s >= policy.down_delay_s",
        "now - state.below_since_s >= 0.0",
    ),
)
