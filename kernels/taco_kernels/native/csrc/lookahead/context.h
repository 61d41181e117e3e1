// The last tokens of a sequence, and their keyed hashes.
#pragma once

#include <algorithm>

#include "lookahead/lookahead.h"

inline uint64_t fold_product(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

// Who does not know the secret cannot tell which contexts meet, nor make them.
struct ContextHash {
    uint64_t secret[2];
    int32_t longest;  // context that is hashed

    // Of a context that goes one token further back.
    uint64_t extend(uint64_t hash, int32_t token) const {
        return fold_product(hash ^ secret[0], uint32_t(token) + secret[1]);
    }
};

struct Context {
    int32_t count = 0;
    int32_t tokens[MAX_MATCH];       // newest first
    uint64_t hashes[MAX_MATCH + 1];  // of each length; of length 0 the namespace

    void start(uint64_t name_space) {
        count = 0;
        hashes[0] = name_space;
    }
    void push(int32_t token, const ContextHash& hash) { follow(*this, token, hash); }
    // The other one, which may be this, with the token behind it.
    void follow(const Context& other, int32_t token, const ContextHash& hash) {
        std::copy_backward(other.tokens, other.tokens + hash.longest - 1, tokens + hash.longest);
        tokens[0] = token;
        count = std::min(other.count + 1, hash.longest);
        hashes[0] = other.hashes[0];
        for (int32_t i = 0; i < count; ++i) hashes[i + 1] = hash.extend(hashes[i], tokens[i]);
    }
};
