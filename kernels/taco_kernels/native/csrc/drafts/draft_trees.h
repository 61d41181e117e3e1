// Trees of draft tokens, one per row: validation and acceptance.
//
// Nodes are in depth-first order, each after its parent; parent -1 is the root.
#pragma once

#include <vector>

#include "runtime/types.h"

struct DraftTrees {
    int64_t num_rows;
    const int32_t* slots;
    const int32_t* num_nodes;
    const int32_t* token_ids;  // [sum(num_nodes)], as the next two
    const int32_t* parents;
    const int32_t* classes;

    int64_t total() const {
        int64_t sum = 0;
        for (int64_t row = 0; row < num_rows; ++row) sum += num_nodes[row];
        return sum;
    }
};

// Returns whether the columns are well-formed trees: at most max_nodes[row] nodes each, tokens and
// classes in range, each node after its parent. `size` is the length of each column.
inline bool are_draft_trees(const DraftTrees& trees, int64_t size, const int32_t* max_nodes,
                            int32_t vocab_size, int32_t num_classes) {
    int64_t first = 0;
    for (int64_t row = 0; row < trees.num_rows; ++row) {
        const int32_t count = trees.num_nodes[row];
        if (count < 0 || count > max_nodes[row] || first + count > size) return false;
        for (int64_t i = first; i < first + count; ++i) {
            if (trees.token_ids[i] < 0 || trees.token_ids[i] >= vocab_size) return false;
            if (trees.classes[i] < 0 || trees.classes[i] >= num_classes) return false;
            if (trees.parents[i] < -1 || trees.parents[i] >= i - first) return false;
        }
        first += count;
    }
    return first == size;
}

// Walks down each tree while the token sampled after a node is one of its children.
//
// `chosen` holds the tokens sampled after each row's root and after each of its nodes. `kept`
// receives the indices in `chosen` of each row's accepted path, its root first, and `num_kept`
// their number per row. Returns the total.
inline int64_t accept_drafts(const DraftTrees& trees, const int64_t* chosen, int32_t* kept,
                             int32_t* num_kept) {
    int64_t first = 0, root = 0, total = 0;
    for (int64_t row = 0; row < trees.num_rows; ++row) {
        const int64_t start = total;
        int32_t at = -1;
        kept[total++] = root;
        for (int32_t i = 0; i < trees.num_nodes[row]; ++i) {
            // Depth-first order: the children of a node come before anything that follows its
            // subtree.
            const int64_t node = first + i;
            if (trees.parents[node] == at && trees.token_ids[node] == chosen[kept[total - 1]]) {
                at = i;
                kept[total++] = root + 1 + i;
            }
        }
        num_kept[row] = total - start;
        first += trees.num_nodes[row];
        root += 1 + trees.num_nodes[row];
    }
    return total;
}
