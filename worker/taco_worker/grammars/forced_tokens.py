"""Drafts and the grammar of one sequence: the tokens that it forces, and those that it refuses.

Both leave no trace in the matcher.
"""

from __future__ import annotations

from collections.abc import Collection

from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.row_masks import Draft

# Each token behind it takes up to 0.4 ms, and another 0.4 ms for its mask.
_MAX_AHEAD = 512


def forced_tokens(matcher: Matcher, max_tokens: int, end_tokens: Collection[int]) -> list[int]:
    """The tokens that must come next: those whose mask would allow no other token.

    They end before an end token, which is sampled where the last of them is computed.

    One token at a time: the library tokenizes all forced text at once, and behind a token it may
    cut the rest in another way. So of a long text only the last tokens are computed: tokenizing the
    others again and again would hold up the step.
    """
    chain: list[int] = []
    while len(chain) < max_tokens:
        ahead = matcher.compute_ff_tokens()
        if not ahead or len(ahead) > _MAX_AHEAD or ahead[0] in end_tokens:
            break
        if not matcher.consume_token(ahead[0]):
            break
        chain.append(ahead[0])
    if chain:
        matcher.rollback(len(chain))
    return chain


def allowed_nodes(matcher: Matcher, draft: Draft, end_tokens: Collection[int]) -> list[bool]:
    """Whether the grammar's text may continue with each draft of a tree.

    It goes depth first and rolls the matcher back at each branch. A draft behind a refused one is
    refused, and so is one behind an end token. Where the text is forced, another spelling of it in
    tokens counts as allowed: the masks refuse it later.
    """
    is_allowed = [False] * len(draft.token_ids)
    path: list[int] = []  # nodes that the matcher has read
    for node, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        if parent >= 0 and parent not in path:
            continue
        depth = path.index(parent) + 1 if parent >= 0 else 0
        if depth < len(path):
            matcher.rollback(len(path) - depth)
            del path[depth:]
        if token_id in end_tokens:
            is_allowed[node] = matcher.is_accepting()
        elif matcher.validate_tokens([token_id]) and matcher.consume_token(token_id):
            is_allowed[node] = True
            path.append(node)
    if path:
        matcher.rollback(len(path))
    return is_allowed
