"""Sampling on the host, in numpy: from a row of logits to a token; the same token on every machine.

The steps, in order, with the neutral value of each (the default of filters and penalties; temperature 1):

 1. bias      logit_bias is added ({}); -100 and below bans. Suppressed tokens of the model are banned.
 2. ends      while index < min_tokens (0): end and stop tokens masked; ignore_eos (False): end tokens are.
 3. DRY       dry_multiplier (0) × dry_base ** (run − dry_allowed_length), over dry_penalty_last_n tokens.
 4. repeats   repeat_penalty (1), frequency_penalty (0), presence_penalty (0), all three over the last
              repeat_last_n (64; 0: off, -1: all) tokens of prompt and answer together, as llama.cpp has it.
 5. grammar   see below.
 6. top_k     (0: off)       the k most likely; of equals the lower ids.
 7. typical_p (1)            nearest to the expected surprise, until they hold this share.
 8. top_p     (1)            the most likely, until they hold this share.
 9. min_p     (0)            at least this fraction of the best one's probability.
10. XTC       (probability 0) of those with at least xtc_threshold only the least likely stays.
11. temperature, last as in llama.cpp: filters see the model's own distribution. 0 is greedy, top_k 1 as well.
12. the draw  a number, laid on the remaining tokens in the order of their ids.

Grammar: a token is chosen without it and tested alone; only a refused one costs a mask over the vocabulary,
under which steps 6 to 12 run again. That second draw has a number of its own from the same (seed, index):
with the first one, which is known to lie on refused tokens, it would favour their neighbours. Where the
grammar leaves nothing but an end token that step 2 masks, the grammar wins.

Randomness: Philox4x32-10 on (seed, output index, stage, attempt). No state, so that preemption, splitting a
batch and speculation never change seeded text. Over large vocabularies typical_p, top_p and min_p work by
rejection (draw, test the one token, three times at most, then filter): the same distribution, faster.

Logprobs are those of the untouched logits, as with OpenAI and vLLM. NaN and +inf count as -inf; without one
finite logit, or with every token forbidden, it is BadLogits.
"""

from stretto.backends.sampling.guide import Guide, MatcherGuide
from stretto.backends.sampling.logprobs import TokenLogprobs
from stretto.backends.sampling.sampler import BadLogits, Sampled, Sampler

__all__ = ["BadLogits", "Guide", "MatcherGuide", "Sampled", "Sampler", "TokenLogprobs"]
