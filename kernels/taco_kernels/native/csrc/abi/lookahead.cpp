// C functions of the lookahead cache.

#include "abi/native_abi.h"
#include "lookahead/cache.h"

LookaheadCache* taco_lookahead_create(const LookaheadOptions* options) {
    return new LookaheadCache(*options);
}

void taco_lookahead_destroy(LookaheadCache* cache) { delete cache; }

int64_t taco_lookahead_local_bytes(const LookaheadCache* cache) { return cache->local_bytes(); }

void taco_lookahead_learn(LookaheadCache* cache, const LookaheadSequences* sequences) {
    cache->learn(*sequences);
}

void taco_lookahead_join(LookaheadCache* cache, const LookaheadSequences* sequences) {
    cache->join(*sequences);
}

void taco_lookahead_leave(LookaheadCache* cache, const int32_t* slots, int64_t count) {
    cache->leave(slots, count);
}

void taco_lookahead_clear(LookaheadCache* cache) { cache->clear(); }

void taco_lookahead_append(LookaheadCache* cache, const LookaheadTokens* tokens) {
    cache->append(*tokens);
}

int64_t taco_lookahead_draft(TacoPool* pool, LookaheadCache* cache, const LookaheadTrees* trees) {
    return cache->draft(pool->threads, *trees);
}
