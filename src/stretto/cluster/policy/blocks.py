"""How gates name prefixes: the core's block hashes, which replicas compute for their digests."""

from stretto.core.blocks import BLOCK_TOKENS, BLOCKS_MAX, block_hashes

__all__ = ["BLOCKS_MAX", "BLOCK_TOKENS", "block_hashes"]
