"""The scheduler's records of KV memory: one ledger protocol, and two ledgers.

`SequenceLedger` is for llama.cpp (streams and unified pools), `PageLedger` for paged attention. What backends
carry out is in `stretto.core.ops`.
"""

from stretto.core.kv.ledger import Donor, KvLedger, Match, PrefixKind, Settled, Source
from stretto.core.kv.pages import PageLedger
from stretto.core.kv.sequences import SequenceLedger

__all__ = ["Donor", "KvLedger", "Match", "PageLedger", "PrefixKind", "SequenceLedger", "Settled", "Source"]
