"""Seeds at which defects were caught when they were last searched for, where the search from 0 takes long.

The search begins there, and at 0 if it finds nothing: a change of the core moves the seeds.
"""

CAUGHT_AT = {
    "a cancelled deferred request stays on the list": 5,
    "a drain forgets requests whose media are being encoded": 38,
    "a drain forgets what is queued": 33,
    "a request starts inside a picture that belongs together": 23,
    "a request that ended while it waited stays in the line for adapters": 6,
    "a request that waits for adapters is passed for ever": 8,
    "a request waits for adapters while later ones keep them in use": 8,
    "a sliding window is cut back further than it reaches (real)": 240,
    "a turn for a newcomer whom nobody reads along": 26,
    "a turn grows with the cost of a change, without a limit": 79,
    "an adapter in use is dropped": 6,
    "an ended request keeps its adapters": 6,
    "cache crossing salts in the page index": 28,
    "drafts of an earlier tick are verified": 7,
    "failed operation forgotten: the slot runs on garbage": 8,
    "forgotten trim after rejected drafts": 7,
    "half a picture is computed where memory is short": 18,
    "leaked cells of a unified pool": 17,
    "padding counts as proposals": 7,
    "prompts have two ticks in a row": 7,
    "rejected drafts count as computed": 6,
    "requests without drafts are asked for some": 6,
    "reuse of the whole prompt": 14,
    "snapshot dropped while it is being restored (real)": 29,
    "spans are padded where they may differ": 29,
    "system prompt given to a request that sent another one": 122,
    "the queue's bounds hold for all priorities together": 11,
    "victim's rows in the batch that it is cleaned from": 137,
}
